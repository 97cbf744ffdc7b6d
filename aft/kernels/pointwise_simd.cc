// GELU, dropout, AdamW and softmax: gelu(x) = x Phi(x), Phi(x) = (1 + erf(x /
// sqrt 2)) / 2.
#include "aft/kernels/pointwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/pointwise_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "aft/kernels/math_simd-inl.h"
#include "aft/kernels/simd_dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

/// Calls f(tag, i) with whole vectors, then element by element.
template <class T, class F>
HWY_INLINE void ForLanes(int64_t n, const F& f) {
  const hn::ScalableTag<T> tag;
  const hn::CappedTag<T, 1> one;
  const int64_t N = static_cast<int64_t>(hn::Lanes(tag));
  int64_t i = 0;
  for (; i + N <= n; i += N) f(tag, i);
  for (; i < n; ++i) f(one, i);
}

template <class T>
void Gelu(int64_t rows, int64_t n, const T* x, const T* b, T* y) {
  for (int64_t row = 0; row < rows; ++row, x += n, y += n) {
    ForLanes<T>(n, [&](auto d, int64_t i) {
      const auto z = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, b + i));
      auto density = z;
      hn::StoreU(hn::Mul(z, Phi(d, z, density)), d, y + i);
    });
  }
}

template <class T>
void GeluBackward(int64_t rows, int64_t n, const T* x, const T* b, const T* dy,
                  T* dx, T* db) {
  for (int64_t row = 0; row < rows; ++row, x += n, dy += n, dx += n) {
    ForLanes<T>(n, [&](auto d, int64_t i) {
      const auto z = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, b + i));
      auto density = z;
      const auto phi = Phi(d, z, density);
      const auto g = hn::Mul(hn::LoadU(d, dy + i), hn::Add(phi, density));
      hn::StoreU(g, d, dx + i);
      hn::StoreU(hn::Add(hn::LoadU(d, db + i), g), d, db + i);
    });
  }
}

/// The hash of an index, as defined at Dropout.
template <class D32>
HWY_INLINE hn::Vec<D32> Hash(D32 d, hn::Vec<D32> index,
                             const Dropout::Words& words) {
  auto h = hn::Xor(index, hn::Set(d, words.a));
  h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(d, 0x85EBCA6Bu));
  h = hn::Add(h, hn::Set(d, words.b));
  h = hn::Mul(hn::Xor(h, hn::ShiftRight<13>(h)), hn::Set(d, 0xC2B2AE35u));
  return hn::Xor(h, hn::ShiftRight<16>(h));
}

template <class T>
void DropoutAdd(const Dropout& drop, int64_t first, int64_t n, const T* x,
                const T* r, T* y) {
  const T scale = static_cast<T>(1 / (1 - drop.p));
  const uint32_t limit = drop.limit();
  for (int64_t i = 0; i < n;) {
    const uint64_t index = static_cast<uint64_t>(first + i);
    const int64_t left =
        static_cast<int64_t>((uint64_t{1} << 32) - (index & 0xFFFFFFFFu));
    const int64_t count = n - i < left ? n - i : left;
    const Dropout::Words words = drop.words(index);
    const uint32_t from = static_cast<uint32_t>(index);
    ForLanes<T>(count, [&](auto d, int64_t j) {
      const hn::Rebind<uint32_t, decltype(d)> d32;
      const auto h =
          Hash(d32, hn::Iota(d32, from + static_cast<uint32_t>(j)), words);
      const hn::RebindToUnsigned<decltype(d)> du;
      const auto kept = hn::Not(hn::Lt(h, hn::Set(d32, limit)));
      auto wide = hn::Zero(du);
      if constexpr (sizeof(T) == 4) {
        wide = hn::VecFromMask(du, kept);
      } else {
        wide = hn::VecFromMask(
            du, hn::Ne(hn::PromoteTo(du, hn::VecFromMask(d32, kept)),
                       hn::Zero(du)));
      }
      auto value = hn::And(hn::BitCast(d, wide),
                           hn::Mul(hn::LoadU(d, x + i + j), hn::Set(d, scale)));
      if (r) value = hn::Add(value, hn::LoadU(d, r + i + j));
      hn::StoreU(value, d, y + i + j);
    });
    i += count;
  }
}

template <class T>
void AdamW(const AdamWStep& s, int64_t n, const T* grad, T* p, T* m, T* v) {
  const T scale = static_cast<T>(s.scale), beta1 = static_cast<T>(s.beta1),
          beta2 = static_cast<T>(s.beta2), rate = static_cast<T>(s.rate),
          root = static_cast<T>(s.root), eps = static_cast<T>(s.eps),
          shrink = static_cast<T>(1 - s.lr * s.decay);
  ForLanes<T>(n, [&](auto d, int64_t i) {
    const auto g = hn::Mul(hn::LoadU(d, grad + i), hn::Set(d, scale));
    const auto old_m = hn::LoadU(d, m + i), old_v = hn::LoadU(d, v + i);
    // m + (1 - beta) (g - m): exact where g = m.
    const auto new_m =
        hn::MulAdd(hn::Set(d, T(1) - beta1), hn::Sub(g, old_m), old_m);
    const auto new_v = hn::MulAdd(hn::Set(d, T(1) - beta2),
                                  hn::Sub(hn::Mul(g, g), old_v), old_v);
    const auto below =
        hn::MulAdd(hn::Sqrt(new_v), hn::Set(d, root), hn::Set(d, eps));
    const auto kept = hn::Mul(hn::LoadU(d, p + i), hn::Set(d, shrink));
    hn::StoreU(hn::NegMulAdd(hn::Set(d, rate), hn::Div(new_m, below), kept), d,
               p + i);
    hn::StoreU(new_m, d, m + i);
    hn::StoreU(new_v, d, v + i);
  });
}

template <class T>
void Softmax(int64_t rows, int64_t n, T* x) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (; rows > 0; --rows, x += n) {
    int64_t i = 0;
    T highest = -std::numeric_limits<T>::infinity();
    auto high = hn::Set(d, highest);
    for (; i + N <= n; i += N) high = hn::Max(high, hn::LoadU(d, x + i));
    highest = hn::GetLane(hn::MaxOfLanes(d, high));
    for (; i < n; ++i) highest = x[i] > highest ? x[i] : highest;
    const auto weigh = [x, highest](auto tag, int64_t at) {
      const auto z = hn::Sub(hn::LoadU(tag, x + at), hn::Set(tag, highest));
      // ExpV(NaN) is finite.
      const auto e = hn::IfThenElse(hn::IsNaN(z), z, ExpV(tag, z));
      hn::StoreU(e, tag, x + at);
      return e;
    };
    auto sums = hn::Zero(d);
    for (i = 0; i + N <= n; i += N) sums = hn::Add(sums, weigh(d, i));
    T sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (; i < n; ++i) sum += hn::GetLane(weigh(one, i));
    ForLanes<T>(n, [x, scale = 1 / sum](auto tag, int64_t at) {
      hn::StoreU(hn::Mul(hn::LoadU(tag, x + at), hn::Set(tag, scale)), tag,
                 x + at);
    });
  }
}

template <class T>
double Squares(int64_t n, const T* x) {
  // In pieces: a float sum of 4096 squares is accurate to 1e-6; the pieces are
  // summed in double.
  const hn::ScalableTag<T> d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  double total = 0;
  int64_t i = 0;
  while (i + N <= n) {
    auto sum = hn::Zero(d);
    for (const int64_t end = i + 512 * N; i < end && i + N <= n; i += N) {
      const auto v = hn::LoadU(d, x + i);
      sum = hn::MulAdd(v, v, sum);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  for (; i < n; ++i) total += static_cast<double>(x[i]) * x[i];
  return total;
}

AFT_KERNEL_TABLES(PointwiseKernels, Gelu<T>, GeluBackward<T>, DropoutAdd<T>,
                  AdamW<T>, Softmax<T>, Squares<T>)

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

AFT_EXPORT_KERNELS(PointwiseKernels, pointwise_kernels)

}  // namespace aft::kernels
#endif
