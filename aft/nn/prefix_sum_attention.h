// Attention without a softmax, from sums over keys that all queries share:
//   y_t = sum_j e^c_j (q_t . k_j) v_j / (sum_j e^c_j (q_t . k_j) + eps),
// over j <= t where causal, for features q, k >= 0. Time and memory are linear
// in T, forward and backward; a stream keeps sums of k v^T.
#pragma once

#include <ATen/core/Tensor.h>

#include "aft/ops/stream.h"

namespace aft::nn {

/// Positions that a causal pass takes together, for q, k of M and v of D
/// channels a head: within a chunk the products with all its keys, T C
/// numbers, between chunks the sums of all before, T / C M D numbers. Not
/// causal: one chunk of T.
int64_t chunk_length(int64_t T, int64_t M, int64_t D, bool causal);
/// x [B, T, heads d] as [T / C, B, heads, C, d], zeros after the end: a view
/// where C divides T.
at::Tensor chunks(const at::Tensor& x, int64_t heads, int64_t C);
/// Back: y [T / C, B, heads, C, D] to [B, T, heads D].
at::Tensor unchunk(const at::Tensor& y, int64_t T);
/// A key padding mask for chunks of C: [T / C, B, 1, C, 1]. Throws c10::Error
/// unless it is bool [B, T].
at::Tensor chunks_of_mask(const char* name, const at::Tensor& mask, int64_t B,
                          int64_t T, int64_t C);

/// The equation above on chunks: q, k [N, B, H, C, M], v [N, B, H, C, D] to
/// [N, B, H, C, D]. c [N, B, H, C], finite, or undefined: 0. It may have any
/// size: rows are computed relative to the largest c that they see, never to a
/// later one, so that causal rows know nothing of what follows to the last bit
/// (with c, eps must be 0). Keys of 0 take no part: a row that sees no other
/// gives 0. Differentiable once. not causal: N = 1.
at::Tensor prefix_attend(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const at::Tensor& c, double eps,
                         bool causal);

/// An empty stream: `sums` [B, heads, M, D + 1] is sum_j e^(c_j - top) k_j
/// [v_j, 1]^T; with c, ring_k [B, heads, 1] is top, the largest c so far.
ops::Stream start_prefix(const char* name, bool causal, bool with_c,
                         at::IntArrayRef shape,
                         const at::TensorOptions& options);
/// One position: q, k [B, H, M], v [B, H, D], c [B, H, 1] or undefined, to [B,
/// H, D]. Not recorded by autograd.
at::Tensor prefix_step(const char* name, ops::Stream& stream,
                       const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const at::Tensor& c, double eps);

}  // namespace aft::nn
