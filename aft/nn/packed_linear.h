// A linear layer that can be packed for inference.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <utility>

#include "aft/ops/linear.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

class PackedLinear : public torch::nn::Linear {
 public:
  PackedLinear(std::nullptr_t) : Linear(nullptr) {}
  PackedLinear(std::shared_ptr<torch::nn::LinearImpl> linear)
      : Linear(std::move(linear)) {}

  /// Packs the weights and frees the originals. Does nothing if there is no
  /// kernel for them.
  void pack() { pack(get()->weight, get()->bias); }
  /// Packs the given weights instead of those of the layer, and frees the
  /// latter.
  void pack(const torch::Tensor& weight, const torch::Tensor& bias) {
    packed_ = ops::PackedWeights(weight, bias);
    if (!is_packed()) return;
    for (torch::Tensor* x : {&get()->weight, &get()->bias})
      if (x->defined()) x->set_data(at::empty({0}, x->options()));
  }
  bool is_packed() const { return packed_.defined(); }

  torch::Tensor operator()(const torch::Tensor& x) const {
    return is_packed() ? packed()(x)
                       : ops::affine(x, get()->weight, get()->bias);
  }
  /// The packed weights. Throws c10::Error if gradients are enabled.
  const ops::PackedWeights& packed() const {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "a model packed for inference has no gradients");
    return packed_;
  }

 private:
  ops::PackedWeights packed_;
};

}  // namespace aft::nn
