#include "aft/ops/stream.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "aft/kernels/kernels.h"
#include "aft/ops/autocast.h"
#include "aft/ops/common.h"

namespace aft::ops {
namespace {

int64_t window_of(const Stream& s) {
  return s.ring_k.defined() ? s.ring_k.size(1) : 0;
}

template <class T>
void step_kernels(Stream& s, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v, const at::Tensor& w, bool window_only,
                  at::Tensor& y) {
  const int64_t B = k.size(0), D = k.size(1), window = window_of(s),
                t = s.position;
  const auto& kernel = kernels::simple_kernels<T>();
  for (int64_t b = 0; b < B; ++b) {
    const auto row = [&](const at::Tensor& x) {
      return x.defined() ? x.data_ptr<T>() + b * D : nullptr;
    };
    T* sums = s.sums.data_ptr<T>() + b * 3 * D;
    if (window == 0) {
      kernel.step(D, t == 0, row(q), row(k), row(v), sums, row(y));
      continue;
    }
    T *ring_k = s.ring_k.data_ptr<T>() + b * window * D,
      *ring_v = s.ring_v.data_ptr<T>() + b * window * D;
    const int64_t slot = t % window, count = std::min(t + 1, window);
    if (t >= window && !window_only) {
      kernel.step(D, t == window, nullptr, ring_k + slot * D, ring_v + slot * D,
                  sums, nullptr);
    }
    std::copy_n(row(k), D, ring_k + slot * D);
    std::copy_n(row(v), D, ring_v + slot * D);
    const bool past = t >= window && !window_only;
    kernel.window_step({D, count, t + 1 - count, window, past, row(q), ring_k,
                        ring_v, sums, w.defined() ? w.data_ptr<T>() : nullptr,
                        w.defined() && w.dim() == 2, row(y)});
  }
}

/// The step in ATen calls, for devices without kernels. sums: [m, n, d],
/// relative to the largest key m.
void step_composite(Stream& s, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const at::Tensor& w, bool window_only,
                    at::Tensor& y) {
  const int64_t window = window_of(s), t = s.position;
  const auto absorb = [&](const at::Tensor& key, const at::Tensor& value,
                          bool fresh) {
    const at::Tensor m = s.sums.select(1, 0), n = s.sums.select(1, 1),
                     d = s.sums.select(1, 2);
    if (fresh) m.copy_(key), n.zero_(), d.zero_();
    const at::Tensor top = at::maximum(m, key), keep = at::exp(m - top),
                     take = at::exp(key - top);
    n.mul_(keep).add_(take * value);
    d.mul_(keep).add_(take);
    m.copy_(top);
  };
  at::Tensor num, den;
  if (window == 0) {
    absorb(k, v, t == 0);
    num = s.sums.select(1, 1), den = s.sums.select(1, 2);
  } else {
    const int64_t slot = t % window, count = std::min(t + 1, window);
    const bool past = t >= window && !window_only;
    if (past)
      absorb(s.ring_k.select(1, slot).clone(), s.ring_v.select(1, slot),
             t == window);
    s.ring_k.select(1, slot).copy_(k);
    s.ring_v.select(1, slot).copy_(v);
    const auto ordered = [&](const at::Tensor& ring) {
      return t < window ? ring.narrow(1, 0, count)
                        : at::roll(ring, -((t + 1) % window), 1);
    };
    at::Tensor x = ordered(s.ring_k);
    if (w.defined()) x = x + (w.dim() == 1 ? w.unsqueeze(1) : w);
    at::Tensor top = x.amax(1);
    if (past) top = at::maximum(top, s.sums.select(1, 0));
    const at::Tensor e = at::exp(x - top.unsqueeze(1));
    num = (e * ordered(s.ring_v)).sum(1), den = e.sum(1);
    if (past) {
      const at::Tensor f = at::exp(s.sums.select(1, 0) - top);
      num = num + f * s.sums.select(1, 1), den = den + f * s.sums.select(1, 2);
    }
  }
  y.copy_(num / den);
  if (q.defined()) y.mul_(at::sigmoid(q));
}

}  // namespace

int64_t Stream::bytes() const {
  int64_t total = 0;
  for (const at::Tensor* x : {&sums, &ring_k, &ring_v}) {
    if (x->defined()) total += static_cast<int64_t>(x->nbytes());
  }
  return total;
}

Stream start_stream(int64_t B, int64_t D, int64_t window,
                    const at::TensorOptions& options) {
  const at::ScalarType type = at::typeMetaToScalarType(options.dtype());
  TORCH_CHECK(type == at::kFloat || type == at::kDouble,
              "aft::start_stream: the type must be float or double, got ",
              type);
  TORCH_CHECK(B >= 1 && D >= 1 && window >= 0,
              "aft::start_stream: B and D must be 1 or more and window 0 or "
              "more, got ",
              B, ", ", D, " and ", window);
  Stream s;
  s.sums = at::zeros({B, 3, D}, options);
  if (window > 0)
    s.ring_k = at::zeros({B, window, D}, options),
    s.ring_v = at::zeros({B, window, D}, options);
  return s;
}

at::Tensor step(Stream& stream, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& w, bool window_only) {
  const at::NoGradGuard no_grad;
  const NoAutocast no_autocast;
  TORCH_CHECK(stream.sums.defined(), "aft::step: the stream was not started");
  const int64_t B = stream.sums.size(0), D = stream.sums.size(2);
  const at::ScalarType type = stream.sums.scalar_type();
  const at::Device device = stream.sums.device();
  for (const at::Tensor* ring : {&stream.ring_k, &stream.ring_v})
    TORCH_CHECK(!ring->defined() ||
                    (ring->scalar_type() == type && ring->device() == device),
                "aft::step: the stream must have one type and device, got ",
                type, " on ", device, " and ", ring->scalar_type(), " on ",
                ring->device());
  const auto converted = [&](const char* name, const at::Tensor& x) {
    TORCH_CHECK(x.device() == device, "aft::step: ", name,
                " must be on the device of the stream, ", device, ", got ",
                x.device());
    TORCH_CHECK(x.is_floating_point() &&
                    at::promote_types(x.scalar_type(), type) == type,
                "aft::step: ", name,
                " must have the type of the stream or a narrower one, ", type,
                ", got ", x.scalar_type());
    return x.to(type).contiguous();
  };
  const auto checked = [&](const char* name, const at::Tensor& x) {
    TORCH_CHECK(x.defined() && x.dim() == 2 && x.size(0) == B && x.size(1) == D,
                "aft::step: ", name, " must be [B, D] = [", B, ", ", D,
                "], got ", x.defined() ? shape_of(x) : "nothing");
    return converted(name, x);
  };
  const at::Tensor query = q.defined() ? checked("q", q) : q,
                   key = checked("k", k), value = checked("v", v);
  const int64_t count = std::min(stream.position + 1, window_of(stream));
  at::Tensor bias = w;
  if (w.defined()) {
    TORCH_CHECK((w.dim() == 1 || (w.dim() == 2 && w.size(1) == D)) &&
                    w.size(0) == count,
                "aft::step: w must be [count] or [count, D] with count = ",
                count, " and D = ", D, ", got ", shape_of(w));
    bias = converted("w", w);
  }
  at::Tensor y = at::empty({B, D}, stream.sums.options());
  if (stream.sums.device().is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES(type, "aft::step", [&] {
      step_kernels<scalar_t>(stream, query, key, value, bias, window_only, y);
    });
  } else {
    step_composite(stream, query, key, value, bias, window_only, y);
  }
  ++stream.position;
  return y;
}

}  // namespace aft::ops
