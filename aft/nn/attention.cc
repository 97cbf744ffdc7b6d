#include "aft/nn/attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "aft/nn/heads.h"

namespace aft::nn {

AttentionImpl::AttentionImpl(const AttentionOptions& o) : options(o) {
  reset();
}

void AttentionImpl::reset() {
  check_heads("Attention", options.dim(), options.heads());
  using torch::nn::Linear;
  qkv = register_module("qkv", Linear(options.dim(), 3 * options.dim()));
  out = register_module("out", Linear(options.dim(), options.dim()));
  qkv_ = out_ = PackedLinear();
}

void AttentionImpl::pack_for_inference() { qkv_.pack(qkv), out_.pack(out); }

void AttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "Attention(dim=" << options.dim() << ", heads=" << options.heads()
         << ", causal=" << (options.causal() ? "true" : "false") << ")";
}

/// [B, T, 3 dim] to [3, B, heads, T, dim / heads].
torch::Tensor AttentionImpl::split(const torch::Tensor& x) const {
  return x
      .view({x.size(0), x.size(1), 3, options.heads(),
             options.dim() / options.heads()})
      .permute({2, 0, 3, 1, 4});
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x,
                                     const torch::Tensor& mask) {
  check_sequence("Attention", x, options.dim());
  const int64_t T = x.size(1);
  const torch::Tensor parts = split(qkv_(qkv, x));
  torch::Tensor hidden;  // bool, true: masked
  if (options.causal())
    hidden = at::ones({T, T}, x.options().dtype(at::kBool)).triu_(1);
  if (mask.defined()) {
    const torch::Tensor padded = mask.view({x.size(0), 1, 1, T});
    hidden = hidden.defined() ? at::logical_or(hidden, padded) : padded;
  }
  // If all keys of a row are padded, it sees none.
  const torch::Tensor y =
      attend(parts[0], parts[1], parts[2], hidden, mask.defined());
  return out_(out, join_heads(y));
}

torch::Tensor AttentionImpl::weights(const torch::Tensor& x) const {
  check_sequence("Attention", x, options.dim());
  TORCH_CHECK(!options.causal(), "Attention: weights of a causal layer");
  const torch::Tensor parts = split(qkv_(qkv, x));
  const double scale =
      std::sqrt(static_cast<double>(options.dim() / options.heads()));
  return at::matmul(parts[0], parts[1].transpose(-1, -2))
      .div_(scale)
      .softmax(-1);
}

ops::Stream AttentionImpl::start(int64_t B) const {
  return start_cache("Attention", options.causal(), B, options.dim(),
                     options.dim(), qkv->weight.options());
}

torch::Tensor AttentionImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position("Attention", x, options.dim());
  const auto now = qkv_(qkv, x).chunk(3, 1);
  remember(stream, now[1], now[2]);
  const int64_t seen = stream.position;
  return out_(out,
              attend_one(now[0], stream.ring_k.narrow(1, 0, seen),
                         stream.ring_v.narrow(1, 0, seen), options.heads()));
}

}  // namespace aft::nn
