// Helpers of the mixers with heads: splitting and joining heads, attention, and
// the keys and values that a stream keeps.
#pragma once

#include <ATen/core/Tensor.h>

#include "aft/ops/stream.h"

namespace aft::nn {

/// Throws c10::Error unless x is [B, T, dim].
void check_sequence(const char* name, const at::Tensor& x, int64_t dim);
/// Throws c10::Error unless x is [B, dim].
void check_position(const char* name, const at::Tensor& x, int64_t dim);
/// Throws c10::Error unless dim and heads are positive and heads divides dim.
void check_heads(const char* name, int64_t dim, int64_t heads);

/// [B, T, dim] to [B, heads, T, dim / heads], as a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);
/// [B, heads, T, d] to [B, T, heads d].
at::Tensor join_heads(const at::Tensor& x);

/// Returns an empty stream that will keep the keys and values of all positions,
/// with k and v channels.
ops::Stream start_cache(const char* name, bool causal, int64_t B, int64_t k,
                        int64_t v, const at::TensorOptions& options);
/// Appends k [B, dk] and v [B, dv] to ring_k and ring_v, which have spare
/// capacity, and increments the position.
void remember(ops::Stream& stream, const at::Tensor& k, const at::Tensor& v);

/// softmax(q k^T / sqrt(d)) v: q [..., m, d], k [..., n, d], v [..., n, dv] to
/// [..., m, dv]. hidden: undefined, or bool that broadcasts to [..., m, n],
/// where true masks a key. empty_rows: all keys of a row may be masked; such
/// rows give 0.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& hidden, bool empty_rows);
/// attend for one position and several heads: q [B, dim], k and v [B, t, dim]
/// to [B, dim]; hidden broadcasts to [B, heads, 1, t].
at::Tensor attend_one(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, int64_t heads,
                      const at::Tensor& hidden = {});

}  // namespace aft::nn
