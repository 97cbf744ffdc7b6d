#include "aft/nn/attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "aft/nn/heads.h"
#include "aft/nn/tiled_attention.h"

namespace aft::nn {

MixerKind attention_kind() {
  MixerKind kind =
      mixer_kind<AttentionImpl>("attention", [](const MixerOptions& o) {
        return AttentionOptions(o.dim, 8).causal(o.causal);
      });
  kind.attention = kind.grows = true;
  kind.kept_channels = 11;
  return kind;
}

void AttentionImpl::reset() {
  make_layers({"Attention", options.dim(), options.heads(), options.causal()});
}

/// [B, T, 3 dim] to [3, B, heads, T, dim / heads].
torch::Tensor AttentionImpl::split(const torch::Tensor& x) const {
  return x.view({x.size(0), x.size(1), 3, options.heads(), head_dim()})
      .permute({2, 0, 3, 1, 4});
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x,
                                     const torch::Tensor& mask) {
  check_sequence(x);
  check_mask(mask, x);
  return out(attend_all(qkv(x), options.heads(), options.causal(), mask));
}

torch::Tensor AttentionImpl::weights(const torch::Tensor& x) const {
  check_sequence(x);
  TORCH_CHECK(!options.causal(),
              "Attention: weights() requires a layer that is not causal");
  const torch::Tensor parts = split(qkv(x));
  const double scale = std::sqrt(static_cast<double>(head_dim()));
  return at::matmul(parts[0], parts[1].transpose(-1, -2))
      .div_(scale)
      .softmax(-1);
}

torch::Tensor AttentionImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position(x);
  const auto now = project(x);
  check_fits(shape_.name, stream, now[2]);
  remember(stream, now[1], now[2]);
  const int64_t seen = stream.position;
  return out(attend_one(now[0], stream.ring_k.narrow(1, 0, seen),
                        stream.ring_v.narrow(1, 0, seen), options.heads()));
}

}  // namespace aft::nn
