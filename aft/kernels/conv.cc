// AFT-conv: w depends on the place of j relative to t on a grid of one, two or
// three dimensions, per head. The paper's form, sum + conv(exp(w) - 1),
// cancels; here the window and the rest of the grid are disjoint sums:
//
//   num_t = sum_{taps} exp(w_tap) x_{t + tap} + sum_{j outside the window} x_j,
//   x = exp(k) v; den alike with exp(k).
#include "aft/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/conv.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "aft/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE const T* Row(const Lanes<const T>& x, int64_t t, T* buffer) {
  const T* from = x.at + t * x.stride;
  hwy::Prefetch(from + 8 * x.stride);
  if (x.lanes == kPanel) return from;
  for (int i = 0; i < kPanel; ++i) buffer[i] = i < x.lanes ? from[i] : T(0);
  return buffer;
}

template <class T>
HWY_INLINE void WriteRow(const Lanes<T>& x, int64_t t, const T* from) {
  T* to = x.at + t * x.stride;
  if (x.lanes == kPanel) {  // a size that the compiler knows: two stores
    memcpy(to, from, kPanel * sizeof(T));
  } else {
    memcpy(to, from, x.lanes * sizeof(T));
  }
}

/// Numbers of a row by index: those of the heads of kPanel channels.
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
HWY_INLINE void ForPanel(const Window& w, T* panel, const F& f) {
  std::fill(panel, panel + w.panel_size(), T(0));
  for (int64_t t = 0, line = 0; line < w.Z * w.Y; ++line) {
    T* row = panel + (line * w.padded() + w.left()) * kPanel;
    for (int64_t x = 0; x < w.X; ++x, ++t, row += kPanel) f(t, row);
  }
}

template <class T>
void PackKeys(const Window& w, const Lanes<const T>& k, const uint8_t* padded,
              bool causal, bool window_only, T* panel, const Lanes<T>& e,
              int64_t* safe_rows) {
  const PanelTag<T> d;
  constexpr T limit = Safe<T>::exponent,
              inf = std::numeric_limits<T>::infinity();
  HWY_ALIGN T buffer[kPanel], ref[kPanel] = {}, max[kPanel], min[kPanel];
  for (int i = 0; i < kPanel; ++i)
    max[i] = -inf, min[i] = inf, safe_rows[i] = w.T();
  int64_t first = 0;
  while (padded && first < w.T() && padded[first]) ++first;
  // Not causal: one look at all keys for the reference; 0 does where the
  // largest key is near it.
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
      auto bad = hn::Gt(x, bound);
      if (window_only) bad = hn::Or(bad, hn::Lt(x, hn::Neg(bound)));
      if (HWY_UNLIKELY(!hn::AllFalse(d, bad))) {
        for (size_t c = i; c < i + hn::Lanes(d); ++c) {
          const T distance = row[c] - ref[c];
          const bool beyond =
              distance > limit || (window_only && distance < -limit);
          if (beyond) safe_rows[c] = causal ? std::min(safe_rows[c], t) : 0;
        }
      }
      hn::Store(ExpV(d, hn::Min(x, bound)), d, out + i);
    }
    WriteRow(e, t, out);
  });
}

template <class T>
bool Pack(const Window& w, const Lanes<const T>& x, const T* y,
          int64_t y_stride, const int64_t* index, T* panel) {
  const PanelTag<T> d;
  HWY_ALIGN T buffer[kPanel], largest[kPanel] = {};
  Gather<T> others(y, y_stride, y ? index : nullptr);
  ForPanel(w, panel, [&](int64_t t, T* out) {
    const T *row = Row(x, t, buffer), *other = y ? others.row(t) : nullptr;
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      auto value = hn::LoadU(d, row + i);
      if (y) {
        // 0 stays 0: padded keys may carry any value.
        const auto scale = hn::LoadU(d, other + i);
        value = hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(d)), value);
        const auto most = hn::Max(hn::Load(d, largest + i), hn::Abs(value));
        hn::Store(most, d, largest + i);
        // What is beyond Safe takes the exact path: out, before it meets a 0.
        const auto beyond = hn::Gt(hn::Abs(value), hn::Set(d, Safe<T>::value));
        value = hn::IfThenZeroElse(beyond, hn::Mul(value, scale));
      }
      hn::Store(value, d, out + i);
    }
  });
  bool safe = true;
  for (T most : largest) safe = safe && most <= Safe<T>::value;
  return safe;
}

/// total of a range of panel rows that lie `step` apart.
template <class T, class D = PanelTag<T>>
HWY_INLINE hn::Vec<D> Total(D d, const T* from, int64_t n, int64_t step) {
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < n; ++i)
    sum = hn::Add(sum, hn::LoadU(d, from + i * step));
  return sum;
}

/// out[i] = sum of in[i'] over i' < i + lo (if before) and i' > i + hi (if
/// after).
template <class T>
HWY_INLINE void Complement(const T* in, int64_t n, int64_t lo, int64_t hi,
                           bool before, bool after, T* out) {
  const PanelTag<T> d;
  for (size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (int64_t i = 0, next = 0; i < n; ++i) {
      for (; before && next < std::min(n, i + lo); ++next)
        sum = hn::Add(sum, hn::LoadU(d, in + next * kPanel + c));
      hn::StoreU(sum, d, out + i * kPanel + c);
    }
    sum = hn::Zero(d);
    for (int64_t i = n - 1, next = n - 1; after && i >= 0; --i) {
      for (; next > std::max<int64_t>(-1, i + hi); --next)
        sum = hn::Add(sum, hn::LoadU(d, in + next * kPanel + c));
      hn::StoreU(hn::Add(sum, hn::LoadU(d, out + i * kPanel + c)), d,
                 out + i * kPanel + c);
    }
  }
}

/// acc[i] += sum_x weights[x] * panel[i + x] for kWide neighbours i: the inner
/// loop. 14 accumulators of 256 bits for kWide = 7.
template <int kWide, class T>
HWY_INLINE void Slide(const T* HWY_RESTRICT panel,
                      const T* HWY_RESTRICT weights, int64_t n,
                      T* HWY_RESTRICT acc) {
  const PanelTag<T> d;
  const size_t N = hn::Lanes(d);
  for (size_t c = 0; c < kPanel; c += 2 * N) {
    const size_t e = c + N < kPanel ? c + N : c;
    hn::Vec<PanelTag<T>> a[kWide], b[kWide];
    for (int i = 0; i < kWide; ++i) {
      a[i] = hn::Load(d, acc + i * kPanel + c);
      b[i] = hn::Load(d, acc + i * kPanel + e);
    }
    const T *p = panel, *w = weights;
    for (int64_t x = 0; x < n; ++x, p += kPanel, w += kPanel) {
      const auto wa = hn::Load(d, w + c);
      for (int i = 0; i < kWide; ++i) {
        a[i] = hn::MulAdd(wa, hn::Load(d, p + i * kPanel + c), a[i]);
      }
      const auto wb = hn::Load(d, w + e);
      for (int i = 0; i < kWide; ++i) {
        b[i] = hn::MulAdd(wb, hn::Load(d, p + i * kPanel + e), b[i]);
      }
    }
    for (int i = 0; i < kWide; ++i) {
      hn::Store(a[i], d, acc + i * kPanel + c);
      hn::Store(b[i], d, acc + i * kPanel + e);
    }
  }
}

template <int kWide, class T>
HWY_INLINE void ConvolveBy(const Window& w, const T* panel, const T* weights,
                           T* far, T* out) {
  const PanelTag<T> d;
  const size_t N = hn::Lanes(d);
  const int64_t line = w.padded() * kPanel;
  // The rest of the grid, inside out: of each line (far_x), of whole lines
  // (far_y), of whole slices (far_z).
  T *far_x = far, *far_y = far + w.T() * kPanel,
    *far_z = far_y + w.Z * w.Y * kPanel;
  const bool rest = w.before || w.after;
  if (rest) {
    for (int64_t l = 0; l < w.Z * w.Y; ++l) {
      const T* row = panel + l * line + w.left() * kPanel;
      Complement(row, w.X, w.lo, w.hi, w.before, w.after,
                 far_x + l * w.X * kPanel);
      // out is not needed yet: totals of lines, then of slices.
      for (size_t c = 0; c < kPanel; c += N)
        hn::Store(Total(d, row + c, w.X, kPanel), d, out + l * kPanel + c);
    }
    for (int64_t z = 0; z < w.Z; ++z) {
      Complement(out + z * w.Y * kPanel, w.Y, -w.reach_y, w.reach_y, true, true,
                 far_y + z * w.Y * kPanel);
      for (size_t c = 0; c < kPanel; c += N) {
        hn::Store(Total(d, out + z * w.Y * kPanel + c, w.Y, kPanel), d,
                  out + z * kPanel + c);
      }
    }
    Complement(out, w.Z, -w.reach_z, w.reach_z, true, true, far_z);
  }
  HWY_ALIGN T acc[kWide * kPanel];
  for (int64_t z = 0; z < w.Z; ++z) {
    const int64_t z0 = std::max<int64_t>(0, z - w.reach_z),
                  z1 = std::min(w.Z, z + w.reach_z + 1);
    for (int64_t y = 0; y < w.Y; ++y) {
      const int64_t y0 = std::max<int64_t>(0, y - w.reach_y),
                    y1 = std::min(w.Y, y + w.reach_y + 1);
      for (int64_t x = 0; x < w.X; x += kWide) {
        const int64_t n = std::min<int64_t>(kWide, w.X - x);
        for (size_t c = 0; c < kPanel; c += N) {
          auto start = hn::Zero(d);
          if (rest) {
            start = hn::LoadU(d, far_z + z * kPanel + c);
            for (int64_t i = z0; i < z1; ++i)
              start = hn::Add(start,
                              hn::LoadU(d, far_y + (i * w.Y + y) * kPanel + c));
          }
          for (int i = 0; i < kWide; ++i)
            hn::Store(start, d, acc + i * kPanel + c);
        }
        for (int64_t i = z0; i < z1; ++i) {
          for (int64_t j = y0; j < y1; ++j) {
            if (rest) {
              const T* others = far_x + ((i * w.Y + j) * w.X + x) * kPanel;
              for (int64_t c = 0; c < n * kPanel; c += N) {
                hn::Store(
                    hn::Add(hn::Load(d, acc + c), hn::LoadU(d, others + c)), d,
                    acc + c);
              }
            }
            const int64_t tap = ((i - z + w.reach_z) * (2 * w.reach_y + 1) + j -
                                 y + w.reach_y) *
                                w.width();
            Slide<kWide>(
                panel + (i * w.Y + j) * line + (w.left() + x + w.lo) * kPanel,
                weights + tap * kPanel, w.width(), acc);
          }
        }
        memcpy(out + ((z * w.Y + y) * w.X + x) * kPanel, acc,
               n * kPanel * sizeof(T));
      }
    }
  }
}

template <class T>
void Convolve(const Window& w, const T* panel, const T* weights, T* far,
              T* out) {
  // The block that wastes the least at the end of a line.
  const auto waste = [&](int64_t wide) { return (wide - w.X % wide) % wide; };
  if (waste(7) <= waste(6)) {
    ConvolveBy<7>(w, panel, weights, far, out);
  } else {
    ConvolveBy<6>(w, panel, weights, far, out);
  }
}

template <class T>
void Correlate(const Window& w, const T* panel, const T* rows, T* sums) {
  const PanelTag<T> d;
  const size_t N = hn::Lanes(d);
  const int64_t line = w.padded() * kPanel;
  for (int64_t z = 0; z < w.Z; ++z) {
    const int64_t z0 = std::max<int64_t>(0, z - w.reach_z),
                  z1 = std::min(w.Z, z + w.reach_z + 1);
    for (int64_t y = 0; y < w.Y; ++y) {
      const int64_t y0 = std::max<int64_t>(0, y - w.reach_y),
                    y1 = std::min(w.Y, y + w.reach_y + 1);
      const T* row = rows + (z * w.Y + y) * w.X * kPanel;
      for (int64_t i = z0; i < z1; ++i) {
        for (int64_t j = y0; j < y1; ++j) {
          const int64_t tap =
              ((i - z + w.reach_z) * (2 * w.reach_y + 1) + j - y + w.reach_y) *
              w.width();
          const T* from =
              panel + (i * w.Y + j) * line + (w.left() + w.lo) * kPanel;
          // Four taps at a time; each is a sum over the line.
          for (int64_t x = 0; x < w.width(); x += 4) {
            const int64_t n = std::min<int64_t>(4, w.width() - x);
            T* to = sums + (tap + x) * kPanel;
            for (size_t c = 0; c < kPanel; c += N) {
              auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d),
                   s3 = hn::Zero(d);
              const T *r = row + c, *p = from + x * kPanel + c;
              for (int64_t t = 0; t < w.X; ++t, r += kPanel, p += kPanel) {
                const auto a = hn::LoadU(d, r);
                s0 = hn::MulAdd(a, hn::Load(d, p), s0);
                s1 = hn::MulAdd(a, hn::Load(d, p + kPanel), s1);
                s2 = hn::MulAdd(a, hn::Load(d, p + 2 * kPanel), s2);
                s3 = hn::MulAdd(a, hn::Load(d, p + 3 * kPanel), s3);
              }
              hn::StoreU(hn::Add(hn::LoadU(d, to + c), s0), d, to + c);
              if (n > 1)
                hn::StoreU(hn::Add(hn::LoadU(d, to + kPanel + c), s1), d,
                           to + kPanel + c);
              if (n > 2)
                hn::StoreU(hn::Add(hn::LoadU(d, to + 2 * kPanel + c), s2), d,
                           to + 2 * kPanel + c);
              if (n > 3)
                hn::StoreU(hn::Add(hn::LoadU(d, to + 3 * kPanel + c), s3), d,
                           to + 3 * kPanel + c);
            }
          }
        }
      }
    }
  }
}

template <class T>
void Finish(int64_t n, const T* num, const T* den, int64_t den_stride,
            const int64_t* index, const Lanes<const T>& q, const Lanes<T>& y,
            const Lanes<T>& r) {
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
            const int64_t* index, const Lanes<const T>& v, const Lanes<T>& dv,
            const Lanes<T>& vdv) {
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
    const auto limit = hn::Set(d, Safe<T>::value);
    safe = safe && hn::AllTrue(d, hn::Le(hn::Abs(g), limit));
    if (q) {
      auto gq = hn::Zero(d);
      g = GateGradient(d, g, hn::LoadU(d, q + i), hn::LoadU(d, r + i), gq);
      hn::StoreU(gq, d, dq + i);
    }
    hn::StoreU(Ratio(d, g, hn::LoadU(d, den_of + i)), d, a + i);
  };
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + N <= n; i += N) some(d, i);
  for (; i < n; ++i) some(one, i);
  return safe;
}

const ConvKernels<float>& ConvTable_f32() {
  static constexpr ConvKernels<float> kTable = {
      PackKeys<float>, Pack<float>,   Convolve<float>,   Correlate<float>,
      Finish<float>,   Values<float>, RowGradient<float>};
  return kTable;
}
const ConvKernels<double>& ConvTable_f64() {
  static constexpr ConvKernels<double> kTable = {
      PackKeys<double>, Pack<double>,   Convolve<double>,   Correlate<double>,
      Finish<double>,   Values<double>, RowGradient<double>};
  return kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

HWY_EXPORT(ConvTable_f32);
HWY_EXPORT(ConvTable_f64);

template <>
const ConvKernels<float>& conv_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(ConvTable_f32)();
}
template <>
const ConvKernels<double>& conv_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(ConvTable_f64)();
}

}  // namespace aft::kernels
#endif
