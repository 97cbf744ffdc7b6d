// Multi-head self attention, the paper's baseline. Per head,
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j.
// Streaming keeps all keys and values (a KV cache).
#pragma once

#include "aft/nn/heads.h"

namespace aft::nn {

struct AttentionOptions {
  AttentionOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
};

/// See QkvMixer for the parameters.
///
/// Time O(T T dim), memory O(T dim), since backward recomputes the weights.
/// Differentiable once.
class AttentionImpl : public torch::nn::Cloneable<AttentionImpl>,
                      public QkvMixer {
 public:
  explicit AttentionImpl(const AttentionOptions& o) : options(o) { reset(); }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  /// The attention weights softmax(q k^T / sqrt(dim / heads)) for x [B, T,
  /// dim]: [B, heads, T, T]. Throws c10::Error if causal.
  torch::Tensor weights(const torch::Tensor& x) const;

  AttentionOptions options;

 private:
  torch::Tensor split(const torch::Tensor& x) const;
};
TORCH_MODULE(Attention);

MixerKind attention_kind();

}  // namespace aft::nn
