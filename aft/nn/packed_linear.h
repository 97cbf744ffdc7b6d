// A linear layer that can be packed for inference.
#pragma once

#include <torch/nn/modules/linear.h>

#include <memory>
#include <utility>
#include <vector>

#include "aft/nn/snapshot.h"
#include "aft/ops/autocast.h"
#include "aft/ops/linear.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

/// Packing adds a copy of the weights. The layer uses it if autocast is off and
/// the copy is still valid (Snapshot). Otherwise it computes with the weights
/// themselves, so it is never out of date, and can be cloned, saved, loaded,
/// moved and trained.
class PackedLinear : public torch::nn::Linear {
 public:
  PackedLinear(std::nullptr_t) : Linear(nullptr) {}
  PackedLinear(std::shared_ptr<torch::nn::LinearImpl> linear)
      : Linear(std::move(linear)) {}

  /// Packs the weights. Does nothing if there is no kernel for them.
  void pack() { pack(get()->weight, get()->bias, {}); }
  /// Packs the given weights instead of those of the layer. They were computed
  /// from the latter and from `others`.
  void pack(const torch::Tensor& weight, const torch::Tensor& bias,
            std::vector<torch::Tensor> others) {
    packed_ = ops::PackedWeights(weight, bias);
    others_ = std::move(others);
    from_ = Snapshot(sources());
  }
  /// Whether calls use packed weights now.
  bool is_packed() const {
    return packed_.defined() && from_.valid(sources()) &&
           !ops::autocast_enabled(get()->weight);
  }

  torch::Tensor operator()(const torch::Tensor& x) const {
    return is_packed() ? packed_(x)
                       : ops::affine(x, get()->weight, get()->bias);
  }
  /// The packed weights, for is_packed().
  const ops::PackedWeights& packed() const { return packed_; }

 private:
  std::vector<torch::Tensor> sources() const {
    std::vector<torch::Tensor> all{get()->weight, get()->bias};
    all.insert(all.end(), others_.begin(), others_.end());
    return all;
  }

  ops::PackedWeights packed_;
  std::vector<torch::Tensor> others_;
  Snapshot from_;
};

}  // namespace aft::nn
