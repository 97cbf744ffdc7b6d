// What mixers with heads share: heads apart and together, and the keys and
// values that a stream keeps.
#pragma once

#include <ATen/core/Tensor.h>

#include "aft/ops/stream.h"

namespace aft::nn {

/// Throws c10::Error unless x is [B, T, dim].
void check_sequence(const char* name, const at::Tensor& x, int64_t dim);
/// Throws c10::Error unless x is [B, dim].
void check_position(const char* name, const at::Tensor& x, int64_t dim);
/// Throws c10::Error unless dim and heads are 1 or more and heads divides dim.
void check_heads(const char* name, int64_t dim, int64_t heads);

/// [B, T, dim] to [B, heads, T, dim / heads]: a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);
/// [B, heads, T, d] to [B, T, heads d].
at::Tensor join_heads(const at::Tensor& x);

/// An empty stream that will keep the keys and values of all positions, of k
/// and v channels.
ops::Stream start_cache(const char* name, bool causal, int64_t B, int64_t k,
                        int64_t v, const at::TensorOptions& options);
/// Appends k [B, dk] and v [B, dv] to ring_k and ring_v, which have room for
/// more, and counts the position.
void remember(ops::Stream& stream, const at::Tensor& k, const at::Tensor& v);

/// softmax(q k^T / sqrt(d)) v: q [..., m, d], k [..., n, d], v [..., n, dv] to
/// [..., m, dv]. hidden: bool that broadcasts to [..., m, n], true: not seen,
/// or undefined; empty_rows: some rows may see nothing, and give 0.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& hidden, bool empty_rows);
/// The same of one position and several heads: q [B, dim], k and v [B, t, dim]
/// to [B, dim]; hidden broadcasts to [B, heads, 1, t].
at::Tensor attend_one(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, int64_t heads,
                      const at::Tensor& hidden = {});

}  // namespace aft::nn
