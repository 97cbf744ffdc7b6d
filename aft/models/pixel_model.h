// The interface of autoregressive image models (PixelCNN and its variants): the
// probability of each sub-pixel given the preceding ones, row by row, and red,
// green, blue within a pixel.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace aft::models {

/// Channels of an image: red, green and blue.
inline constexpr int64_t kColours = 3;

class PixelModel : public virtual torch::nn::Module {
 public:
  /// Maps values int64 [B, H, W, 3] in [0, 256) to their log-probabilities in
  /// nats, [B, H, W, 3]. In training, seed determines what dropout drops.
  /// Throws c10::Error for other shapes.
  virtual torch::Tensor log_prob(const torch::Tensor& values,
                                 uint64_t seed = 0) = 0;
  /// The log-probabilities of all values of one sub-pixel, [B, 256], given the
  /// preceding ones. Ignores the values of this sub-pixel and those after it.
  /// Not recorded by autograd.
  virtual torch::Tensor distribution(const torch::Tensor& values, int64_t row,
                                     int64_t column, int64_t channel) = 0;
};

}  // namespace aft::models
