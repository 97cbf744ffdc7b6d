// The two attention patterns of the Sparse Transformer (Child et al. 2019),
// each as a mixer. Per head,
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j,
// over j with |t - j| < stride (local), or (t - j) mod stride = 0 (strided); j
// <= t if causal.
#pragma once

#include <string>

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

}  // namespace aft::nn
