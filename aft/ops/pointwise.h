// Memory-saving versions of the layers between the operators of a network: the
// MLP, and dropout with the residual connection. Differentiable once. Also the
// softmax of tiled attention. Under autocast, the linear layers are autocast's
// and all types may be mixed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace aft::ops {

/// x w^T + b, as at::linear: x [..., n], w [m, n], b [m] or undefined. A single
/// row uses a matrix-vector product, which does not pack w; this was measured
/// to halve the time of streaming.
at::Tensor affine(const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& b = {});

/// gelu(x w1^T + b1) w2^T + b2 with gelu(x) = x Phi(x): x [..., n], w1 [m, n],
/// b1 [m], w2 [n', m], b2 [n'], all of one floating type. Keeps x and x w1^T
/// for backward, and recomputes the rest; under autocast ATen keeps what it
/// needs. Throws c10::Error.
at::Tensor mlp(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& b1,
               const at::Tensor& w2, const at::Tensor& b2);

/// softmax(x) over the last dimension. May overwrite x. Not recorded by
/// autograd.
at::Tensor softmax(const at::Tensor& x);

/// While an instance exists, dropout_add in this thread numbers rows (of the
/// first dimension) from `row` on. Part of a batch then drops the same elements
/// as it would within the whole batch.
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

/// residual + dropout(x): drops each element of x with probability p in [0, 1)
/// and scales the others by 1 / (1 - p). An undefined residual counts as 0. The
/// dropped elements depend only on the seed and the element's index, on every
/// device, so backward needs no mask. Throws c10::Error.
at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x,
                       double p, uint64_t seed);

}  // namespace aft::ops
