#include "aft/nn/heads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "aft/ops/common.h"

namespace aft::nn {

void check_sequence(const char* name, const at::Tensor& x, int64_t dim) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == dim, name,
              ": x must be [B, T, dim] = [B, T, ", dim, "], got ",
              ops::shape_of(x));
}

void check_position(const char* name, const at::Tensor& x, int64_t dim) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == dim, name,
              ": step takes x [B, dim] = [B, ", dim, "], got ",
              ops::shape_of(x));
}

void check_heads(const char* name, int64_t dim, int64_t heads) {
  TORCH_CHECK(dim >= 1, name, ": dim must be 1 or more, got ", dim);
  TORCH_CHECK(heads >= 1 && dim % heads == 0, name,
              ": heads must divide dim = ", dim, ", got ", heads);
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(2, {heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& x) {
  return x.transpose(1, 2).flatten(2);
}

ops::Stream start_cache(const char* name, bool causal, int64_t B, int64_t k,
                        int64_t v, const at::TensorOptions& options) {
  TORCH_CHECK(causal, name, ": streaming needs a causal layer");
  TORCH_CHECK(B >= 1, name, ": a stream needs B of 1 or more, got ", B);
  ops::Stream stream;
  const at::TensorOptions plain = options.requires_grad(false);
  stream.ring_k = at::empty({B, 0, k}, plain);
  stream.ring_v = at::empty({B, 0, v}, plain);
  return stream;
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
