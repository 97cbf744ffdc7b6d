// Shared by the kernels: the exponential, the gate, and loads and stores of
// tiles that may be narrower than a vector.
#if defined(AFT_KERNELS_MATH_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AFT_KERNELS_MATH_SIMD_INL_H_
#undef AFT_KERNELS_MATH_SIMD_INL_H_
#else
#define AFT_KERNELS_MATH_SIMD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "aft/kernels/kernels.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using TOf = hn::TFromD<D>;

/// exp(x) = 2^n (1 + f + f^2 Q(f)), |f| <= ln2 / 2, with Q of degree 4 fitted
/// for the smallest relative error (3e-9, far below rounding). 0 below -87, so
/// no denormals; exp(88) above 88, so no infinities; NaN of NaN, which Min and
/// the arithmetic on the exponent would lose.
template <class D, HWY_IF_FLOAT(TOf<D>),
          hwy::EnableIf<sizeof(TOf<D>) == 4>* = nullptr>
HWY_INLINE hn::Vec<D> ExpV(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto small = hn::Lt(x, hn::Set(d, -87.f));
  const auto nan = hn::VecFromMask(d, hn::IsNaN(x));  // all bits: also a NaN
  x = hn::Min(x, hn::Set(d, 88.f));
  // The sum is rounded to an integer, which is in its lowest bits.
  const auto round = hn::Set(d, 12582912.f);  // 1.5 * 2^23
  const auto sum = hn::MulAdd(x, hn::Set(d, 1.44269504f), round);
  const auto n = hn::BitCast(di, sum);
  const auto nf = hn::Sub(sum, round);
  auto f = hn::NegMulAdd(nf, hn::Set(d, 0.693359375f),
                         x);  // ln2 in two parts: the first product is exact
  f = hn::MulAdd(nf, hn::Set(d, 2.12194440e-4f), f);
  auto p =
      hn::MulAdd(hn::Set(d, 0.001381454008f), f, hn::Set(d, 0.008368745108f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.04166839079f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.166665204f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.4999999343f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.f));
  const auto scaled =
      hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(n)));
  return hn::Or(hn::IfThenZeroElse(small, scaled), nan);
}

template <class D, HWY_IF_FLOAT(TOf<D>),
          hwy::EnableIf<sizeof(TOf<D>) == 8>* = nullptr>
HWY_INLINE hn::Vec<D> ExpV(D d, hn::Vec<D> x) {
  const auto small = hn::Lt(x, hn::Set(d, -700.));
  const auto nan = hn::VecFromMask(d, hn::IsNaN(x));
  const auto e =
      hn::Exp(d, hn::Min(hn::Max(x, hn::Set(d, -700.)), hn::Set(d, 700.)));
  return hn::Or(hn::IfThenZeroElse(small, e), nan);
}

/// Vectors of at most kTile lanes, so that a tile is a whole number of vectors
/// on every target.
template <class T>
using TileTag = hn::CappedTag<T, kTile>;

/// v, in a register: GCC would otherwise load it again for each multiply-add
/// that uses it.
template <class V>
HWY_INLINE V InRegister(V v) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL && HWY_TARGET <= HWY_SSSE3
  asm("" : "+v"(v.raw));
#endif
  return v;
}

/// A copy of a row that is narrower than a tile, padded with zeros, so that
/// vectors may read all kTile lanes.
template <class T>
HWY_INLINE const T* Widen(const T* from, int lanes, T* buffer) {
  if (lanes == kTile) return from;
  for (int i = 0; i < kTile; ++i) buffer[i] = i < lanes ? from[i] : T(0);
  return buffer;
}

/// Widen, and a prefetch `ahead` values further: rows are kilobytes apart,
/// which hardware prefetchers do not follow.
template <class T>
HWY_INLINE const T* Ahead(const T* row, int64_t ahead, int lanes, T* buffer) {
  hwy::Prefetch(row + ahead);
  return Widen(row, lanes, buffer);
}

/// Stores lanes [i, i + Lanes(d)) of a tile, as far as they exist.
template <class D>
HWY_INLINE void StoreTile(D d, hn::Vec<D> x, TOf<D>* to, size_t i, int lanes) {
  const size_t N = hn::Lanes(d);
  if (i + N <= static_cast<size_t>(lanes)) {
    hn::StoreU(x, d, to + i);
  } else if (i < static_cast<size_t>(lanes)) {
    HWY_ALIGN TOf<D> buffer[kTile];
    hn::Store(x, d, buffer);
    memcpy(to + i, buffer, (static_cast<size_t>(lanes) - i) * sizeof(TOf<D>));
  }
}

/// 1 + exp(-q), the divisor of the sigmoid gate.
template <class D>
HWY_INLINE hn::Vec<D> GateDivisor(D d, hn::Vec<D> q) {
  return hn::Add(hn::Set(d, TOf<D>(1)), ExpV(d, hn::Neg(q)));
}

/// dq = dy gate'(q) r and a = dy gate(q), with gate = 1 / (1 + E), gate' = gate
/// E gate, E = exp(-q).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GateGradient(D tag, V dy, V q, V r, V& dq) {
  const auto one = hn::Set(tag, TOf<D>(1));
  const auto e = ExpV(tag, hn::Neg(q));
  const auto gate = hn::Div(one, hn::Add(one, e));
  const auto a = hn::Mul(dy, gate);
  dq = hn::Mul(hn::Mul(a, hn::Mul(e, gate)), r);
  return a;
}

/// Whether |dy| is within FastPathLimits, and the others are finite: q may not
/// be, and forward sets r and den to NaN where they depend on such an element.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Mask<D> WithinLimits(D d, V dy, V q, V r, V den) {
  // 0 or NaN, in one comparison.
  const auto mark = hn::Mul(hn::Zero(d), hn::Add(q, hn::Add(r, den)));
  return hn::Le(hn::Abs(hn::Add(dy, mark)),
                hn::Set(d, FastPathLimits<TOf<D>>::value));
}

/// num / den, 0 if den is 0 (all keys are masked).
template <class D>
HWY_INLINE hn::Vec<D> Ratio(D d, hn::Vec<D> num, hn::Vec<D> den) {
  return hn::IfThenZeroElse(hn::Eq(den, hn::Zero(d)), hn::Div(num, den));
}

/// Phi(x) and x phi(x) = x exp(-x^2 / 2) / sqrt(2 pi). In float erf is
/// Abramowitz and Stegun's 7.1.26, absolute error 1.5e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Phi(D d, V x, V& x_density) {
  using T = TOf<D>;
  const auto e =
      ExpV(d, hn::Mul(hn::Mul(x, x), hn::Set(d, static_cast<T>(-0.5))));
  x_density = hn::Mul(hn::Mul(x, e), hn::Set(d, T(0.3989422804014327)));
  if constexpr (sizeof(T) == 8) {
    HWY_ALIGN T values[HWY_MAX_BYTES / sizeof(T)];
    hn::Store(x, d, values);
    for (size_t i = 0; i < hn::Lanes(d); ++i)
      values[i] = 0.5 * std::erfc(-values[i] * 0.7071067811865476);
    return hn::Load(d, values);
  } else {
    const auto one = hn::Set(d, T(1));
    const auto z = hn::Mul(hn::Abs(x), hn::Set(d, T(0.7071067811865476)));
    const auto t = hn::Div(one, hn::MulAdd(z, hn::Set(d, T(0.3275911)), one));
    auto poly =
        hn::MulAdd(t, hn::Set(d, T(1.061405429)), hn::Set(d, T(-1.453152027)));
    poly = hn::MulAdd(poly, t, hn::Set(d, T(1.421413741)));
    poly = hn::MulAdd(poly, t, hn::Set(d, T(-0.284496736)));
    poly = hn::MulAdd(poly, t, hn::Set(d, T(0.254829592)));
    // Half of erfc(|x| / sqrt 2): the smaller of the two tails.
    const auto tail = hn::Mul(hn::Mul(hn::Mul(poly, t), e), hn::Set(d, T(0.5)));
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#endif
