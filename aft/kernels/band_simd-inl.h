// The inner loops of full and local: the banded product, the sums outside of
// the band, the packing of weights, and the products of rows of panels.
#if defined(AFT_KERNELS_BAND_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AFT_KERNELS_BAND_SIMD_INL_H_
#undef AFT_KERNELS_BAND_SIMD_INL_H_
#else
#define AFT_KERNELS_BAND_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "aft/kernels/kernels.h"
#include "aft/kernels/math_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

// Rows of a panel, 32 KB in float, that blocks are multiplied by before the
// next rows, and blocks that share them. (With 128 rows, nothing is faster.)
constexpr int64_t kDepth = 256;
constexpr int kGroup = 8;
// Rows that are packed for all tiles of a strip before the next rows, and how
// many rows ahead of use to prefetch.
constexpr int64_t kTogether = 8, kAhead = 32;

/// acc[i] += sum_j w[j, i] panel[j] for kBlockRows rows i: 12 vectors of
/// sums, the inner loop of full and local.
template <class T>
HWY_INLINE void Multiply(const T* HWY_RESTRICT panel, const T* HWY_RESTRICT w,
                         int64_t n, T* HWY_RESTRICT acc) {
  const TileTag<T> d;
  const size_t N = hn::Lanes(d);
  for (size_t c = 0; c < kBandPanel; c += 2 * N) {
    const size_t e = c + N;
    hn::Vec<TileTag<T>> a[kBlockRows], b[kBlockRows];
    for (int i = 0; i < kBlockRows; ++i) {
      a[i] = hn::Load(d, acc + i * kBandPanel + c);
      b[i] = hn::Load(d, acc + i * kBandPanel + e);
    }
    const T *p = panel, *x = w;
    for (int64_t j = 0; j < n; ++j, p += kBandPanel, x += kBlockRows) {
      const auto pa = hn::Load(d, p + c), pb = hn::Load(d, p + e);
      for (int i = 0; i < kBlockRows; ++i) {
        const auto s = hn::Set(d, x[i]);
        a[i] = hn::MulAdd(s, pa, a[i]);
        b[i] = hn::MulAdd(s, pb, b[i]);
      }
    }
    for (int i = 0; i < kBlockRows; ++i) {
      hn::Store(a[i], d, acc + i * kBandPanel + c);
      hn::Store(b[i], d, acc + i * kBandPanel + e);
    }
  }
}

/// Sums of a group of blocks for all tiles of a strip.
template <class T>
struct Sums {
  static constexpr int64_t kSize = kGroup * kBlockRows * kBandPanel;
  HWY_ALIGN T of[kStrip / kTile][kSize];
};

/// The product of one tile over blocks [b0, b1), at most kGroup, each over the
/// inner items [begin(b), end(b)): acc gets kBandPanel sums for each of their
/// items.
template <class T, class Begin, class End>
HWY_INLINE void Product(int64_t b0, int64_t b1, const Begin& begin,
                        const End& end, const Panel<T>& panel, int tile,
                        const T* packed, int64_t width, T* acc) {
  const TileTag<T> d;
  const int64_t skip = tile * panel.step;
  for (int64_t b = b0; b < b1; ++b) {
    for (size_t c = 0; c < kBandPanel; c += hn::Lanes(d)) {
      auto sum = panel.before
                     ? hn::LoadU(d, panel.before + skip + b * kBandPanel + c)
                     : hn::Zero(d);
      if (panel.after)
        sum =
            hn::Add(sum, hn::LoadU(d, panel.after + skip + b * kBandPanel + c));
      for (int i = 0; i < kBlockRows; ++i)
        hn::Store(sum, d, acc + ((b - b0) * kBlockRows + i) * kBandPanel + c);
    }
  }
  const int64_t first = begin(b0), last = end(b1 - 1);
  const int64_t depth =
      width <= 2 * kDepth ? std::max<int64_t>(last - first, 1) : kDepth;
  for (int64_t j = first; j < last; j += depth) {
    for (int64_t b = b0; b < b1; ++b) {
      const int64_t from = begin(b), lo = std::max(j, from),
                    hi = std::min(j + depth, end(b));
      if (lo < hi) {
        Multiply(panel.rows + skip + lo * kBandPanel,
                 packed + ((b - b0) * width + lo - from) * kBlockRows, hi - lo,
                 acc + (b - b0) * kBlockRows * kBandPanel);
      }
    }
  }
}

/// before[b] = sum of the panel rows below begin(b), after[b] = those from
/// end(b) on.
template <class T, class Begin, class End>
HWY_INLINE void Outside(int64_t n_blocks, int64_t n, const Begin& begin,
                        const End& end, const T* panel, T* before, T* after) {
  const TileTag<T> d;
  for (size_t c = 0; c < kBandPanel; c += hn::Lanes(d)) {
    const auto add = [&](hn::Vec<TileTag<T>> total, int64_t from, int64_t to) {
      auto part = hn::Zero(
          d);  // block by block: a shorter chain of roundings than row by row
      for (int64_t j = from; j < to; ++j)
        part = hn::Add(part, hn::Load(d, panel + j * kBandPanel + c));
      return hn::Add(total, part);
    };
    auto sum = hn::Zero(d);
    for (int64_t b = 0, j = 0; before && b < n_blocks; ++b) {
      const int64_t to = begin(b);
      if (to > j) sum = add(sum, j, to), j = to;
      hn::StoreU(sum, d, before + b * kBandPanel + c);
    }
    sum = hn::Zero(d);
    for (int64_t b = n_blocks - 1, j = n; after && b >= 0; --b) {
      const int64_t from = end(b);
      if (from < j) sum = add(sum, from, j), j = from;
      hn::StoreU(sum, d, after + b * kBandPanel + c);
    }
  }
}

/// One block of the packed weights. row(i, a, b) sets [a, b), the inner items
/// that have a bias with outer item i, and returns a pointer p with the bias of
/// inner item x at p[x]. far_before and far_after: the weights on either side
/// of [a, b).
template <class T, class Row>
HWY_INLINE bool PackBlock(int64_t lo, int64_t hi, T far_before, T far_after,
                          const Row& row, T* packed, int i) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kChunk = 64;
  HWY_ALIGN T buffer[kChunk];
  const auto limit = hn::Set(d, FastPathLimits<T>::bias);
  int64_t a = lo, b = lo;
  const T* w = row(&a, &b);
  a = std::min(std::max(a, lo), hi), b = std::min(std::max(b, a), hi);
  bool safe = true;
  for (int64_t x = lo; x < a; ++x)
    packed[(x - lo) * kBlockRows + i] = far_before;
  for (int64_t x = b; x < hi; ++x)
    packed[(x - lo) * kBlockRows + i] = far_after;
  for (int64_t x = a; x < b; x += kChunk) {
    const int64_t n = std::min(kChunk, b - x);
    for (int64_t y = 0; y < kChunk; ++y) buffer[y] = y < n ? w[x + y] : T(0);
    for (size_t y = 0; y < kChunk; y += hn::Lanes(d)) {
      const auto wv = hn::Load(d, buffer + y);
      safe = safe && hn::AllTrue(d, hn::Le(hn::Abs(wv), limit));
      hn::Store(ExpV(d, hn::Min(hn::Max(wv, hn::Neg(limit)), limit)), d,
                buffer + y);
    }
    for (int64_t y = 0; y < n; ++y)
      packed[(x + y - lo) * kBlockRows + i] = buffer[y];
  }
  return safe;
}

template <class T>
void PackWeights(const Band& band, int64_t b0, int64_t b1, const T* w,
                 int64_t ld, int64_t t0, int64_t j0, int64_t width, T* packed,
                 uint8_t* unsafe) {
  const T far = band.window_only ? T(0) : T(1),
          later = band.causal ? T(0) : far;
  for (int64_t block = b0; block < b1; ++block, packed += width * kBlockRows) {
    const int64_t t_end = std::min((block + 1) * kBlockRows, band.rows);
    const int64_t lo = band.key_begin(block * kBlockRows),
                  hi = band.key_end(t_end);
    for (int i = 0; i < kBlockRows; ++i) {
      const int64_t t = block * kBlockRows + i;
      const bool real = t < band.rows;
      const auto row = [&](int64_t* a, int64_t* b) {
        if (real) *a = band.key_begin(t), *b = band.key_end(t + 1);
        return w + (t - t0) * ld - j0;
      };
      const bool safe = PackBlock(lo, hi, real ? far : T(0),
                                  real ? later : T(0), row, packed, i);
      if (unsafe && real) unsafe[t] = !safe;
    }
  }
}

template <class T>
void PackWeightsTransposed(const Band& band, int64_t b0, int64_t b1, const T* w,
                           int64_t ld, int64_t t0, int64_t j0, int64_t width,
                           T* packed) {
  const T far = band.window_only ? T(0) : T(1),
          earlier = band.causal ? T(0) : far;
  for (int64_t block = b0; block < b1; ++block, packed += width * kBlockRows) {
    const int64_t j_end = std::min((block + 1) * kBlockRows, band.keys);
    const int64_t lo = band.row_begin(block * kBlockRows),
                  hi = band.row_end(j_end);
    for (int i = 0; i < kBlockRows; ++i) {
      const int64_t j = block * kBlockRows + i;
      const bool real = j < band.keys;
      const auto row = [&](int64_t* a, int64_t* b) {
        if (real) *a = band.row_begin(j), *b = band.row_end(j + 1);
        return w + (j - j0) * ld - t0;
      };
      PackBlock(lo, hi, real ? earlier : T(0), real ? far : T(0), row, packed,
                i);
    }
  }
}

/// out[i] = the sum of the lanes of s_i.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void FourSums(D d, V s0, V s1, V s2, V s3, TOf<D>* out) {
#if !HWY_HAVE_SCALABLE && HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(TOf<D>) == 4) {  // 4 lanes in each block of 128 bits
    const hn::Repartition<uint64_t, D> d64;
    const auto pairs = [&](V a, V b) {
      return hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b),
                                      hn::InterleaveUpper(d, a, b)));
    };
    const auto x = pairs(s0, s1), y = pairs(s2, s3);
    const auto all = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, x, y)),
                             hn::BitCast(d, hn::InterleaveUpper(d64, x, y)));
    const hn::FixedTag<TOf<D>, 4> four;
    const auto halves = [](auto half, auto x) HWY_ATTR {
      return hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x));
    };
    if constexpr (hn::MaxLanes(D()) == 16) {
      hn::StoreU(halves(four, halves(hn::FixedTag<TOf<D>, 8>(), all)), four,
                 out);
    } else if constexpr (hn::MaxLanes(D()) == 8) {
      hn::StoreU(halves(four, all), four, out);
    } else {
      hn::StoreU(all, four, out);
    }
    return;
  }
#endif
  out[0] = hn::GetLane(hn::SumOfLanes(d, s0));
  out[1] = hn::GetLane(hn::SumOfLanes(d, s1));
  out[2] = hn::GetLane(hn::SumOfLanes(d, s2));
  out[3] = hn::GetLane(hn::SumOfLanes(d, s3));
}

/// sums[i, j] = sum over tiles of the products of `size` values of rows[i] and
/// keys[j], for 3 rows and 4 keys.
template <class T>
HWY_INLINE void Dots(const T* const* row, const T* const* key, int64_t tiles,
                     int64_t row_step, int64_t key_step, int64_t size,
                     T* sums) {
  const TileTag<T> d;
  auto s00 = hn::Zero(d), s01 = hn::Zero(d), s02 = hn::Zero(d),
       s03 = hn::Zero(d);
  auto s10 = hn::Zero(d), s11 = hn::Zero(d), s12 = hn::Zero(d),
       s13 = hn::Zero(d);
  auto s20 = hn::Zero(d), s21 = hn::Zero(d), s22 = hn::Zero(d),
       s23 = hn::Zero(d);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const T *r0 = row[0] + tile * row_step, *r1 = row[1] + tile * row_step,
            *r2 = row[2] + tile * row_step;
    const T *k0 = key[0] + tile * key_step, *k1 = key[1] + tile * key_step;
    const T *k2 = key[2] + tile * key_step, *k3 = key[3] + tile * key_step;
    for (int64_t c = 0; c < size; c += hn::Lanes(d)) {
      const auto a0 = hn::LoadU(d, r0 + c), a1 = hn::LoadU(d, r1 + c),
                 a2 = hn::LoadU(d, r2 + c);
      auto x = InRegister(hn::LoadU(d, k0 + c));
      s00 = hn::MulAdd(a0, x, s00), s10 = hn::MulAdd(a1, x, s10),
      s20 = hn::MulAdd(a2, x, s20);
      x = InRegister(hn::LoadU(d, k1 + c));
      s01 = hn::MulAdd(a0, x, s01), s11 = hn::MulAdd(a1, x, s11),
      s21 = hn::MulAdd(a2, x, s21);
      x = InRegister(hn::LoadU(d, k2 + c));
      s02 = hn::MulAdd(a0, x, s02), s12 = hn::MulAdd(a1, x, s12),
      s22 = hn::MulAdd(a2, x, s22);
      x = InRegister(hn::LoadU(d, k3 + c));
      s03 = hn::MulAdd(a0, x, s03), s13 = hn::MulAdd(a1, x, s13),
      s23 = hn::MulAdd(a2, x, s23);
    }
  }
  FourSums(d, s00, s01, s02, s03, sums);
  FourSums(d, s10, s11, s12, s13, sums + 4);
  FourSums(d, s20, s21, s22, s23, sums + 8);
}

template <class T>
void Outer(int64_t m, int64_t n, int64_t r, const T* a, const T* b, T* out,
           int64_t ld) {
  const int64_t whole = r / kTile * kTile;
  constexpr int64_t kKeys =
      16;  // stay in the cache while they are used by all rows
  for (int64_t some = 0; some < n; some += kKeys) {
    const int64_t end = std::min(some + kKeys, n);
    for (int64_t i = 0; i < m; i += 3) {
      const T* row[3];
      for (int x = 0; x < 3; ++x) row[x] = a + std::min(i + x, m - 1) * r;
      for (int64_t j = some; j < end; j += 4) {
        const T* key[4];
        for (int x = 0; x < 4; ++x) key[x] = b + std::min(j + x, n - 1) * r;
        T sums[12];
        Dots(row, key, 1, 0, 0, whole, sums);
        for (int64_t y = 0; y < 3 && i + y < m; ++y) {
          for (int64_t x = 0; x < 4 && j + x < n; ++x) {
            T sum = sums[y * 4 + x];
            for (int64_t c = whole; c < r; ++c) sum += row[y][c] * key[x][c];
            out[(i + y) * ld + j + x] = sum;
          }
        }
      }
    }
  }
}

template <class T>
void Dw(const Band& band, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
        int64_t tiles, const T* keys_panel, int64_t key_step,
        const T* rows_panel, int64_t row_step, T* dw, int64_t ld) {
  // As many panel rows of keys as stay in the first-level cache while they are
  // used by all rows of the block.
  constexpr int64_t kTiles = 8, kKeys = 16;
  for (int64_t tile = 0; tile < tiles; tile += kTiles) {
    const int64_t n = std::min(kTiles, tiles - tile);
    for (int64_t some = j0; some < j1; some += kKeys) {
      for (int64_t t = t0; t < t1; t += 3) {
        const T* row[3];
        for (int i = 0; i < 3; ++i)
          row[i] = rows_panel + tile * row_step +
                   std::min(t + i, t1 - 1) * kBandPanel;
        const int64_t lo = std::max(some, band.key_begin(t)),
                      hi = std::min(std::min(some + kKeys, j1),
                                    band.key_end(std::min(t + 3, t1)));
        for (int64_t j = lo; j < hi; j += 4) {
          const T* key[4];
          for (int i = 0; i < 4; ++i)
            key[i] = keys_panel + tile * key_step +
                     std::min(j + i, hi - 1) * kBandPanel;
          T sums[12];
          Dots(row, key, n, row_step, key_step, kBandPanel, sums);
          T* to = dw + (t - t0) * ld + j - j0;
          const bool whole = j + 4 <= hi;  // sizes known to the compiler
          for (int64_t y = 0; y < 3 && t + y < t1; ++y, to += ld) {
            for (int64_t x = 0; whole && x < 4; ++x) to[x] += sums[y * 4 + x];
            for (int64_t x = 0; !whole && j + x < hi; ++x)
              to[x] += sums[y * 4 + x];
          }
        }
      }
    }
  }
}

template <class T>
void ScaleDw(const Band& band, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
             const T* w, T* dw, int64_t ld) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> d1;
  const auto scale = [&](auto tag, T* to, const T* from) {
    const auto limit = hn::Set(tag, FastPathLimits<T>::bias);
    const auto e = ExpV(
        tag, hn::Min(hn::Max(hn::LoadU(tag, from), hn::Neg(limit)), limit));
    hn::StoreU(hn::Mul(e, hn::LoadU(tag, to)), tag, to);
  };
  for (int64_t t = t0; t < t1; ++t) {
    T* to = dw + (t - t0) * ld - j0;
    const T* from = w + (t - t0) * ld - j0;
    const int64_t lo = std::max(j0, band.key_begin(t)),
                  hi = std::max(lo, std::min(j1, band.key_end(t + 1)));
    std::fill(to + j0, to + std::min(lo, j1), T(0));
    std::fill(to + std::min(hi, j1), to + j1, T(0));
    int64_t j = lo;
    for (; j + static_cast<int64_t>(hn::Lanes(d)) <= hi; j += hn::Lanes(d))
      scale(d, to + j, from + j);
    for (; j < hi; ++j) scale(d1, to + j, from + j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#endif
