// The lambda layer (LambdaNetworks) over a grid of positions. Per head,
//   y_n = (sum_m (softmax_m(key_m) + E_nm) v_m^T)^T q_n.
// All heads share keys and values. E_nm is a learned vector of k elements for
// each offset m - n on the grid. q and v are batch normalised.
//
// Not causal: batch statistics and the softmax use every position.
#pragma once

#include <array>
#include <vector>

#include "aft/nn/batch_norm.h"
#include "aft/nn/heads.h"

namespace aft::nn {

struct LambdaOptions {
  LambdaOptions(int64_t dim, int64_t heads, int64_t rows, int64_t columns)
      : dim_(dim), heads_(heads), rows_(rows), columns_(columns) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads()), f("out", s.out());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(int64_t, rows);     ///< of the largest grid
  TORCH_ARG(int64_t, columns);  ///< of the largest grid
  TORCH_ARG(int64_t, k) = 16;   ///< channels of a key, and of a query per head
  TORCH_ARG(bool, out) = true;  ///< apply a linear layer to the result
};

/// Parameters: Linear query [heads k, dim], key [k, dim] and value [dim /
/// heads, dim], without bias; BatchNorm query_norm and value_norm; offsets [2
/// rows - 1, 2 columns - 1, k], initialised from N(0, 1); Linear out, with
/// bias.
///
/// Time O(B N^2 heads (k + dim / heads)), memory O(B N^2 heads), for N grid
/// positions.
class LambdaImpl : public torch::nn::Cloneable<LambdaImpl>, public MixerBase {
 public:
  explicit LambdaImpl(const LambdaOptions& o) : options(o) { reset(); }
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// x holds all positions of a grid with the rows and columns of the options.
  /// Padded positions are ignored, also in batch statistics, and their rows are
  /// 0 before `out`.
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  /// grid: {rows, columns}, at most those of the options.
  torch::Tensor forward_grid(
      const torch::Tensor& x, const std::vector<int64_t>& grid,
      const torch::Tensor& key_padding_mask = {}) override;
  /// Always throws c10::Error: the layer is not causal.
  ops::Stream start(int64_t B) const override;
  /// Always throws c10::Error.
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  /// Also merges the norms into the projections, with their evaluation
  /// statistics.
  void pack_for_inference() override;

  LambdaOptions options;
  PackedLinear query{nullptr}, key{nullptr}, value{nullptr};
  BatchNorm query_norm{nullptr}, value_norm{nullptr};
  torch::Tensor offsets;

 private:
  /// Returns q and v after their norms, and the key.
  std::array<torch::Tensor, 3> project(const torch::Tensor& x,
                                       const torch::Tensor& mask);
};
TORCH_MODULE(Lambda);

MixerKind lambda_kind();

}  // namespace aft::nn
