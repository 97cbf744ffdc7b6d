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

#include <algorithm>
#include <cmath>
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

/// Whether the n elements from x on are finite.
template <class T>
HWY_INLINE bool Finite(int64_t n, const T* x) {
  const TileTag<T> tag;
  auto sum = hn::Zero(tag);
  for (int64_t c = 0; c < n; c += hn::Lanes(tag))
    sum = hn::MulAdd(hn::Load(tag, x + c), hn::Zero(tag), sum);
  return hn::AllTrue(tag, hn::Eq(sum, hn::Zero(tag)));
}
/// False after a key of NaN or +infinity, or a value that is not finite.
template <class T>
HWY_INLINE bool Finite(int64_t n, const State<T>& s) {
  return Finite(n, s.m) && Finite(n, s.n) && Finite(n, s.d);
}

/// y of one channel from its sums, with exact limits.
template <class T>
T Output(double num, double den, const T* q) {
  const double r = den == 0 ? 0 : num / den;
  return static_cast<T>(q ? r / (1 + std::exp(-static_cast<double>(*q))) : r);
}

/// x if it is NaN or infinite, which n keeps; otherwise 0.
template <class T>
double NotFinite(T x) {
  return std::abs(x) <= std::numeric_limits<T>::max() ? 0 : x;
}

/// Adds a key and a value to one channel of a state in which n, or n and d, may
/// be NaN or infinite, or become so.
template <class T>
void AbsorbNonFinite(T k, T v, T& m, T& n, T& d) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  if (k == -inf) return;
  if (!(k < inf)) {
    n = d = std::numeric_limits<T>::quiet_NaN();
    return;
  }
  const T e = std::exp(-std::abs(k - m)), keep = k > m ? e : T(1),
          take = k > m ? kOne<T> : e * kOne<T>;
  const double mark = NotFinite(n) + NotFinite(v);
  n = mark == 0 ? keep * n + take * v : static_cast<T>(mark);
  d = keep * d + take;
  m = std::max(m, k);
}

/// One channel of StepInWindow in which a key, value, bias or sum is not
/// finite.
template <class T>
T StepOfChannel(const WindowStep<T>& a, int64_t c) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const auto value = [&](const T* ring, int64_t e) -> double {
    return ring[(a.first + e) % a.capacity * a.n + c];
  };
  const auto exponent = [&](int64_t e) {
    const double w = !a.w              ? 0
                     : a.w_per_channel ? a.w[e * a.n + c]
                                       : a.w[e],
                 k = value(a.ring_k, e);
    return k == -inf || w == -inf ? -inf : k + w;
  };
  double max = -inf, num = 0, den = 0, mark = 0;
  const auto add = [&](double x, double weight, double v) {
    if (x == -inf) return;
    const double e = std::exp(x - max);
    den += e * weight;
    mark += NotFinite(v);
    if (NotFinite(v) == 0) num += e * v;
  };
  const double past_m = a.has_past ? a.state[c] : -inf;
  max = past_m;
  for (int64_t e = 0; e < a.count; ++e) max = std::max(max, exponent(e));
  if (a.has_past) add(past_m, a.state[2 * a.n + c], a.state[a.n + c]);
  num /= kOne<T>, den /= kOne<T>;
  for (int64_t e = 0; e < a.count; ++e) add(exponent(e), 1, value(a.ring_v, e));
  return Output(mark == 0 ? num : mark, den, a.q ? a.q + c : nullptr);
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#endif
