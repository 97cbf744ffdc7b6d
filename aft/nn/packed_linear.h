// A linear layer that can be packed for inference.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include "aft/ops/linear.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

class PackedLinear {
 public:
  /// Packs the weights of a layer and frees the originals. Does nothing if
  /// there is no kernel for them.
  void pack(torch::nn::Linear& linear) {
    packed_ = ops::PackedWeights(linear->weight, linear->bias);
    if (!packed_.defined()) return;
    for (torch::Tensor* x : {&linear->weight, &linear->bias})
      if (x->defined()) x->set_data(at::empty({0}, x->options()));
  }
  bool defined() const { return packed_.defined(); }

  /// Applies the packed weights, or `linear` if nothing was packed.
  torch::Tensor operator()(const torch::nn::Linear& linear,
                           const torch::Tensor& x) const {
    if (!packed_.defined()) return ops::affine(x, linear->weight, linear->bias);
    return packed()(x);
  }
  /// The packed weights. Throws c10::Error if gradients are enabled.
  const ops::PackedWeights& packed() const {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "a folded model is for inference: it has no gradients");
    return packed_;
  }

 private:
  ops::PackedWeights packed_;
};

}  // namespace aft::nn
