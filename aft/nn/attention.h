// Multi-head self attention, the paper's baseline. Per head,
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j.
// Uses T x T elements per head. Streaming keeps all keys and values (a KV
// cache).
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "aft/nn/mixer.h"
#include "aft/nn/packed_linear.h"

namespace aft::nn {

struct AttentionOptions {
  AttentionOptions(int64_t dim, int64_t heads) : dim_(dim), heads_(heads) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
};

/// Parameters: Linear qkv [3 dim, dim], whose rows are [q; k; v], and out.
class AttentionImpl : public torch::nn::Cloneable<AttentionImpl>, public Mixer {
 public:
  explicit AttentionImpl(const AttentionOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  torch::Tensor last_weight() const override { return out->weight; }
  void pack_for_inference() override;
  /// The attention weights softmax(q k^T / sqrt(dim / heads)) for x [B, T,
  /// dim]: [B, heads, T, T]. Not for causal attention.
  torch::Tensor weights(const torch::Tensor& x) const;

  AttentionOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  torch::Tensor split(const torch::Tensor& x) const;

  PackedLinear qkv_, out_;
};
TORCH_MODULE(Attention);

}  // namespace aft::nn
