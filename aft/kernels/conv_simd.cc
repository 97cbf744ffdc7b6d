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

/// Row t, padded with zeros to kPanel lanes.
template <class T>
HWY_INLINE const T* Row(const PanelChannels<const T>& x, int64_t t, T* buffer) {
  return Widen(x.at + t * x.stride, x.lanes, buffer);
}

/// Stores lanes [i, i + Lanes(d)) of row t, as far as they exist.
template <class D>
HWY_INLINE void StoreLanes(D d, hn::Vec<D> v, const PanelChannels<TOf<D>>& x,
                           int64_t t, size_t i) {
  StoreTile(d, v, x.at + t * x.stride, i, x.lanes);
}

/// Elements of rows of heads, for the channels of a panel of values.
template <class T>
class OfHeads {
 public:
  explicit OfHeads(const int64_t* index) : own_(!index) {
    if (own_) return;
    for (int i = 0; i < kPanel; ++i) {
      index_[i] = static_cast<Index>(index[i]);
      // The first or the last head of each vector; others need a gather.
      const size_t N = hn::Lanes(TileTag<T>()), first = i / N * N;
      second_[i] = index[i] != index[first] ? T(1) : T(0);
      if (second_[i] != 0 && index[i] != index[first + N - 1]) two_ = false;
    }
  }
  /// Lanes [i, i + Lanes(d)) of the channels. row: kPanel heads.
  HWY_INLINE hn::Vec<TileTag<T>> operator()(const T* row, size_t i) const {
    const TileTag<T> d;
    if (own_) return hn::LoadU(d, row + i);
    const auto index = hn::Load(hn::RebindToSigned<TileTag<T>>(), index_ + i);
    if constexpr (hn::MaxLanes(TileTag<T>()) == kPanel) {
      return hn::TableLookupLanes(hn::LoadU(d, row),
                                  hn::IndicesFromVec(d, index));
    } else if (two_) {
      const auto second = hn::Ne(hn::Load(d, second_ + i), hn::Zero(d));
      return hn::IfThenElse(second,
                            hn::Set(d, row[index_[i + hn::Lanes(d) - 1]]),
                            hn::Set(d, row[index_[i]]));
    } else {
      return hn::GatherIndex(d, row, index);
    }
  }

 private:
  using Index = hwy::MakeSigned<T>;
  const bool own_;
  bool two_ = true;
  HWY_ALIGN Index index_[kPanel];
  HWY_ALIGN T second_[kPanel];
};

template <class T>
void PackKeys(const ConvWindow& w, const PanelChannels<const T>& k,
              const uint8_t* padded, bool causal, bool window_only, T* e,
              int64_t* safe_rows) {
  const TileTag<T> d;
  constexpr T limit = FastPathLimits<T>::key,
              inf = std::numeric_limits<T>::infinity();
  HWY_ALIGN T buffer[kPanel], ref[kPanel] = {}, max[kPanel], min[kPanel];
  std::fill_n(safe_rows, kPanel, w.T());
  int64_t first = 0;
  while (padded && first < w.T() && padded[first]) ++first;
  // If not causal, the reference depends on all keys; 0 suffices if the largest
  // key is near it.
  const int64_t begin = causal ? first : 0,
                end = causal ? std::min(first + 1, w.T()) : w.T();
  for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
    auto most = hn::Set(d, -inf), least = hn::Set(d, inf);
    for (int64_t t = begin; t < end; ++t) {
      if (padded && padded[t]) continue;
      const auto x = hn::LoadU(d, Row(k, t, buffer) + i);
      most = hn::Max(x, most), least = hn::Min(x, least);
    }
    hn::Store(most, d, max + i);
    hn::Store(least, d, min + i);
  }
  for (int i = 0; i < k.lanes; ++i) {
    if (max[i] == -inf) {
      // Masked. A causal reference cannot come from a later key.
      if (causal && first < w.T()) safe_rows[i] = 0;
      continue;
    }
    const bool near = max[i] >= -limit && max[i] <= limit &&
                      !(window_only && min[i] < -limit);
    if (!near) ref[i] = window_only ? max[i] / 2 + min[i] / 2 : max[i];
    if (!(std::abs(ref[i]) <= std::numeric_limits<T>::max()))
      ref[i] = T(0), safe_rows[i] = 0;
  }
  for (int64_t t = 0; t < w.T(); ++t) {
    T* out = e + t * kPanel;
    if (padded && padded[t]) {
      std::fill_n(out, kPanel, T(0));
      continue;
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
  }
}

template <class T>
bool PackValues(int64_t n, const PanelChannels<const T>& v, const T* e,
                const int64_t* index, T* ev) {
  const TileTag<T> d;
  HWY_ALIGN T buffer[kPanel];
  const OfHeads<T> heads(index);
  auto safe = hn::Eq(hn::Zero(d), hn::Zero(d));
  for (int64_t t = 0; t < n; ++t) {
    const T* row = Row(v, t, buffer);
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const auto x = hn::LoadU(d, row + i);
      // Values beyond FastPathLimits take the log-space path, or are padded.
      // They are set to 0 here, since they could be multiplied by 0.
      const auto within =
          hn::Le(hn::Abs(x), hn::Set(d, FastPathLimits<T>::value));
      safe = hn::And(safe, within);
      hn::Store(
          hn::IfThenElseZero(within, hn::Mul(x, heads(e + t * kPanel, i))), d,
          ev + t * kPanel + i);
    }
  }
  return hn::AllTrue(d, safe);
}

template <class T>
void Finish(int64_t n, const T* num, const T* den, const int64_t* index,
            const PanelChannels<const T>& q, const PanelChannels<T>& y,
            const PanelChannels<T>& r) {
  const TileTag<T> d;
  HWY_ALIGN T buffer[kPanel];
  const OfHeads<T> heads(index);
  for (int64_t t = 0; t < n; ++t) {
    const T* gate = q.at ? Row(q, t, buffer) : nullptr;
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const auto above = hn::Load(d, num + t * kPanel + i),
                 below = heads(den + t * kPanel, i);
      const auto divisor =
          gate ? GateDivisor(d, hn::LoadU(d, gate + i)) : hn::Set(d, T(1));
      // The same y whether r is wanted or not: a block that backward recomputes
      // is bit-identical.
      const auto ratio = Ratio(d, above, below);
      if (r.at) StoreLanes(d, ratio, r, t, i);
      StoreLanes(d, hn::Div(ratio, divisor), y, t, i);
    }
  }
}

template <class T>
bool Rows(int64_t n, const PanelChannels<const T>& q,
          const PanelChannels<const T>& dy, const PanelChannels<const T>& r,
          const PanelChannels<const T>& den, const int64_t* index, T* a, T* ar,
          const PanelChannels<T>& dq) {
  const TileTag<T> d;
  HWY_ALIGN T qb[kPanel], gb[kPanel], rb[kPanel], db[kPanel];
  const OfHeads<T> heads(index);
  auto safe = hn::Eq(hn::Zero(d), hn::Zero(d));
  for (int64_t t = 0; t < n; ++t) {
    const T *qt = q.at ? Row(q, t, qb) : nullptr, *gt = Row(dy, t, gb),
            *rt = Row(r, t, rb), *dt = Row(den, t, db);
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      auto g = hn::LoadU(d, gt + i);
      const auto ratio = hn::LoadU(d, rt + i), below = heads(dt, i);
      const auto gate = qt ? hn::LoadU(d, qt + i) : hn::Zero(d);
      safe = hn::And(safe, WithinLimits(d, g, gate, ratio, below));
      if (qt) {
        auto gq = hn::Zero(d);
        g = GateGradient(d, g, gate, ratio, gq);
        StoreLanes(d, gq, dq, t, i);
      }
      const auto share = Ratio(d, g, below);
      hn::Store(share, d, a + t * kPanel + i);
      hn::Store(hn::Mul(share, ratio), d, ar + t * kPanel + i);
    }
  }
  return hn::AllTrue(d, safe);
}

template <class T>
void Values(int64_t n, const T* sums, const T* e, const int64_t* index,
            const PanelChannels<const T>& v, const PanelChannels<T>& dv,
            T* vdv) {
  const TileTag<T> d;
  HWY_ALIGN T buffer[kPanel];
  const OfHeads<T> heads(index);
  for (int64_t t = 0; t < n; ++t) {
    const T* vt = Row(v, t, buffer);
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const auto et = heads(e + t * kPanel, i);
      const auto g = hn::Mul(et, hn::Load(d, sums + t * kPanel + i));
      const auto gv = hn::Mul(g, hn::LoadU(d, vt + i));
      StoreLanes(d, g, dv, t, i);
      // A masked value may be NaN.
      hn::Store(hn::IfThenZeroElse(hn::Eq(et, hn::Zero(d)), gv), d,
                vdv + t * kPanel + i);
    }
  }
}

template <class T>
void AddToHeads(int64_t n, int lanes, const T* x, const int64_t* index, T* to) {
  const TileTag<T> d;
  const size_t N = hn::Lanes(d);
  const bool few = index[lanes - 1] - index[0] < 3;
  HWY_ALIGN T heads[kPanel];  // of the lanes; -1 beyond the last
  for (int i = 0; i < kPanel; ++i)
    heads[i] = i < lanes ? static_cast<T>(index[i]) : T(-1);
  for (int64_t t = 0; t < n; ++t, x += kPanel, to += kPanel) {
    for (int i = 0; !few && i < lanes; ++i) to[index[i]] += x[i];
    for (int64_t h = index[0]; few && h <= index[lanes - 1]; ++h) {
      auto sum = hn::Zero(d);
      for (size_t i = 0; i < kPanel; i += N) {
        const auto mine =
            hn::Eq(hn::Load(d, heads + i), hn::Set(d, static_cast<T>(h)));
        sum = hn::Add(sum, hn::IfThenElseZero(mine, hn::Load(d, x + i)));
      }
      to[h] += hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

template <class T>
void Keys(int64_t n, const T* vdv, const T* e, const T* sums,
          const PanelChannels<T>& dk) {
  const TileTag<T> d;
  for (int64_t t = 0; t < n; ++t) {
    for (size_t i = 0; i < kPanel; i += hn::Lanes(d)) {
      const int64_t at = t * kPanel + static_cast<int64_t>(i);
      StoreLanes(d,
                 hn::NegMulAdd(hn::Load(d, e + at), hn::Load(d, sums + at),
                               hn::Load(d, vdv + at)),
                 dk, t, i);
    }
  }
}

AFT_KERNEL_TABLES(ConvKernels, PackKeys<T>, PackValues<T>, Convolve<T>,
                  Correlate<T>, Finish<T>, Rows<T>, Values<T>, AddToHeads<T>,
                  Keys<T>)

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

AFT_EXPORT_KERNELS(ConvKernels, conv_kernels)

}  // namespace aft::kernels
#endif
