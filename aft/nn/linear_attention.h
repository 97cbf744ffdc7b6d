// The attention of the Linear Transformer. Per head, with phi(x) = elu(x) + 1,
//   y_t = phi(q_t)^T S_t / (phi(q_t)^T z_t + 1e-6),
//   S_t = sum_j phi(k_j) v_j^T, z_t = sum_j phi(k_j),
// over j <= t if causal. Linear in T. A stream keeps (S, z).
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "aft/nn/mixer.h"
#include "aft/nn/packed_linear.h"

namespace aft::nn {

struct LinearAttentionOptions {
  LinearAttentionOptions(int64_t dim, int64_t heads)
      : dim_(dim), heads_(heads) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
};

/// Parameters: Linear qkv [3 dim, dim], whose rows are [q; k; v], and out.
class LinearAttentionImpl : public torch::nn::Cloneable<LinearAttentionImpl>,
                            public Mixer {
 public:
  explicit LinearAttentionImpl(const LinearAttentionOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  torch::Tensor last_weight() const override { return out->weight; }
  void pack_for_inference() override;

  LinearAttentionOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  PackedLinear qkv_, out_;
};
TORCH_MODULE(LinearAttention);

}  // namespace aft::nn
