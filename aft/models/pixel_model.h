// What networks over pictures (PixelCNN and its kin) have in common: the
// probability of each sub-pixel given those before it, row by row, red, green,
// blue of each pixel.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace aft::models {

class PixelModel : public virtual torch::nn::Module {
 public:
  /// values int64 [B, H, W, 3] in [0, 256) to the log-probability of each, in
  /// nats, [B, H, W, 3]. In training, seed chooses what dropout drops. Throws
  /// c10::Error for another shape.
  virtual torch::Tensor log_prob(const torch::Tensor& values,
                                 uint64_t seed = 0) = 0;
  /// The log-probabilities of all values of one sub-pixel, [B, 256], given what
  /// stands before it; what stands there and after it is not looked at. Not
  /// recorded by autograd.
  virtual torch::Tensor distribution(const torch::Tensor& values, int64_t row,
                                     int64_t column, int64_t channel) = 0;
};

}  // namespace aft::models
