// Multi-head self attention, the paper's reference:
//   y_t = sum_j softmax_j(q_t . k_j / sqrt(dim / heads)) v_j, head by head.
// T x T numbers a head; streaming keeps all keys and values (a KV cache).
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "aft/nn/folded.h"
#include "aft/nn/mixer.h"

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
  void fold() override;
  /// What is looked at: softmax(q k^T / sqrt(dim / heads)) of x [B, T, dim],
  /// [B, heads, T, T]; not for causal attention.
  torch::Tensor weights(const torch::Tensor& x) const;

  AttentionOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  torch::Tensor split(const torch::Tensor& x) const;

  Folded qkv_, out_;
};
TORCH_MODULE(Attention);

}  // namespace aft::nn
