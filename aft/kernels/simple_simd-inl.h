// The state of AFT-simple: a running maximum m and the sums n = sum exp(k - m)
// v, d = sum exp(k - m). Of the two exponentials in the textbook form, exp(m -
// m') and exp(k - m'), one is always exp(0), so exp(-|k - m|) and a select
// suffice.
#if defined(AFT_KERNELS_SIMPLE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AFT_KERNELS_SIMPLE_SIMD_INL_H_
#undef AFT_KERNELS_SIMPLE_SIMD_INL_H_
#else
#define AFT_KERNELS_SIMPLE_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "aft/kernels/kernels.h"
#include "aft/kernels/math_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

// The weight of the largest term. Far below 1, so that sums over a million
// values of any finite size stay finite.
template <class T>
constexpr T kOne = T(1) / T(1 << 20);

// How many rows ahead of use to prefetch.
constexpr int64_t kAhead = 2;

template <class T>
struct State {
  HWY_ALIGN T m[kSimpleChannels], n[kSimpleChannels], d[kSimpleChannels];

  State() {
    for (int c = 0; c < kSimpleChannels; ++c) {
      m[c] = std::numeric_limits<T>::lowest();
      n[c] = d[c] = T(0);
    }
  }
  /// Copies of the first `count` channels, as [3, stride].
  void Save(int64_t count, int64_t stride, T* to) const {
    memcpy(to, m, count * sizeof(T));
    memcpy(to + stride, n, count * sizeof(T));
    memcpy(to + 2 * stride, d, count * sizeof(T));
  }
  void Load(const T* from, int64_t count, int64_t stride) {
    memcpy(m, from, count * sizeof(T));
    memcpy(n, from + stride, count * sizeof(T));
    memcpy(d, from + 2 * stride, count * sizeof(T));
  }
};

/// Adds one key and value to m, n, d. Returns what is needed to undo it:
/// exp(-|k - m|), negative where the maximum rose.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Absorb(D tag, V k, V v, V& m, V& n, V& d) {
  const auto one = hn::Set(tag, kOne<TOf<D>>);
  const auto rises = hn::Gt(k, m);
  const auto e = ExpV(tag, hn::Neg(hn::Abs(hn::Sub(k, m))));
  const auto keep = hn::IfThenElse(rises, e, hn::Set(tag, TOf<D>(1)));
  const auto take = hn::IfThenElse(rises, one, hn::Mul(e, one));
  n = hn::MulAdd(take, v, hn::Mul(keep, n));
  d = hn::MulAdd(keep, d, take);
  m = hn::Max(m, k);
  return hn::IfThenElse(rises, hn::Neg(e), e);
}

/// Lanes with the sign bit set. This includes -0, which a comparison would
/// miss.
template <class D>
HWY_INLINE hn::Mask<D> Signed(D tag, hn::Vec<D> x) {
  const hn::RebindToSigned<D> bits;
  return hn::RebindMask(tag, hn::Lt(hn::BitCast(bits, x), hn::Zero(bits)));
}

/// Calls f(tile, lanes) for the tiles of n channels.
template <class F>
HWY_INLINE void ForTiles(int64_t n, const F& f) {
  for (int64_t c = 0; c < n; c += kTile)
    f(c, static_cast<int>(n - c < kTile ? n - c : kTile));
}

/// Processes one row: adds its key and value (k null: none) to the state, then
/// calls f(c, i, lanes, undo, num, den) with the sums of the lanes from c + i
/// on.
template <class T, class F>
HWY_INLINE void Row(const T* k, const T* v, int64_t n, int64_t ahead,
                    State<T>& s, const F& f) {
  const TileTag<T> tag;
  ForTiles(n, [&](int64_t c, int lanes) {
    HWY_ALIGN T kb[kTile], vb[kTile];
    const T* kt = k ? Ahead(k + c, ahead, lanes, kb) : nullptr;
    const T* vt = k ? Ahead(v + c, ahead, lanes, vb) : nullptr;
    for (size_t i = 0; i < kTile; i += hn::Lanes(tag)) {
      auto num = hn::Load(tag, s.n + c + i), den = hn::Load(tag, s.d + c + i);
      auto undo = hn::Zero(tag);
      if (k) {
        auto m = hn::Load(tag, s.m + c + i);
        undo = Absorb(tag, hn::LoadU(tag, kt + i), hn::LoadU(tag, vt + i), m,
                      num, den);
        hn::Store(m, tag, s.m + c + i);
        hn::Store(num, tag, s.n + c + i);
        hn::Store(den, tag, s.d + c + i);
      }
      f(c, i, lanes, undo, num, den);
    }
  });
}

template <class T>
HWY_INLINE void AbsorbRow(const T* k, const T* v, int64_t n, int64_t ahead,
                          State<T>& s) {
  Row(k, v, n, ahead, s, [](auto...) {});
}

/// As AbsorbRow, and writes y.
template <class T>
HWY_INLINE void WriteRow(const T* k, const T* v, const T* q, int64_t n,
                         int64_t ahead, State<T>& s, T* y) {
  const TileTag<T> tag;
  Row(k, v, n, ahead, s,
      [&](int64_t c, size_t i, int lanes, auto, auto num, auto den) {
        // One division: num / (den (1 + exp(-q))).
        if (q) {
          HWY_ALIGN T qb[kTile];
          const T* qt = Ahead(q + c, ahead, lanes, qb);
          den = hn::Mul(den, GateDivisor(tag, hn::LoadU(tag, qt + i)));
        }
        StoreTile(tag, Ratio(tag, num, den), y + c, i, lanes);
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#endif
