// AFT-simple: y_t = gate(q_t) * sum_j exp(k_j) v_j / sum_j exp(k_j), over j <=
// t where causal.
//
// One pass with a running maximum m and the sums n = sum exp(k - m) v, d = sum
// exp(k - m). Of the two exponentials that the textbook form needs, exp(m - m')
// and exp(k - m'), one is always exp(0): exp(-|k - m|) and a select do.
#include "aft/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/simple.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <limits>

#include "aft/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

// The weight of the largest term. Below 1, so that sums over a million values
// of any finite size stay finite.
template <class T>
constexpr T kOne = T(1) / T(1 << 20);

// Rows to ask for in advance.
constexpr int64_t kAhead = 12;

template <class T>
struct State {
  HWY_ALIGN T m[kSimpleChannels], n[kSimpleChannels], d[kSimpleChannels];

  State() {
    for (int c = 0; c < kSimpleChannels; ++c) {
      m[c] = std::numeric_limits<T>::lowest();
      n[c] = d[c] = T(0);
    }
  }
};

/// m, n, d take in one key and value.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void Absorb(D tag, V k, V v, V& m, V& n, V& d) {
  const auto one = hn::Set(tag, kOne<TOf<D>>);
  const auto rises = hn::Gt(k, m);
  const auto e = ExpV(tag, hn::Neg(hn::Abs(hn::Sub(k, m))));
  const auto keep = hn::IfThenElse(rises, e, hn::Set(tag, TOf<D>(1)));
  const auto take = hn::IfThenElse(rises, one, hn::Mul(e, one));
  n = hn::MulAdd(take, v, hn::Mul(keep, n));
  d = hn::MulAdd(keep, d, take);
  m = hn::Max(m, k);
}

/// Calls f(tile, lanes) for the tiles of n channels.
template <class F>
HWY_INLINE void ForTiles(int64_t n, const F& f) {
  for (int64_t c = 0; c < n; c += kTile)
    f(c, static_cast<int>(n - c < kTile ? n - c : kTile));
}

/// Takes in one row of keys and values; asks for the one `ahead` numbers on.
template <class T>
HWY_INLINE void AbsorbRow(const T* k, const T* v, int64_t n, int64_t ahead,
                          State<T>& s) {
  const TileTag<T> tag;
  ForTiles(n, [&](int64_t c, int lanes) {
    HWY_ALIGN T kb[kTile], vb[kTile];
    const T* kt = Ahead(k + c, ahead, lanes, kb);
    const T* vt = Ahead(v + c, ahead, lanes, vb);
    for (size_t i = 0; i < kTile; i += hn::Lanes(tag)) {
      auto m = hn::Load(tag, s.m + c + i), num = hn::Load(tag, s.n + c + i),
           den = hn::Load(tag, s.d + c + i);
      Absorb(tag, hn::LoadU(tag, kt + i), hn::LoadU(tag, vt + i), m, num, den);
      hn::Store(m, tag, s.m + c + i);
      hn::Store(num, tag, s.n + c + i);
      hn::Store(den, tag, s.d + c + i);
    }
  });
}

template <class T>
HWY_INLINE void WriteRow(const T* q, int64_t n, int64_t ahead,
                         const State<T>& s, T* y) {
  const TileTag<T> tag;
  ForTiles(n, [&](int64_t c, int lanes) {
    HWY_ALIGN T qb[kTile];
    const T* qt = q ? Ahead(q + c, ahead, lanes, qb) : nullptr;
    for (size_t i = 0; i < kTile; i += hn::Lanes(tag)) {
      const auto num = hn::Load(tag, s.n + c + i),
                 den = hn::Load(tag, s.d + c + i);
      // One division: num / (den (1 + exp(-q))).
      const auto gate =
          qt ? GateDivisor(tag, hn::LoadU(tag, qt + i)) : hn::Set(tag, T(1));
      StoreTile(tag, Ratio(tag, num, hn::Mul(den, gate)), y + c, i, lanes);
    }
  });
}

template <class T>
void Forward(const Simple<T>& a) {
  const int64_t n = a.c1 - a.c0;
  const auto at = [&](const T* x, int64_t t) {
    return x ? x + t * a.D + a.c0 : nullptr;
  };
  State<T> s;
  if (!a.causal) {
    for (int64_t j = 0; j < a.Tk; ++j) {
      if (!(a.padded && a.padded[j]))
        AbsorbRow(at(a.k, j), at(a.v, j), n, kAhead * a.D, s);
    }
  }
  for (int64_t t = 0; t < a.Tq; ++t) {
    if (a.causal && t < a.Tk && !(a.padded && a.padded[t]))
      AbsorbRow(at(a.k, t), at(a.v, t), n, kAhead * a.D, s);
    WriteRow(at(a.q, t), n, kAhead * a.D, s, a.y + t * a.D + a.c0);
  }
}

/// Ascending, what row t gives to the keys that it saw: scratch[t] = [a / d | a
/// r / d | m], relative to its maximum.
template <class T>
HWY_INLINE void RowGradient(const Simple<T>& a, int64_t t, const T* dy, T* dq,
                            const State<T>& s, T* out) {
  const TileTag<T> tag;
  const int64_t n = a.c1 - a.c0, row = t * a.D + a.c0;
  ForTiles(n, [&](int64_t c, int lanes) {
    HWY_ALIGN T qb[kTile], gb[kTile];
    const T* qt = a.q ? Ahead(a.q + row + c, kAhead * a.D, lanes, qb) : nullptr;
    const T* gt = Ahead(dy + row + c, kAhead * a.D, lanes, gb);
    for (size_t i = 0; i < kTile; i += hn::Lanes(tag)) {
      const auto den = hn::Load(tag, s.d + c + i);
      const auto r = Ratio(tag, hn::Load(tag, s.n + c + i), den);
      auto g = hn::LoadU(tag, gt + i);
      if (qt) {
        auto dqv = hn::Zero(tag);
        g = GateGradient(tag, g, hn::LoadU(tag, qt + i), r, dqv);
        StoreTile(tag, dqv, dq + row + c, i, lanes);
      }
      const auto share = Ratio(tag, hn::Mul(g, hn::Set(tag, kOne<T>)), den);
      hn::StoreU(share, tag, out + c + i);
      hn::StoreU(hn::Mul(share, r), tag, out + kSimpleChannels + c + i);
      hn::StoreU(hn::Load(tag, s.m + c + i), tag,
                 out + 2 * kSimpleChannels + c + i);
    }
  });
}

/// dv_j = e_j A, dk_j = e_j (v_j A - C), e_j = exp(k_j - m).
template <class T>
HWY_INLINE void KeyGradient(const Simple<T>& a, int64_t j, const T* A,
                            const T* C, const T* m, T* dk, T* dv) {
  const TileTag<T> tag;
  const int64_t n = a.c1 - a.c0, row = j * a.D + a.c0;
  const bool padded = a.padded && a.padded[j];
  const int64_t ahead = (a.causal ? -kAhead : kAhead) * a.D;
  ForTiles(n, [&](int64_t c, int lanes) {
    HWY_ALIGN T kb[kTile], vb[kTile];
    const T* kt = Ahead(a.k + row + c, ahead, lanes, kb);
    const T* vt = Ahead(a.v + row + c, ahead, lanes, vb);
    for (size_t i = 0; i < kTile; i += hn::Lanes(tag)) {
      auto gv = hn::Zero(tag), gk = hn::Zero(tag);
      if (!padded) {
        const auto e = ExpV(
            tag, hn::Sub(hn::LoadU(tag, kt + i), hn::LoadU(tag, m + c + i)));
        const auto A_ = hn::LoadU(tag, A + c + i),
                   C_ = hn::LoadU(tag, C + c + i);
        gv = hn::Mul(e, A_);
        gk = hn::Mul(e, hn::MulSub(hn::LoadU(tag, vt + i), A_, C_));
      }
      StoreTile(tag, gv, dv + row + c, i, lanes);
      StoreTile(tag, gk, dk + row + c, i, lanes);
    }
  });
}

template <class T>
void Backward(const Simple<T>& a, const T* dy, T* dq, T* dk, T* dv,
              T* scratch) {
  const TileTag<T> tag;
  const size_t N = hn::Lanes(tag);
  const int64_t n = a.c1 - a.c0, width = 3 * kSimpleChannels;
  const auto at = [&](const T* x, int64_t t) { return x + t * a.D + a.c0; };
  State<T> s;
  HWY_ALIGN T A[kSimpleChannels] = {}, C[kSimpleChannels] = {},
              m[kSimpleChannels] = {};
  const auto add = [&](const T* from) {  // A, C += from's, both relative to m
    for (size_t c = 0; c < kSimpleChannels; c += N) {
      hn::Store(hn::Add(hn::Load(tag, A + c), hn::LoadU(tag, from + c)), tag,
                A + c);
      hn::Store(hn::Add(hn::Load(tag, C + c),
                        hn::LoadU(tag, from + kSimpleChannels + c)),
                tag, C + c);
    }
  };
  for (int64_t i = 0; i < width; ++i) scratch[i] = T(0);
  if (!a.causal) {
    for (int64_t j = 0; j < a.Tk; ++j) {
      if (!(a.padded && a.padded[j]))
        AbsorbRow(at(a.k, j), at(a.v, j), n, kAhead * a.D, s);
    }
    for (int64_t t = 0; t < a.Tq; ++t) {
      RowGradient(a, t, dy, dq, s, scratch);
      add(scratch);
    }
    for (int64_t j = 0; j < a.Tk; ++j) KeyGradient(a, j, A, C, s.m, dk, dv);
    return;
  }
  for (int64_t t = 0; t < a.Tq; ++t) {
    if (t < a.Tk && !(a.padded && a.padded[t]))
      AbsorbRow(at(a.k, t), at(a.v, t), n, kAhead * a.D, s);
    if (n < kSimpleChannels) memset(scratch + t * width, 0, width * sizeof(T));
    RowGradient(a, t, dy, dq, s, scratch + t * width);
  }
  // Descending: the maximum only falls, so rescaling only shrinks. It rarely
  // changes, and costs an exp when it does.
  for (int c = 0; c < kSimpleChannels; ++c) m[c] = s.m[c];
  for (int64_t t = (a.Tq > a.Tk ? a.Tq : a.Tk) - 1; t >= 0; --t) {
    if (t < a.Tq) {
      const T* mt = scratch + t * width + 2 * kSimpleChannels;
      for (size_t c = 0; c < kSimpleChannels; c += N) {
        const auto now = hn::LoadU(tag, mt + c), was = hn::Load(tag, m + c);
        if (hn::AllTrue(tag, hn::Eq(now, was))) continue;
        const auto f = ExpV(tag, hn::Sub(now, was));
        hn::Store(hn::Mul(hn::Load(tag, A + c), f), tag, A + c);
        hn::Store(hn::Mul(hn::Load(tag, C + c), f), tag, C + c);
        hn::Store(now, tag, m + c);
      }
      add(scratch + t * width);
    }
    if (t < a.Tk) KeyGradient(a, t, A, C, m, dk, dv);
  }
}

template <class T>
void Step(int64_t n, bool fresh, const T* q, const T* k, const T* v, T* state,
          T* y) {
  for (int64_t c0 = 0; c0 < n; c0 += kSimpleChannels) {
    const int64_t w = n - c0 < kSimpleChannels ? n - c0 : kSimpleChannels;
    State<T> s;
    T* parts[3] = {s.m, s.n, s.d};
    for (int p = 0; p < 3 && !fresh; ++p)
      memcpy(parts[p], state + p * n + c0, w * sizeof(T));
    AbsorbRow(k + c0, v + c0, w, 0, s);
    for (int p = 0; p < 3; ++p)
      memcpy(state + p * n + c0, parts[p], w * sizeof(T));
    if (y) WriteRow<T>(q ? q + c0 : nullptr, w, 0, s, y + c0);
  }
}

template <class T>
void StepInWindow(const WindowStep<T>& a) {
  const TileTag<T> tag;
  ForTiles(a.n, [&](int64_t c, int lanes) {
    HWY_ALIGN T kb[kTile], vb[kTile], wb[kTile], qb[kTile], sb[3][kTile];
    for (size_t i = 0; i < kTile; i += hn::Lanes(tag)) {
      const auto slot = [&](int64_t e) {
        return (a.first + e) % a.capacity * a.n + c;
      };
      const auto key = [&](int64_t e) {
        return hn::LoadU(tag, Widen(a.ring_k + slot(e), lanes, kb) + i);
      };
      const auto bias = [&](int64_t e) {
        if (!a.w) return hn::Zero(tag);
        if (!a.w_per_channel) return hn::Set(tag, a.w[e]);
        return hn::LoadU(tag, Widen(a.w + e * a.n + c, lanes, wb) + i);
      };
      const auto past = [&](int p) {
        return hn::LoadU(tag, Widen(a.state + p * a.n + c, lanes, sb[p]) + i);
      };
      // Two passes over the window: its largest exponent k + w, then the sums,
      // so that nothing is rescaled. Exponents are (k - k_max) + (w - w_max):
      // k + w of large numbers would round away what their difference needs.
      auto k_max = hn::Set(tag, std::numeric_limits<T>::lowest());
      auto w_max = hn::Zero(tag), max = k_max;
      if (a.has_past) k_max = max = past(0);
      for (int64_t e = 0; e < a.count; ++e) {
        const auto k = key(e), w = bias(e), x = hn::Add(k, w);
        const auto rises = hn::Gt(x, max);
        max = hn::Max(max, x);
        k_max = hn::IfThenElse(rises, k, k_max);
        w_max = hn::IfThenElse(rises, w, w_max);
      }
      auto num = hn::Zero(tag), den = hn::Zero(tag);
      if (a.has_past) {
        const auto f = ExpV(tag, hn::Sub(hn::Sub(past(0), k_max), w_max));
        num = hn::Mul(f, past(1)), den = hn::Mul(f, past(2));
      }
      for (int64_t e = 0; e < a.count; ++e) {
        const auto x = hn::Add(hn::Sub(key(e), k_max), hn::Sub(bias(e), w_max));
        const auto p = hn::Mul(ExpV(tag, x), hn::Set(tag, kOne<T>));
        const T* v = Widen(a.ring_v + slot(e), lanes, vb);
        num = hn::MulAdd(p, hn::LoadU(tag, v + i), num);
        den = hn::Add(den, p);
      }
      auto y = Ratio(tag, num, den);
      if (a.q) {
        const T* q = Widen(a.q + c, lanes, qb);
        y = hn::Div(y, GateDivisor(tag, hn::LoadU(tag, q + i)));
      }
      StoreTile(tag, y, a.y + c, i, lanes);
    }
  });
}

template <class T>
void ExpArray(const T* x, T* y, int64_t n) {
  const hn::ScalableTag<T> tag;
  const int64_t N = static_cast<int64_t>(hn::Lanes(tag));
  int64_t i = 0;
  for (; i + N <= n; i += N)
    hn::StoreU(ExpV(tag, hn::LoadU(tag, x + i)), tag, y + i);
  const hn::CappedTag<T, 1> one;
  for (; i < n; ++i) hn::StoreU(ExpV(one, hn::LoadU(one, x + i)), one, y + i);
}

const SimpleKernels<float>& SimpleTable_f32() {
  static constexpr SimpleKernels<float> kTable = {
      Forward<float>, Backward<float>, Step<float>, StepInWindow<float>,
      ExpArray<float>};
  return kTable;
}
const SimpleKernels<double>& SimpleTable_f64() {
  static constexpr SimpleKernels<double> kTable = {
      Forward<double>, Backward<double>, Step<double>, StepInWindow<double>,
      ExpArray<double>};
  return kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

HWY_EXPORT(SimpleTable_f32);
HWY_EXPORT(SimpleTable_f64);

template <>
const SimpleKernels<float>& simple_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(SimpleTable_f32)();
}
template <>
const SimpleKernels<double>& simple_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(SimpleTable_f64)();
}

const char* target_name() noexcept {
  const int64_t supported = hwy::SupportedTargets();
  return hwy::TargetName(supported &
                         -supported);  // the lowest bit is the best one
}

}  // namespace aft::kernels
#endif
