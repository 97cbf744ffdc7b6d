// Attention without a softmax, computed from prefix sums over keys that all
// queries share:
//   y_t = sum_j e^c_j (q_t . k_j) v_j / (sum_j e^c_j (q_t . k_j) + eps),
// over j <= t if causal, for features q, k >= 0. Time and memory are linear in
// T, forward and backward. A stream keeps sums of k v^T.
#pragma once

#include <ATen/core/Tensor.h>

#include "aft/ops/stream.h"

namespace aft::nn {

/// The chunk length C of a causal pass, for q, k with M and v with D channels
/// per head. Within a chunk, queries are multiplied with all keys (T C
/// elements); between chunks, prefix sums are used (T / C M D elements). Not
/// causal: one chunk of length T.
int64_t chunk_length(int64_t T, int64_t M, int64_t D, bool causal);
/// Reshapes x [B, T, heads d], or a mask as [B, T, 1], to [T / C, B, heads, C,
/// d], padded with zeros at the end. A view if C divides T.
at::Tensor chunks(const at::Tensor& x, int64_t heads, int64_t C);
/// The inverse: y [T / C, B, heads, C, D] to [B, T, heads D].
at::Tensor unchunk(const at::Tensor& y, int64_t T);

/// The equation above, on chunks: q, k [N, B, H, C, M] and v [N, B, H, C, D] to
/// [N, B, H, C, D]; N = 1 if not causal. c [N, B, H, C] is finite, or undefined
/// for 0. It may be arbitrarily large: each row is computed relative to the
/// largest c that it sees, never to a later one, so causal rows are bit-exactly
/// independent of the future. If c is defined, eps must be 0. Zero keys are
/// ignored, and a row that sees only such keys gives 0. Differentiable once.
at::Tensor prefix_attend(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const at::Tensor& c, double eps,
                         bool causal);

/// Returns an empty stream. `sums` [B, heads, M, D + 1] is sum_j e^(c_j - top)
/// k_j [v_j, 1]^T. With c, ring_k [B, heads, 1] is top, the largest c so far.
ops::Stream start_prefix(bool with_c, at::IntArrayRef shape,
                         const at::TensorOptions& options);
/// Processes one position: q, k [B, H, M], v [B, H, D], c [B, H, 1] or
/// undefined, to [B, H, D]. Not recorded by autograd.
at::Tensor prefix_step(const char* name, ops::Stream& stream,
                       const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const at::Tensor& c, double eps);

}  // namespace aft::nn
