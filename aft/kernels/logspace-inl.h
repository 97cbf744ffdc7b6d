// The exact path of full and local, compiled once for each SIMD target: rows
// whose exponents are too far apart for products of exponentials, kTile
// channels at once, in double, each row relative to its own maximum:
//
//   lse_t = m + log sum_j exp(k_j + w_tj - m),  r_t = sum_j exp(...) v_j / ...
//   dv_j += a_t exp(k_j + w_tj - lse_t),  dk_j += the same (v_j - r_t)
#if defined(AFT_KERNELS_EXACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AFT_KERNELS_EXACT_INL_H_
#undef AFT_KERNELS_EXACT_INL_H_
#else
#define AFT_KERNELS_EXACT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "aft/kernels/kernels.h"
#include "aft/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

using ExactTag = TileTag<double>;
using ExactVec = hn::Vec<ExactTag>;

HWY_INLINE ExactVec LoadDouble(const float* from) {
  const ExactTag d;
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, ExactTag>(), from));
}
HWY_INLINE ExactVec LoadDouble(const double* from) {
  return hn::LoadU(ExactTag(), from);
}

inline constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// x, or 0 where it is -infinity: something to subtract.
HWY_INLINE ExactVec Finite(ExactVec x) {
  const ExactTag d;
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, kNothing)), x, hn::Zero(d));
}

/// The keys and values of a tile, row by row.
template <class T>
struct ExactKeys {
  ExactKeys(const Strip<T>& strip, int tile)
      : k(strip.k + tile * kTile),
        v(strip.v + tile * kTile),
        stride(strip.stride),
        lanes(strip.lanes(tile)),
        padded(strip.padded) {}

  bool takes_part(int64_t j) const { return !(padded && padded[j]); }
  /// Lanes from i on.
  ExactVec key(int64_t j, size_t i) const { return at(k, j, i); }
  ExactVec value(int64_t j, size_t i) const { return at(v, j, i); }
  /// to_j += x, as far as the lanes from i on exist; to: rows `stride` apart.
  void add(ExactVec x, int64_t j, size_t i, T* to) const {
    const ExactTag d;
    HWY_ALIGN double buffer[kTile];
    hn::Store(x, d, buffer);
    const size_t n = std::min(hn::Lanes(d), static_cast<size_t>(lanes) - i);
    for (size_t c = 0; c < n && i < static_cast<size_t>(lanes); ++c)
      to[j * stride + static_cast<int64_t>(i + c)] += static_cast<T>(buffer[c]);
  }

  const T *k, *v;
  int64_t stride;
  int lanes;
  const uint8_t* padded;

 private:
  ExactVec at(const T* from, int64_t j, size_t i) const {
    HWY_ALIGN T buffer[kTile];
    return LoadDouble(Widen(from + j * stride, lanes, buffer) + i);
  }
};

template <class T>
void ExactSums(const Band& band, const Strip<T>& strip, int tile,
               double* before, double* after) {
  const ExactTag d;
  const ExactKeys<T> keys(strip, tile);
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
    auto m = hn::Set(d, kNothing), n = hn::Zero(d), s = hn::Zero(d);
    const auto store = [&](double* to) {
      hn::Store(m, d, to + i), hn::Store(n, d, to + kTile + i);
      hn::Store(s, d, to + 2 * kTile + i);
    };
    const auto add = [&](int64_t j) {
      if (!keys.takes_part(j)) return;
      const auto k = keys.key(j, i), v = keys.value(j, i);
      const auto up = hn::Gt(k, m);
      const auto e = ExpV(d, hn::Neg(hn::Abs(hn::Sub(k, m))));
      n = hn::IfThenElse(up, hn::MulAdd(e, n, v), hn::MulAdd(e, v, n));
      s = hn::IfThenElse(up, hn::MulAdd(e, s, hn::Set(d, 1.)), hn::Add(e, s));
      m = hn::Max(m, k);
    };
    if (before) {
      store(before);
      for (int64_t j = 0; j < band.keys; ++j)
        add(j), store(before + (j + 1) * kExact);
    }
    if (after) {
      m = hn::Set(d, kNothing), n = s = hn::Zero(d);
      store(after + band.keys * kExact);
      for (int64_t j = band.keys - 1; j >= 0; --j)
        add(j), store(after + j * kExact);
    }
  }
}

template <class T>
void LogspaceRow(const Band& band, const Strip<T>& strip, int tile,
                 const double* before, const double* after, int64_t t,
                 const T* w, double* row) {
  const ExactTag d;
  const ExactKeys<T> keys(strip, tile);
  const int64_t lo = band.key_begin(t), hi = band.key_end(t + 1);
  const double* sides[2] = {before ? before + lo * kExact : nullptr,
                            after ? after + hi * kExact : nullptr};
  HWY_ALIGN double sums[kTile];
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
    auto m = hn::Set(d, kNothing), n = hn::Zero(d), s = hn::Zero(d);
    for (const double* side : sides)
      if (side) m = hn::Max(m, hn::Load(d, side + i));
    const auto exponent = [&](int64_t j) {
      return hn::Add(keys.key(j, i), hn::Set(d, static_cast<double>(w[j])));
    };
    for (int64_t j = lo; j < hi; ++j)
      if (keys.takes_part(j)) m = hn::Max(m, exponent(j));
    m = Finite(m);
    for (const double* side : sides) {
      if (!side) continue;
      const auto e = ExpV(d, hn::Sub(hn::Load(d, side + i), m));
      n = hn::MulAdd(e, hn::Load(d, side + kTile + i), n);
      s = hn::MulAdd(e, hn::Load(d, side + 2 * kTile + i), s);
    }
    for (int64_t j = lo; j < hi; ++j) {
      if (!keys.takes_part(j)) continue;
      const auto e = ExpV(d, hn::Sub(exponent(j), m));
      n = hn::MulAdd(e, keys.value(j, i), n);
      s = hn::Add(s, e);
    }
    hn::Store(m, d, row + kTile + i);
    hn::Store(Ratio(d, n, s), d, row + 2 * kTile + i);
    hn::Store(s, d, sums + i);
  }
  for (int c = 0; c < kTile; ++c) row[kTile + c] += std::log(sums[c]);
}

/// exp(k_j + w - lse) of the lanes from i on.
template <class T>
HWY_INLINE ExactVec ShareOf(const ExactKeys<T>& keys, int64_t j, size_t i,
                            double w, const double* row) {
  const ExactTag d;
  const auto x = hn::Add(keys.key(j, i), hn::Set(d, w));
  return hn::Mul(hn::Load(d, row + i),
                 ExpV(d, hn::Sub(x, hn::Load(d, row + kTile + i))));
}

template <class T>
void ExactWindow(const Band& band, const Strip<T>& strip, int tile, int64_t t,
                 const T* w, const double* row, T* dk, T* dv) {
  const ExactTag d;
  const ExactKeys<T> keys(strip, tile);
  for (int64_t j = band.key_begin(t); j < band.key_end(t + 1); ++j) {
    if (!keys.takes_part(j)) continue;
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      const auto a = ShareOf(keys, j, i, static_cast<double>(w[j]), row);
      const auto r = hn::Load(d, row + 2 * kTile + i);
      keys.add(a, j, i, dv);
      keys.add(hn::Mul(a, hn::Sub(keys.value(j, i), r)), j, i, dk);
    }
  }
}

template <class T>
void ExactDw(const Band& band, const Strip<T>& strip, int tile, int64_t t,
             const T* w, const double* row, T* dw) {
  const ExactTag d;
  const ExactKeys<T> keys(strip, tile);
  for (int64_t j = band.key_begin(t); j < band.key_end(t + 1); ++j) {
    if (!keys.takes_part(j)) continue;
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      const auto r = hn::Load(d, row + 2 * kTile + i);
      sum = hn::MulAdd(ShareOf(keys, j, i, static_cast<double>(w[j]), row),
                       hn::Sub(keys.value(j, i), r), sum);
    }
    dw[j] += static_cast<T>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
}

/// dv_j += exp(k_j) sum_t a_t exp(-lse_t) over rows whose window is beyond j,
/// and so on; the sums relative to the largest -lse_t.
template <class T>
void ExactOutside(const Band& band, const Strip<T>& strip, int tile,
                  const double* rows, T* dk, T* dv) {
  const ExactTag d;
  const ExactKeys<T> keys(strip, tile);
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
    const auto none = hn::Set(d, kNothing);
    auto m = none, a = hn::Zero(d), c = hn::Zero(d);
    const auto add = [&](int64_t t) {
      const double* row = rows + t * kExact + i;
      const auto own = hn::Load(d, row);
      const auto zero = hn::Eq(own, hn::Zero(d));
      if (hn::AllTrue(d, zero)) return;
      const auto x =
          hn::IfThenElse(zero, none, hn::Neg(hn::Load(d, row + kTile)));
      const auto old = m;
      m = hn::Max(m, x);
      const auto base = Finite(m), f = ExpV(d, hn::Sub(old, base)),
                 e = hn::Mul(own, ExpV(d, hn::Sub(x, base)));
      a = hn::MulAdd(a, f, e);
      c = hn::MulAdd(c, f, hn::Mul(e, hn::Load(d, row + 2 * kTile)));
    };
    const auto give = [&](int64_t j) {
      if (!keys.takes_part(j) || hn::AllTrue(d, hn::Eq(m, none))) return;
      const auto e = ExpV(d, hn::Add(keys.key(j, i), m));
      keys.add(hn::Mul(e, a), j, i, dv);
      keys.add(hn::Mul(e, hn::MulSub(keys.value(j, i), a, c)), j, i, dk);
    };
    for (int64_t j = band.keys - 1, t = band.rows - 1; j >= 0; --j) {
      while (t >= 0 && band.key_begin(t) > j) add(t--);
      give(j);
    }
    m = none, a = c = hn::Zero(d);
    for (int64_t j = 0, t = 0; !band.causal && j < band.keys; ++j) {
      while (t < band.rows && band.key_end(t + 1) <= j) add(t++);
      give(j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#endif
