// Linear layers for inference, with weights packed once (kernels/linear.h). Not
// recorded by autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "aft/kernels/linear.h"

namespace aft::ops {

class PackedWeights {
 public:
  PackedWeights() = default;
  /// weight [outputs, inputs], bias [outputs] or undefined. Copies both. Stays
  /// undefined unless they are float or double on the CPU. Throws c10::Error if
  /// the shapes, types or devices do not match.
  PackedWeights(const at::Tensor& weight, const at::Tensor& bias);

  bool defined() const { return packed_.defined(); }
  /// f(x w^T + b): x [..., inputs] to [..., outputs]. `then` selects f. Throws
  /// c10::Error for any other type, device or size.
  at::Tensor operator()(const at::Tensor& x,
                        kernels::Then then = kernels::Then::kStore) const;
  /// into += x w^T + b. into [..., outputs] must be contiguous.
  void add(const at::Tensor& x, at::Tensor& into) const;
  /// x w^T + b for several layers with the same inputs, in one pass over x.
  static std::vector<at::Tensor> together(
      const at::Tensor& x, const std::vector<const PackedWeights*>& layers);

 private:
  /// The shape of the result for x. Throws c10::Error if x does not fit.
  std::vector<int64_t> shape(const at::Tensor& x) const;
  static void run(const at::Tensor& x,
                  const std::vector<const PackedWeights*>& layers,
                  kernels::Then then, const std::vector<at::Tensor>& outputs);

  int64_t outputs_ = 0, inputs_ = 0;
  at::Tensor packed_, bias_;
};

}  // namespace aft::ops
