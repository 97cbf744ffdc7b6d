#include "aft/nn/heads.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "aft/ops/common.h"

namespace aft::nn {

void MixerBase::set_shape(const Shape& shape) {
  const auto& [name, dim, heads, causal] = shape;
  TORCH_CHECK(dim >= 1, name, ": dim must be 1 or more, got ", dim);
  TORCH_CHECK(heads >= 1 && dim % heads == 0, name,
              ": heads must divide dim = ", dim, ", got ", heads);
  shape_ = shape;
}

PackedLinear MixerBase::linear(const char* name, int64_t outputs, bool bias) {
  const auto layer = std::make_shared<torch::nn::LinearImpl>(
      torch::nn::LinearOptions(shape_.dim, outputs).bias(bias));
  return named_children().contains(name) ? replace_module(name, layer)
                                         : register_module(name, layer);
}

void MixerBase::check_sequence(const torch::Tensor& x) const {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == shape_.dim, shape_.name,
              ": x must be [B, T, dim] = [B, T, ", shape_.dim, "], got ",
              ops::shape_of(x));
}

void MixerBase::check_position(const torch::Tensor& x) const {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == shape_.dim, shape_.name,
              ": step: x must be [B, dim] = [B, ", shape_.dim, "], got ",
              ops::shape_of(x));
}

void MixerBase::check_mask(const torch::Tensor& mask,
                           const torch::Tensor& x) const {
  TORCH_CHECK(!mask.defined() || (mask.scalar_type() == at::kBool &&
                                  mask.sizes() == x.sizes().slice(0, 2)),
              shape_.name, ": key_padding_mask must be bool [B, T] = [",
              x.size(0), ", ", x.size(1), "], got ", mask.scalar_type(), " ",
              ops::shape_of(mask));
}

void MixerBase::check_stream(int64_t B) const {
  TORCH_CHECK(shape_.causal, shape_.name,
              ": streaming requires a causal layer");
  TORCH_CHECK(B >= 1, shape_.name, ": start: B must be 1 or more, got ", B);
}

ops::Stream MixerBase::start_cache(int64_t B, int64_t k, int64_t v) const {
  check_stream(B);
  ops::Stream stream;
  const auto plain = out->weight.options().requires_grad(false);
  stream.ring_k = at::empty({B, 0, k}, plain);
  stream.ring_v = at::empty({B, 0, v}, plain);
  return stream;
}

void MixerBase::pretty_print(std::ostream& stream) const {
  stream << shape_.name << "(dim=" << shape_.dim << ", heads=" << shape_.heads
         << details() << detail("causal", shape_.causal) << ")";
}

void QkvMixer::make_layers(const Shape& shape) {
  set_shape(shape);
  qkv = linear("qkv", 3 * shape.dim);
  out = linear("out", shape.dim);
}

std::string detail(const char* key, bool value) {
  return std::string(", ") + key + (value ? "=true" : "=false");
}

std::string detail(const char* key, int64_t value) {
  return std::string(", ") + key + "=" + std::to_string(value);
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(2, {heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& x) {
  return x.transpose(1, 2).flatten(2);
}

void check_fits(const char* name, const ops::Stream& stream,
                const at::Tensor& x) {
  const at::Tensor& kept =
      stream.ring_v.defined() ? stream.ring_v : stream.sums;
  TORCH_CHECK(kept.defined(), name, ": the stream was not started");
  TORCH_CHECK(kept.size(0) == x.size(0), name,
              ": the stream has B = ", kept.size(0), ", got ", x.size(0));
  TORCH_CHECK(
      kept.scalar_type() == x.scalar_type() && kept.device() == x.device(),
      name, ": the stream is ", kept.scalar_type(), " on ", kept.device(),
      ", got ", x.scalar_type(), " on ", x.device());
}

void remember(ops::Stream& stream, const at::Tensor& k, const at::Tensor& v) {
  const int64_t t = stream.position;
  const auto append = [t](at::Tensor& ring, const at::Tensor& x) {
    if (t == ring.size(1)) {  // doubles the capacity, so that a step is O(t)
      at::Tensor wide =
          at::empty({ring.size(0), std::max<int64_t>(2 * t, 64), ring.size(2)},
                    ring.options());
      wide.narrow(1, 0, t).copy_(ring);
      ring = wide;
    }
    ring.select(1, t).copy_(x);
  };
  append(stream.ring_k, k), append(stream.ring_v, v);
  stream.position = t + 1;
}

at::Tensor masked_keys(int64_t T, bool causal, const at::Tensor& padded,
                       const at::Device& device) {
  at::Tensor hidden;
  if (causal)
    hidden =
        at::ones({T, T}, at::TensorOptions(at::kBool).device(device)).triu_(1);
  if (!padded.defined()) return hidden;
  const at::Tensor keys = padded.view({padded.size(0), 1, 1, T});
  return hidden.defined() ? at::logical_or(hidden, keys) : keys;
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& hidden, bool empty_rows) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  at::Tensor scores = at::matmul(q * scale, k.transpose(-2, -1));
  if (hidden.defined())
    scores =
        scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  at::Tensor weights = scores.softmax(-1);
  if (empty_rows) weights = weights.masked_fill(hidden, 0);
  return at::matmul(weights, v);
}

at::Tensor attend_one(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, int64_t heads,
                      const at::Tensor& hidden) {
  return join_heads(attend(split_heads(q.unsqueeze(1), heads),
                           split_heads(k, heads), split_heads(v, heads), hidden,
                           /*empty_rows=*/false))
      .squeeze(1);
}

}  // namespace aft::nn
