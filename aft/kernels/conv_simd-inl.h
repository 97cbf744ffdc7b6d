// The inner loops of conv: a window that slides over panels of 16 channels, the
// sums outside of it, and its gradient.
#if defined(AFT_KERNELS_CONV_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AFT_KERNELS_CONV_SIMD_INL_H_
#undef AFT_KERNELS_CONV_SIMD_INL_H_
#else
#define AFT_KERNELS_CONV_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "aft/kernels/kernels.h"
#include "aft/kernels/math_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

/// Total of n panel rows that are `step` apart.
template <class T, class D = TileTag<T>>
HWY_INLINE hn::Vec<D> Total(D d, const T* from, int64_t n, int64_t step) {
  auto even = hn::Zero(d), odd = hn::Zero(d);  // two shorter chains
  int64_t i = 0;
  for (; i + 1 < n; i += 2) {
    even = hn::Add(even, hn::LoadU(d, from + i * step));
    odd = hn::Add(odd, hn::LoadU(d, from + (i + 1) * step));
  }
  if (i < n) even = hn::Add(even, hn::LoadU(d, from + i * step));
  return hn::Add(even, odd);
}

/// out[i] = sum of in[i'] over i' < i + lo (if before) and i' > i + hi (if
/// after); lo <= 0 <= hi.
template <class T>
HWY_INLINE void Complement(const T* in, int64_t n, int64_t lo, int64_t hi,
                           bool before, bool after, T* out) {
  const TileTag<T> d;
  const int64_t first = before ? std::min(n, 1 - lo) : n;
  std::fill(out, out + first * kPanel, T(0));
  for (size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (int64_t i = first; i < n; ++i) {
      sum = hn::Add(sum, hn::LoadU(d, in + (i + lo - 1) * kPanel + c));
      hn::StoreU(sum, d, out + i * kPanel + c);
    }
    sum = hn::Zero(d);
    for (int64_t i = n - 2 - hi; after && i >= 0; --i) {
      sum = hn::Add(sum, hn::LoadU(d, in + (i + hi + 1) * kPanel + c));
      hn::StoreU(hn::Add(sum, hn::LoadU(d, out + i * kPanel + c)), d,
                 out + i * kPanel + c);
    }
  }
}

// The sums of kOutputs (kWide, kMedium or kNarrow) neighbours stay in
// registers, for kSideBySide vectors of a panel row. Of 32 registers, 14 hold
// sums, 4 the weights of as many taps, and one the row that is used for all of
// them. Of 16, 2 x 7 hold sums and 2 the weights of one tap.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kSideBySide = 1, kTaps = 4, kWide = 14, kMedium = 12, kNarrow = 8;
#else
constexpr int kSideBySide = 2, kTaps = 1, kWide = 7, kMedium = 6, kNarrow = 5;
#endif
static_assert(kWide <= kConvOutputs && kMedium <= kWide && kNarrow <= kWide);

/// Sums of kOutputs neighbours. Loops over them are templates, so that GCC
/// keeps them in registers.
template <int kOutputs, class T>
struct LineSums {
  using V = hn::Vec<TileTag<T>>;
  V of[kSideBySide][kOutputs];

  /// All sums = start.
  template <int o = 0>
  HWY_INLINE void Set(const V (&start)[kSideBySide]) {
    for (int v = 0; v < kSideBySide; ++v) of[v][o] = start[v];
    if constexpr (o + 1 < kOutputs) Set<o + 1>(start);
  }
  /// Adds consecutive panel rows.
  template <int o = 0>
  HWY_INLINE void Add(const T* rows) {
    const TileTag<T> d;
    for (int v = 0; v < kSideBySide; ++v)
      of[v][o] = hn::Add(of[v][o], hn::Load(d, rows + v * hn::Lanes(d)));
    if constexpr (o + 1 < kOutputs) Add<o + 1>(rows + kPanel);
  }
  /// Stores the first n sums as panel rows, or adds them to these if kAdd.
  template <bool kAdd, int o = 0>
  HWY_INLINE void Store(int64_t n, T* rows) const {
    const TileTag<T> d;
    if (o >= n) return;
    for (int v = 0; v < kSideBySide; ++v) {
      T* to = rows + v * hn::Lanes(d);
      hn::Store(kAdd ? hn::Add(hn::Load(d, to), of[v][o]) : of[v][o], d, to);
    }
    if constexpr (o + 1 < kOutputs) Store<kAdd, o + 1>(n, rows + kPanel);
  }
};

/// sums[m - k] += weights[k] x, for all k with such a sum.
template <int m, int k, int kOutputs, int kCount, class V>
HWY_INLINE void AddProducts(const V (&weights)[kCount], V x,
                            V (&sums)[kOutputs]) {
  if constexpr (m >= k && m - k < kOutputs)
    sums[m - k] = hn::MulAdd(weights[k], x, sums[m - k]);
  if constexpr (k + 1 < kCount) AddProducts<m, k + 1>(weights, x, sums);
}

/// sums[i] += sum_{k < kCount} weights[k] line[at + i + k], over the rows
/// line[at + m], m < kOutputs + kCount - 1, whose bits m are set.
template <int m, int kOutputs, int kCount, class T>
HWY_INLINE void SlideBy(const T* line, int64_t at,
                        const hn::Vec<TileTag<T>> (&w)[kSideBySide][kCount],
                        uint64_t bits, LineSums<kOutputs, T>& sums) {
  const TileTag<T> d;
  if (HWY_LIKELY(bits & (uint64_t{1} << m))) {
    const T* row = line + (at + m) * kPanel;
    for (int v = 0; v < kSideBySide; ++v)
      AddProducts<m, 0>(w[v], hn::Load(d, row + v * hn::Lanes(d)), sums.of[v]);
  }
  if constexpr (m + 2 < kOutputs + kCount)
    SlideBy<m + 1>(line, at, w, bits, sums);
}

/// sums[i] += sum_{k < n} weights[k] line[at + i + k], over the rows whose bits
/// are set.
template <int kOutputs, int kCount, class T>
HWY_INLINE void SlideSome(const T* line, int64_t at, const T* weights,
                          int64_t n, uint64_t bits,
                          LineSums<kOutputs, T>& sums) {
  const TileTag<T> d;
  for (; n >= kCount; n -= kCount, bits >>= kCount) {
    hn::Vec<TileTag<T>> w[kSideBySide][kCount];
    for (int v = 0; v < kSideBySide; ++v) {
      for (int k = 0; k < kCount; ++k)
        w[v][k] = hn::Load(d, weights + k * kPanel + v * hn::Lanes(d));
    }
    SlideBy<0>(line, at, w, bits, sums);
    at += kCount, weights += kCount * kPanel;
  }
  if constexpr (kCount > 1)
    SlideSome<kOutputs, kCount - 1>(line, at, weights, n, bits, sums);
}

/// The inner loop of conv: sums[i] += sum_{k < n} weights[k] line[at + i + k],
/// over the rows of the line, of which there are `length`.
template <int kOutputs, class T>
HWY_INLINE void Slide(const T* line, int64_t at, int64_t length,
                      const T* weights, int64_t n,
                      LineSums<kOutputs, T>& sums) {
  constexpr int64_t kSome = 64 - kWide;  // a bit for each row
  for (int64_t k = 0; k < n; k += kSome) {
    const auto within = [](int64_t m) { return std::clamp<int64_t>(m, 0, 63); };
    const uint64_t from = ~uint64_t{0} << within(-at - k),
                   to = ~uint64_t{0} << within(length - at - k);
    SlideSome<kOutputs, kTaps>(line, at + k, weights + k * kPanel,
                               std::min(kSome, n - k), from & ~to, sums);
  }
}

/// Calls f(number of sums) with the number that wastes the least on n of them.
template <class F>
HWY_INLINE void ForWidth(int64_t n, const F& f) {
  const auto waste = [n](int64_t wide) { return (wide - n % wide) % wide; };
  const int64_t least =
      std::min({waste(kWide), waste(kMedium), waste(kNarrow)});
  if (waste(kWide) == least) {
    f(std::integral_constant<int, kWide>());
  } else if (waste(kMedium) == least) {
    f(std::integral_constant<int, kMedium>());
  } else {
    f(std::integral_constant<int, kNarrow>());
  }
}

/// The sums over the positions outside of the window, from the inside out:
/// those on the same lines (far_x [T]), other lines (far_y [Z Y]), other slices
/// (far_z [Z]). `totals`: scratch, at least [Z Y].
template <class T>
HWY_INLINE void SumOutside(const ConvWindow& w, const T* panel, T* far_x,
                           T* far_y, T* far_z, T* totals) {
  const TileTag<T> d;
  const size_t N = hn::Lanes(d);
  for (int64_t l = 0; l < w.Z * w.Y; ++l) {
    const T* row = panel + l * w.X * kPanel;
    Complement(row, w.X, w.lo, w.hi, w.before, w.after,
               far_x + l * w.X * kPanel);
    for (size_t c = 0; c < kPanel; c += N)
      hn::Store(Total(d, row + c, w.X, kPanel), d, totals + l * kPanel + c);
  }
  for (int64_t z = 0; z < w.Z; ++z) {  // from here on, totals are of slices
    Complement(totals + z * w.Y * kPanel, w.Y, -w.reach_y, w.reach_y, true,
               true, far_y + z * w.Y * kPanel);
    for (size_t c = 0; c < kPanel; c += N) {
      hn::Store(Total(d, totals + z * w.Y * kPanel + c, w.Y, kPanel), d,
                totals + z * kPanel + c);
    }
  }
  Complement(totals, w.Z, -w.reach_z, w.reach_z, true, true, far_z);
}

/// Prefetches rows [t, t + n) into the second-level cache: they are too many
/// for the first. A row may lie in two cache lines.
template <class T>
HWY_INLINE void Fetch(const NextChannels<T>& next, int64_t t, int64_t n) {
  for (const PanelChannels<const T>& x : next.of) {
    for (int64_t i = t; x.at && i < t + n; ++i) {
      __builtin_prefetch(x.at + i * x.stride, 0, 2);
      __builtin_prefetch(x.at + i * x.stride + x.lanes - 1, 0, 2);
    }
  }
}

template <int kOutputs, class T>
HWY_INLINE void ConvolveBy(const ConvWindow& w, const T* panel,
                           const T* weights, T* far, T* out,
                           const NextChannels<T>& next) {
  const TileTag<T> d;
  const size_t N = hn::Lanes(d);
  const int64_t line = w.X * kPanel;
  // Blocks of outputs read far_x beyond its end.
  T *far_x = far, *far_y = far + (w.T() + kConvOutputs) * kPanel,
    *far_z = far_y + w.Z * w.Y * kPanel;
  const bool rest = w.before || w.after;
  if (rest) {
    SumOutside(w, panel, far_x, far_y, far_z, /*totals=*/out);
    std::fill(far_y - kConvOutputs * kPanel, far_y, T(0));
  }
  for (int64_t z = 0; z < w.Z; ++z) {
    const int64_t z0 = std::max<int64_t>(0, z - w.reach_z),
                  z1 = std::min(w.Z, z + w.reach_z + 1);
    for (int64_t y = 0; y < w.Y; ++y) {
      const int64_t y0 = std::max<int64_t>(0, y - w.reach_y),
                    y1 = std::min(w.Y, y + w.reach_y + 1);
      for (int64_t x = 0; x < w.X; x += kOutputs) {
        const int64_t n = std::min<int64_t>(kOutputs, w.X - x);
        Fetch(next, (z * w.Y + y) * w.X + x, n);
        for (size_t c = 0; c < kPanel; c += kSideBySide * N) {
          hn::Vec<TileTag<T>> start[kSideBySide];
          for (int v = 0; v < kSideBySide; ++v) {
            start[v] = hn::Zero(d);
            if (!rest) continue;
            const T *slices = far_z + z * kPanel + c + v * N,
                    *lines = far_y + y * kPanel + c + v * N;
            start[v] = hn::Load(d, slices);
            for (int64_t i = z0; i < z1; ++i)
              start[v] =
                  hn::Add(start[v], hn::Load(d, lines + i * w.Y * kPanel));
          }
          LineSums<kOutputs, T> sums;
          sums.Set(start);
          for (int64_t i = z0; i < z1; ++i) {
            for (int64_t j = y0; j < y1; ++j) {
              const int64_t from = (i * w.Y + j) * line + c,
                            tap = ((i - z + w.reach_z) * (2 * w.reach_y + 1) +
                                   j - y + w.reach_y) *
                                  w.width();
              if (rest) sums.Add(far_x + from + x * kPanel);
              Slide(panel + from, x + w.lo, w.X, weights + tap * kPanel + c,
                    w.width(), sums);
            }
          }
          sums.template Store<false>(
              n, out + ((z * w.Y + y) * w.X + x) * kPanel + c);
        }
      }
    }
  }
}

template <class T>
void Convolve(const ConvWindow& w, const T* panel, const T* weights, T* far,
              T* out, const NextChannels<T>& next) {
  ForWidth(w.X, [&](auto wide) HWY_ATTR {
    ConvolveBy<wide()>(w, panel, weights, far, out, next);
  });
}

/// A line of the sums of taps is a convolution too: the rows slide over the
/// panel.
template <int kOutputs, class T>
HWY_INLINE void CorrelateBy(const ConvWindow& w, const T* panel, const T* rows,
                            T* sums_of_taps) {
  const TileTag<T> d;
  const size_t N = hn::Lanes(d);
  const int64_t line = w.X * kPanel;
  hn::Vec<TileTag<T>> zero[kSideBySide];
  for (int v = 0; v < kSideBySide; ++v) zero[v] = hn::Zero(d);
  T* to = sums_of_taps;
  for (int64_t dz = -w.reach_z; dz <= w.reach_z; ++dz) {
    for (int64_t dy = -w.reach_y; dy <= w.reach_y; ++dy) {
      for (int64_t tap = 0; tap < w.width(); tap += kOutputs) {
        const int64_t n = std::min<int64_t>(kOutputs, w.width() - tap);
        for (size_t c = 0; c < kPanel; c += kSideBySide * N) {
          LineSums<kOutputs, T> sums;
          sums.Set(zero);
          for (int64_t z = std::max<int64_t>(0, -dz);
               z < std::min(w.Z, w.Z - dz); ++z) {
            for (int64_t y = std::max<int64_t>(0, -dy);
                 y < std::min(w.Y, w.Y - dy); ++y) {
              Slide(panel + ((z + dz) * w.Y + y + dy) * line + c, w.lo + tap,
                    w.X, rows + (z * w.Y + y) * line + c, w.X, sums);
            }
          }
          sums.template Store<true>(n, to + tap * kPanel + c);
        }
      }
      to += w.width() * kPanel;
    }
  }
}

template <class T>
void Correlate(const ConvWindow& w, const T* panel, const T* rows, T* sums) {
  ForWidth(w.width(), [&](auto wide) HWY_ATTR {
    CorrelateBy<wide()>(w, panel, rows, sums);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#endif
