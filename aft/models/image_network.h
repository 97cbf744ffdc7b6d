// The interface of the networks that classify images.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace aft::models {

class ImageNetwork : public virtual torch::nn::Module {
 public:
  /// images [B, 3, H, W], normalised, to logits [B, classes()]. In training,
  /// seed determines what is dropped. Throws c10::Error for other shapes.
  virtual torch::Tensor forward(const torch::Tensor& images,
                                uint64_t seed = 0) = 0;
  /// Prepares for inference, which then is faster and uses less memory.
  /// Gradients are an error afterwards.
  virtual void pack_for_inference() = 0;
  virtual int64_t classes() const = 0;
};

}  // namespace aft::models
