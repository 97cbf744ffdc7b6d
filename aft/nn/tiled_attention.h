// Attention whose memory is linear in T: the weights are computed tile by tile,
// and again in backward. Per head,
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j,
// over the j that the tiles show to t: all, all j <= t, or a pattern.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace aft::nn {

/// The positions first + i step + j inner of a sequence, i < rows, j < columns:
/// a rectangle of the sequence laid out in rows of `step`, or of its transpose.
struct Span {
  int64_t first, rows, step, columns, inner;
  int64_t size() const { return rows * columns; }
};

/// A set of queries and the keys that they see.
struct Tile {
  Span q;
  /// No position occurs twice. If `apart`, row i of q sees only row i of each
  /// span, and all spans have as many rows as q. Otherwise all rows see all
  /// keys.
  std::vector<Span> k;
  bool apart = false;
  /// bool [queries, n]: masks some of the last n keys; shared by all rows if
  /// `apart`. Undefined: no mask.
  at::Tensor hidden;
};

/// Queries per tile. With fewer, matrix products are too small to be fast; with
/// more, the causal mask discards more of their results.
constexpr int64_t kTile = 64;

/// softmax(q k^T / sqrt(d)) v: qkv [B, T, 3 dim] to [B, T, dim]. Each position
/// must be a query of exactly one tile. padded: bool [B, T] or undefined; a row
/// that sees no key gives 0. Memory, also in backward: qkv, and buffers for a
/// few tiles. Differentiable once.
at::Tensor attend_tiles(const at::Tensor& qkv, int64_t heads,
                        const at::Tensor& padded, std::vector<Tile> tiles);
/// attend_tiles in which every position sees all keys, or those up to itself if
/// causal.
at::Tensor attend_all(const at::Tensor& qkv, int64_t heads, bool causal,
                      const at::Tensor& padded);
/// bool [queries, keys]: whether the key comes after the query.
at::Tensor comes_after(const Span& k, const Span& q, const at::Device& device);
/// Gathers the positions of the spans from x [B, T, d], in order.
at::Tensor take(const at::Tensor& x, const std::vector<Span>& spans);

}  // namespace aft::nn
