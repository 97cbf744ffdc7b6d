// The two attention patterns of the Sparse Transformer (Child et al. 2019),
// each as a mixer. Per head,
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j,
// over j with |t - j| < stride (local), or (t - j) mod stride = 0 (strided); j
// <= t if causal. Also the tiled attention that computes them.
#pragma once

#include <string>
#include <vector>

#include "aft/nn/heads.h"

namespace aft::nn {

struct SparseOptions {
  SparseOptions(int64_t dim, int64_t heads, int64_t stride)
      : dim_(dim), heads_(heads), stride_(stride) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads()), f("window", s.stride());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(int64_t, stride);
  TORCH_ARG(std::string, pattern) = "local";  ///< or "strided"
  TORCH_ARG(bool, causal) = false;
};

/// See QkvMixer for the parameters.
///
/// Time O(T stride dim) (local) or O(T T / stride dim) (strided); memory O(T
/// dim), since backward recomputes the weights. A stream keeps the last
/// `stride` keys and values (local), or all of them, of which a step reads
/// every stride-th (strided).
class SparseImpl : public torch::nn::Cloneable<SparseImpl>, public QkvMixer {
 public:
  explicit SparseImpl(const SparseOptions& o) : options(o) { reset(); }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  SparseOptions options;

 private:
  std::string details() const override;
  bool local() const { return options.pattern() == "local"; }
};
TORCH_MODULE(Sparse);

MixerKind sparse_kind();

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
/// bool [queries, keys]: whether the key comes after the query.
at::Tensor comes_after(const Span& k, const Span& q, const at::Device& device);
/// Gathers the positions of the spans from x [B, T, d], in order.
at::Tensor take(const at::Tensor& x, const std::vector<Span>& spans);

}  // namespace aft::nn
