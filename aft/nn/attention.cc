#include "aft/nn/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "aft/ops/common.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

AttentionImpl::AttentionImpl(const AttentionOptions& o) : options(o) {
  reset();
}

void AttentionImpl::reset() {
  TORCH_CHECK(options.dim() >= 1, "Attention: dim must be 1 or more, got ",
              options.dim());
  TORCH_CHECK(options.heads() >= 1 && options.dim() % options.heads() == 0,
              "Attention: heads must divide dim = ", options.dim(), ", got ",
              options.heads());
  using torch::nn::Linear;
  qkv = register_module("qkv", Linear(options.dim(), 3 * options.dim()));
  out = register_module("out", Linear(options.dim(), options.dim()));
}

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
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options.dim(),
              "Attention: x must be [B, T, dim] = [B, T, ", options.dim(),
              "], got ", ops::shape_of(x));
  const int64_t T = x.size(1);
  const double scale =
      1 / std::sqrt(static_cast<double>(options.dim() / options.heads()));
  const torch::Tensor parts = split(qkv(x));
  torch::Tensor scores =
      at::matmul(parts[0] * scale, parts[1].transpose(-2, -1));
  torch::Tensor hidden;  // bool, true: not seen
  if (options.causal())
    hidden = at::ones({T, T}, x.options().dtype(at::kBool)).triu_(1);
  if (mask.defined()) {
    const torch::Tensor padded = mask.view({x.size(0), 1, 1, T});
    hidden = hidden.defined() ? at::logical_or(hidden, padded) : padded;
  }
  if (hidden.defined()) {
    scores =
        scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  torch::Tensor weights = scores.softmax(-1);
  // A row that sees nothing gives 0.
  if (mask.defined()) weights = weights.masked_fill(hidden, 0);
  const torch::Tensor y = at::matmul(weights, parts[2]);
  return out(y.transpose(1, 2).reshape(x.sizes()));
}

ops::Stream AttentionImpl::start(int64_t B) const {
  TORCH_CHECK(options.causal(), "Attention: streaming needs a causal layer");
  TORCH_CHECK(B >= 1, "Attention: a stream needs B of 1 or more, got ", B);
  ops::Stream stream;
  stream.ring_k = stream.ring_v = at::empty(
      {B, 0, options.dim()}, qkv->weight.options().requires_grad(false));
  return stream;
}

torch::Tensor AttentionImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(x.dim() == 2 && x.size(1) == options.dim(),
              "Attention: step takes x [B, dim] = [B, ", options.dim(),
              "], got ", ops::shape_of(x));
  const int64_t B = x.size(0), t = stream.position, D = options.dim(),
                H = options.heads();
  const torch::Tensor now =
      ops::affine(x, qkv->weight, qkv->bias).view({B, 3, D});
  if (t == stream.ring_k.size(1)) {  // twice the room, so that a step is O(t)
    const int64_t room = std::max<int64_t>(2 * t, 64);
    const auto grow = [&](const torch::Tensor& old) {
      torch::Tensor wide = at::empty({B, room, D}, old.options());
      wide.narrow(1, 0, t).copy_(old);
      return wide;
    };
    stream.ring_k = grow(stream.ring_k), stream.ring_v = grow(stream.ring_v);
  }
  stream.ring_k.select(1, t).copy_(now.select(1, 1));
  stream.ring_v.select(1, t).copy_(now.select(1, 2));
  stream.position = t + 1;
  const auto heads = [&](const torch::Tensor& ring) {
    return ring.narrow(1, 0, t + 1).view({B, t + 1, H, D / H}).transpose(1, 2);
  };
  const torch::Tensor q = now.select(1, 0).reshape({B, H, 1, D / H}) /
                          std::sqrt(static_cast<double>(D / H));
  const torch::Tensor weights =
      at::matmul(q, heads(stream.ring_k).transpose(-2, -1)).softmax(-1);
  return ops::affine(at::matmul(weights, heads(stream.ring_v)).reshape({B, D}),
                     out->weight, out->bias);
}

}  // namespace aft::nn
