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
#include <cstring>

#include "aft/kernels/kernels.h"
#include "aft/kernels/math_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

/// Total of n panel rows that are `step` apart.
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
HWY_INLINE void ConvolveBy(const ConvWindow& w, const T* panel,
                           const T* weights, T* far, T* out) {
  const PanelTag<T> d;
  const size_t N = hn::Lanes(d);
  const int64_t line = w.padded() * kPanel;
  // The positions outside of the window, from the inside out: those on the same
  // lines (far_x), other lines (far_y), other slices (far_z).
  T *far_x = far, *far_y = far + w.T() * kPanel,
    *far_z = far_y + w.Z * w.Y * kPanel;
  const bool rest = w.before || w.after;
  if (rest) {
    for (int64_t l = 0; l < w.Z * w.Y; ++l) {
      const T* row = panel + l * line + w.left() * kPanel;
      Complement(row, w.X, w.lo, w.hi, w.before, w.after,
                 far_x + l * w.X * kPanel);
      // out is still free: it holds totals of lines, then of slices.
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
void Convolve(const ConvWindow& w, const T* panel, const T* weights, T* far,
              T* out) {
  // The block size that wastes the least at the end of a line.
  const auto waste = [&](int64_t wide) { return (wide - w.X % wide) % wide; };
  if (waste(7) <= waste(6)) {
    ConvolveBy<7>(w, panel, weights, far, out);
  } else {
    ConvolveBy<6>(w, panel, weights, far, out);
  }
}

template <class T>
void Correlate(const ConvWindow& w, const T* panel, const T* rows, T* sums) {
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

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#endif
