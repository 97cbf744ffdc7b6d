// The two patterns of the Sparse Transformer (Child et al. 2019), each a mixer:
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j, head by head,
// over j with |t - j| < stride (local), or (t - j) mod stride = 0 (strided);
// j <= t where causal. Also the attention over tiles that computes them.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/nn/folded.h"
#include "aft/nn/mixer.h"

namespace aft::nn {

struct SparseOptions {
  SparseOptions(int64_t dim, int64_t heads, int64_t stride)
      : dim_(dim), heads_(heads), stride_(stride) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(int64_t, stride);
  TORCH_ARG(std::string, pattern) = "local";  ///< or "strided"
  TORCH_ARG(bool, causal) = false;
};

/// Parameters: Linear qkv [3 dim, dim], whose rows are [q; k; v], and out.
/// Time O(T stride dim) (local) or O(T T / stride dim) (strided), memory O(T
/// dim): backward computes the weights again. A stream keeps the last `stride`
/// keys and values (local), or all of them, of which a step reads every
/// stride-th (strided).
class SparseImpl : public torch::nn::Cloneable<SparseImpl>, public Mixer {
 public:
  explicit SparseImpl(const SparseOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  torch::Tensor last_weight() const override { return out->weight; }
  void fold() override;

  SparseOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  bool local() const { return options.pattern() == "local"; }

  Folded qkv_, out_;
};
TORCH_MODULE(Sparse);

/// Positions first + i step + j inner of a sequence, i < rows, j < columns: a
/// rectangle of the sequence written in lines of `step`, or of its transpose.
struct Span {
  int64_t first, rows, step, columns, inner;
  int64_t size() const { return rows * columns; }
};

/// Queries with the keys that they see.
struct Tile {
  Span q;
  /// Each without a position twice. All rows see all of them; or, if `apart`,
  /// row i of q those of row i, and then all have as many rows as q.
  std::vector<Span> k;
  bool apart = false;
  /// bool [queries, n]: which of the last n keys are not seen after all, the
  /// same for all rows if `apart`. Undefined: none.
  at::Tensor hidden;
};

/// Queries of a tile: fewer make products too small to be fast, more make more
/// products that the causal order then hides.
constexpr int64_t kTile = 64;

/// softmax(q k^T / sqrt(d)) v of qkv [B, T, 3 dim] to [B, T, dim], where each
/// position is a query of just one tile. padded: bool [B, T] or undefined; a
/// row that sees nothing gives 0. Memory, in backward too: qkv, and what a few
/// tiles need. Differentiable once. Throws c10::Error with `name`.
at::Tensor attend_tiles(const char* name, const at::Tensor& qkv, int64_t heads,
                        const at::Tensor& padded, std::vector<Tile> tiles);
/// bool [queries, keys]: whether a key comes after a query.
at::Tensor comes_after(const Span& k, const Span& q, const at::Device& device);
/// Those positions of x [B, T, d], one span after the other.
at::Tensor take(const at::Tensor& x, const std::vector<Span>& spans);

}  // namespace aft::nn
