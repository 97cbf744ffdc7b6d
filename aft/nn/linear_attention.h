// The attention of the Linear Transformer. Per head, with phi(x) = elu(x) + 1,
//   y_t = phi(q_t)^T S_t / (phi(q_t)^T z_t + 1e-6),
//   S_t = sum_j phi(k_j) v_j^T, z_t = sum_j phi(k_j),
// over j <= t if causal. Linear in T. A stream keeps (S, z).
#pragma once

#include "aft/nn/heads.h"

namespace aft::nn {

struct LinearAttentionOptions {
  LinearAttentionOptions(int64_t dim, int64_t heads)
      : dim_(dim), heads_(heads) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
};

/// See QkvMixer for the parameters.
class LinearAttentionImpl : public torch::nn::Cloneable<LinearAttentionImpl>,
                            public QkvMixer {
 public:
  explicit LinearAttentionImpl(const LinearAttentionOptions& o) : options(o) {
    reset();
  }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;

  LinearAttentionOptions options;
};
TORCH_MODULE(LinearAttention);

MixerKind linear_attention_kind();

}  // namespace aft::nn
