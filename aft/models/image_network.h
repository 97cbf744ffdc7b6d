// What networks that name what is on an image have in common.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace aft::models {

class ImageNetwork : public virtual torch::nn::Module {
 public:
  /// images [B, 3, H, W], normalised, to logits [B, classes()]. In training,
  /// seed chooses what is dropped. Throws c10::Error for other shapes.
  virtual torch::Tensor forward(const torch::Tensor& images,
                                uint64_t seed = 0) = 0;
  /// For inference only from then on, faster and in less memory; gradients are
  /// then an error.
  virtual void fold() = 0;
  virtual int64_t classes() const = 0;
};

}  // namespace aft::models
