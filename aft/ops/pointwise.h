// Element-wise steps of a network, each fused to one pass over memory and
// differentiable once: GELU with its bias, dropout with the residual.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace aft::ops {

/// gelu(x + bias), gelu(x) = x Phi(x): x [..., n], bias [n], the same floating
/// type. Backward recomputes from x. Throws c10::Error.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

/// residual + dropout(x): each number of x is dropped with probability p in
/// [0, 1), the kept ones grow by 1 / (1 - p). What is dropped depends on seed
/// and place alone (on the CPU): the same seed drops the same again, and
/// backward needs no mask. residual undefined: 0. Throws c10::Error.
at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x,
                       double p, uint64_t seed);

}  // namespace aft::ops
