// What stands between the operators in a network, with as little memory as it
// takes: the MLP, dropout with the residual. Differentiable once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace aft::ops {

/// x w^T + b as at::linear: x [..., n], w [m, n], b [m] or undefined. One row
/// is a product of a matrix and a vector, which needs no packing of w (measured
/// in streaming: half of the whole time).
at::Tensor affine(const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& b = {});

/// gelu(x w1^T + b1) w2^T + b2, gelu(x) = x Phi(x): x [..., n], w1 [m, n], b1
/// [m], w2 [n', m], b2 [n'], the same floating type. Keeps x and x w1^T for
/// backward, and computes the rest again. Throws c10::Error.
at::Tensor mlp(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& b1,
               const at::Tensor& w2, const at::Tensor& b2);

/// While it lives, the rows (of the first dimension) that this thread drops
/// numbers of count from `row` on: a part of a batch drops what it would drop
/// as a part of the whole.
class FirstRow {
 public:
  explicit FirstRow(int64_t row);
  ~FirstRow();
  FirstRow(const FirstRow&) = delete;
  FirstRow& operator=(const FirstRow&) = delete;
  static int64_t current();

 private:
  const int64_t before_;
};

/// residual + dropout(x): each number of x is dropped with probability p in
/// [0, 1), the kept ones grow by 1 / (1 - p). What is dropped depends on seed
/// and place alone, on every device: the same seed drops the same again, and
/// backward needs no mask. residual undefined: 0. Throws c10::Error.
at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x,
                       double p, uint64_t seed);

}  // namespace aft::ops
