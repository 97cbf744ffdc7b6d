// A linear layer that may have been packed for inference.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include "aft/ops/linear.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

class Folded {
 public:
  /// Packs the weights of a layer, and gives back the memory of the layer's
  /// own. Does nothing where there is no kernel for them.
  void fold(torch::nn::Linear& linear) {
    packed_ = ops::PackedLinear(linear->weight, linear->bias);
    if (!packed_.defined()) return;
    for (torch::Tensor* x : {&linear->weight, &linear->bias})
      if (x->defined()) x->set_data(at::empty({0}, x->options()));
  }
  bool defined() const { return packed_.defined(); }

  /// The layer that was folded, or that layer itself where none was.
  torch::Tensor operator()(const torch::nn::Linear& linear,
                           const torch::Tensor& x) const {
    if (!packed_.defined()) return ops::affine(x, linear->weight, linear->bias);
    return packed()(x);
  }
  /// The packed weights. Throws c10::Error where gradients are wanted.
  const ops::PackedLinear& packed() const {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "a folded model is for inference: it has no gradients");
    return packed_;
  }

 private:
  ops::PackedLinear packed_;
};

}  // namespace aft::nn
