// AFT-conv: w depends on the position of j relative to t on a grid of one, two
// or three dimensions, per head. The paper's form, sum + conv(exp(w) - 1),
// suffers from cancellation; here the window and the rest of the grid are
// disjoint sums:
//   num_t = sum_{taps} exp(w_tap) x_{t + tap} + sum_{j outside the window} x_j,
//   x = exp(k) v; den likewise with x = exp(k).
#include "aft/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/conv_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "aft/kernels/conv_simd-inl.h"
#include "aft/kernels/math_simd-inl.h"
#include "aft/kernels/simd_dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE const T* Row(const PanelChannels<const T>& x, int64_t t, T* buffer) {
  const T* from = x.at + t * x.stride;
  hwy::Prefetch(from + 8 * x.stride);
  if (x.lanes == kPanel) return from;
  for (int i = 0; i < kPanel; ++i) buffer[i] = i < x.lanes ? from[i] : T(0);
  return buffer;
}

template <class T>
HWY_INLINE void WriteRow(const PanelChannels<T>& x, int64_t t, const T* from) {
  T* to = x.at + t * x.stride;
  if (x.lanes == kPanel) {  // a size known to the compiler: two stores
    memcpy(to, from, kPanel * sizeof(T));
  } else {
    memcpy(to, from, x.lanes * sizeof(T));
  }
}

/// Elements of a row by index: those of the heads of kPanel channels.
template <class T>
class Gather {
 public:
  Gather(const T* from, int64_t stride, const int64_t* index)
      : from_(from),
        stride_(stride),
        index_(index),
        consecutive_(index && index[kPanel - 1] - index[0] == kPanel - 1) {}

  HWY_INLINE const T* row(int64_t t) {
    const T* at = from_ + t * stride_;
    if (consecutive_) return at + index_[0];
    for (int i = 0; i < kPanel; ++i) buffer_[i] = at[index_[i]];
    return buffer_;
  }

 private:
  const T* from_;
  int64_t stride_;
  const int64_t* index_;
  bool consecutive_;
  HWY_ALIGN T buffer_[kPanel];
};

/// Calls f(t, panel row) for each position, after zeroing the panel.
template <class T, class F>
HWY_INLINE void ForPanel(const ConvWindow& w, T* panel, const F& f) {
  std::fill(panel, panel + w.panel_size(), T(0));
  for (int64_t t = 0, line = 0; line < w.Z * w.Y; ++line) {
    T* row = panel + (line * w.padded() + w.left()) * kPanel;
    for (int64_t x = 0; x < w.X; ++x, ++t, row += kPanel) f(t, row);
  }
}

template <class T>
void PackKeys(const ConvWindow& w, const PanelChannels<const T>& k,
              const uint8_t* padded, bool causal, bool window_only, T* panel,
              const PanelChannels<T>& e, int64_t* safe_rows) {
  const PanelTag<T> d;
  constexpr T limit = FastPathLimits<T>::key,
              inf = std::numeric_limits<T>::infinity();
  HWY_ALIGN T buffer[kPanel], ref[kPanel] = {}, max[kPanel], min[kPanel];
  for (int i = 0; i < kPanel; ++i)
    max[i] = -inf, min[i] = inf, safe_rows[i] = w.T();
  int64_t first = 0;
  while (padded && first < w.T() && padded[first]) ++first;
  // If not causal, the reference depends on all keys; 0 suffices if the largest
  // key is near it.
  for (int64_t t = causal ? first : 0;
       t < (causal ? std::min(first + 1, w.T()) : w.T()); ++t) {
    if (padded && padded[t]) continue;
    const T* row = Row(k, t, buffer);
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const auto x = hn::LoadU(d, row + i);
      hn::Store(hn::Max(x, hn::Load(d, max + i)), d, max + i);
      hn::Store(hn::Min(x, hn::Load(d, min + i)), d, min + i);
    }
  }
  for (int i = 0; i < k.lanes; ++i) {
    if (max[i] == -inf) continue;
    const bool near = max[i] >= -limit && max[i] <= limit &&
                      !(window_only && min[i] < -limit);
    if (!near) ref[i] = window_only ? max[i] / 2 + min[i] / 2 : max[i];
    if (!(std::abs(ref[i]) <= std::numeric_limits<T>::max()))
      ref[i] = T(0), safe_rows[i] = 0;
  }
  ForPanel(w, panel, [&](int64_t t, T* out) {
    if (padded && padded[t]) {
      WriteRow(e, t, out);
      return;
    }
    const T* row = Row(k, t, buffer);
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const auto x = hn::Sub(hn::LoadU(d, row + i), hn::Load(d, ref + i));
      const auto bound = hn::Set(d, limit);
      auto bad = hn::Not(hn::Le(x, bound));  // also NaN
      if (window_only) bad = hn::Or(bad, hn::Lt(x, hn::Neg(bound)));
      if (HWY_UNLIKELY(!hn::AllFalse(d, bad))) {
        for (size_t c = i; c < i + hn::Lanes(d); ++c) {
          const T distance = row[c] - ref[c];
          const bool beyond =
              !(distance <= limit) || (window_only && distance < -limit);
          if (beyond) safe_rows[c] = causal ? std::min(safe_rows[c], t) : 0;
        }
      }
      hn::Store(ExpV(d, hn::Min(x, bound)), d, out + i);
    }
    WriteRow(e, t, out);
  });
}

template <class T>
bool Pack(const ConvWindow& w, const PanelChannels<const T>& x, const T* y,
          int64_t y_stride, const int64_t* index, T* panel) {
  const PanelTag<T> d;
  HWY_ALIGN T buffer[kPanel];
  Gather<T> others(y, y_stride, y ? index : nullptr);
  bool safe = true;
  ForPanel(w, panel, [&](int64_t t, T* out) {
    const T *row = Row(x, t, buffer), *other = y ? others.row(t) : nullptr;
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      auto value = hn::LoadU(d, row + i);
      if (y) {
        // Values beyond FastPathLimits take the log-space path, or are padded.
        // They are set to 0 here, since they could be multiplied by 0.
        const auto within =
            hn::Le(hn::Abs(value), hn::Set(d, FastPathLimits<T>::value));
        if (HWY_UNLIKELY(!hn::AllTrue(d, within))) safe = false;
        value =
            hn::IfThenElseZero(within, hn::Mul(value, hn::LoadU(d, other + i)));
      }
      hn::Store(value, d, out + i);
    }
  });
  return safe;
}

template <class T>
void Finish(int64_t n, const T* num, const T* den, int64_t den_stride,
            const int64_t* index, const PanelChannels<const T>& q,
            const PanelChannels<T>& y, const PanelChannels<T>& r) {
  const PanelTag<T> d;
  HWY_ALIGN T buffer[kPanel], ratio[kPanel], gated[kPanel];
  Gather<T> dens(den, den_stride, index);
  for (int64_t t = 0; t < n; ++t) {
    const T *below = dens.row(t), *gate = q.at ? Row(q, t, buffer) : nullptr;
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const auto x =
          Ratio(d, hn::LoadU(d, num + t * kPanel + i), hn::LoadU(d, below + i));
      hn::Store(x, d, ratio + i);
      hn::Store(gate ? hn::Div(x, GateDivisor(d, hn::LoadU(d, gate + i))) : x,
                d, gated + i);
    }
    WriteRow(y, t, gated);
    if (r.at) WriteRow(r, t, ratio);
  }
}

template <class T>
void Values(int64_t n, const T* sums, const T* e, int64_t e_stride,
            const int64_t* index, const PanelChannels<const T>& v,
            const PanelChannels<T>& dv, const PanelChannels<T>& vdv) {
  const PanelTag<T> d;
  HWY_ALIGN T buffer[kPanel], first[kPanel], second[kPanel];
  Gather<T> es(e, e_stride, index);
  for (int64_t t = 0; t < n; ++t) {
    const T *et = es.row(t), *vt = Row(v, t, buffer);
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const auto ei = hn::LoadU(d, et + i);
      const auto g = hn::Mul(ei, hn::LoadU(d, sums + t * kPanel + i));
      const auto gv = hn::Mul(g, hn::LoadU(d, vt + i));
      hn::Store(g, d, first + i);
      hn::Store(hn::IfThenZeroElse(hn::Eq(ei, hn::Zero(d)), gv), d, second + i);
    }
    WriteRow(dv, t, first);
    WriteRow(vdv, t, second);
  }
}

template <class T>
bool RowGradient(int64_t n, const T* q, const T* dy, const T* r,
                 const T* den_of, T* a, T* dq) {
  bool safe = true;
  const auto some = [&](auto d, int64_t i) {
    auto g = hn::LoadU(d, dy + i);
    const auto rt = hn::LoadU(d, r + i), den = hn::LoadU(d, den_of + i);
    const auto qt = q ? hn::LoadU(d, q + i) : hn::Zero(d);
    safe = safe && hn::AllTrue(d, WithinLimits(d, g, qt, rt, den));
    if (q) {
      auto gq = hn::Zero(d);
      g = GateGradient(d, g, qt, rt, gq);
      hn::StoreU(gq, d, dq + i);
    }
    hn::StoreU(Ratio(d, g, den), d, a + i);
  };
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + N <= n; i += N) some(d, i);
  for (; i < n; ++i) some(one, i);
  return safe;
}

AFT_KERNEL_TABLES(ConvKernels, PackKeys<T>, Pack<T>, Convolve<T>, Correlate<T>,
                  Finish<T>, Values<T>, RowGradient<T>)

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

AFT_EXPORT_KERNELS(ConvKernels, conv_kernels)

}  // namespace aft::kernels
#endif
