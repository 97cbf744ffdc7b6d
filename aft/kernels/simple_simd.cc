// AFT-simple: y_t = gate(q_t) * sum_j exp(k_j) v_j / sum_j exp(k_j), over j <=
// t if causal.
#include "aft/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/simple_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <cstring>
#include <limits>

#include "aft/kernels/math_simd-inl.h"
#include "aft/kernels/simd_dispatch.h"
#include "aft/kernels/simple_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

/// Row t of x in channels [c0, c1); null if x is.
template <class T>
HWY_INLINE T* At(const Simple<T>& a, T* x, int64_t t) {
  return x ? x + t * a.D + a.c0 : nullptr;
}
template <class T>
HWY_INLINE const T* At(const Simple<T>& a, const T* x, int64_t t) {
  return x ? x + t * a.D + a.c0 : nullptr;
}
/// The key of row t; null if masked.
template <class T>
HWY_INLINE const T* KeyAt(const Simple<T>& a, int64_t t) {
  return t < a.Tk && !(a.padded && a.padded[t]) ? At(a, a.k, t) : nullptr;
}

template <class T>
HWY_INLINE void AbsorbAll(const Simple<T>& a, State<T>& s) {
  for (int64_t j = 0; j < a.Tk; ++j) {
    if (const T* k = KeyAt(a, j))
      AbsorbRow(k, At(a, a.v, j), a.c1 - a.c0, kAhead * a.D, s);
  }
}

template <class T>
bool Forward(const Simple<T>& a) {
  State<T> s;
  if (!a.causal) AbsorbAll(a, s);
  for (int64_t t = 0; t < a.Tq; ++t) {
    if (a.causal && a.states && t % kSimpleRows == 0)
      s.Save(a.c1 - a.c0, a.D, At(a, a.states, 3 * t / kSimpleRows));
    WriteRow(a.causal ? KeyAt(a, t) : nullptr, At(a, a.v, t), At(a, a.q, t),
             a.c1 - a.c0, kAhead * a.D, s, At(a, a.y, t));
  }
  return Finite(a.c1 - a.c0, s);
}

/// The contribution of row t to its keys, relative to its maximum: out = [a /
/// den | a r / den | undo], each kSimpleChannels wide. Writes dq.
template <class T>
HWY_INLINE void RowGradient(const Simple<T>& a, int64_t t, const T* dy, T* dq,
                            State<T>& s, T* out) {
  const TileTag<T> tag;
  const int64_t ahead = kAhead * a.D;
  const T *q = At(a, a.q, t), *g = At(a, dy, t);
  Row(a.causal ? KeyAt(a, t) : nullptr, At(a, a.v, t), a.c1 - a.c0, ahead, s,
      [&](int64_t c, size_t i, int lanes, auto undo, auto num, auto den) {
        HWY_ALIGN T qb[kTile], gb[kTile];
        const auto one = hn::Set(tag, T(1));
        const auto dyv = hn::LoadU(tag, Ahead(g + c, ahead, lanes, gb) + i);
        // One division: 1 / (den (1 + E)), E = exp(-q), from which 1 / den and
        // the gate 1 / (1 + E) follow.
        auto gate = one, below = one, e = hn::Zero(tag);
        if (q) {
          const T* qt = Ahead(q + c, ahead, lanes, qb);
          // A NaN remains one.
          const auto qv = hn::LoadU(tag, qt + i), least = hn::Set(tag, T(-60));
          e = ExpV(tag, hn::Neg(hn::IfThenElse(hn::Lt(qv, least), least, qv)));
          below = hn::Add(one, e);
        }
        const auto both = Ratio(tag, one, hn::Mul(den, below));
        const auto inverse = hn::Mul(both, below);
        if (q) gate = hn::Mul(both, den);
        const auto r = hn::Mul(num, inverse), ag = hn::Mul(dyv, gate);
        if (q) {
          StoreTile(tag, hn::Mul(hn::Mul(ag, hn::Mul(e, gate)), r),
                    At(a, dq, t) + c, i, lanes);
        }
        const auto share = hn::Mul(ag, hn::Mul(inverse, hn::Set(tag, kOne<T>)));
        hn::StoreU(share, tag, out + c + i);
        hn::StoreU(hn::Mul(share, r), tag, out + kSimpleChannels + c + i);
        hn::StoreU(undo, tag, out + 2 * kSimpleChannels + c + i);
      });
}

/// Sums over rows: A of a / den, C of a r / den.
template <class T>
struct Shares {
  HWY_ALIGN T A[kSimpleChannels] = {}, C[kSimpleChannels] = {};

  /// f changes the lanes of A and C from c on.
  template <class F>
  HWY_INLINE void Update(int64_t n, const F& f) {
    const TileTag<T> tag;
    for (int64_t c = 0; c < n; c += hn::Lanes(tag)) {
      auto a = hn::Load(tag, A + c), b = hn::Load(tag, C + c);
      f(c, a, b);
      hn::Store(a, tag, A + c);
      hn::Store(b, tag, C + c);
    }
  }
  HWY_INLINE void Add(int64_t n, const T* row) {
    const TileTag<T> tag;
    Update(n, [&](int64_t c, auto& a, auto& b) {
      a = hn::Add(a, hn::LoadU(tag, row + c));
      b = hn::Add(b, hn::LoadU(tag, row + kSimpleChannels + c));
    });
  }
};

/// dv_j = e_j A and dk_j = e_j (v_j A - C), where e_j = weight(c + i, k_j).
template <class T, class Weight>
HWY_INLINE void KeyGradient(const Simple<T>& a, int64_t j, int64_t ahead,
                            const Shares<T>& s, const Weight& weight, T* dk,
                            T* dv) {
  const TileTag<T> tag;
  const T *k = At(a, a.k, j), *v = At(a, a.v, j);
  ForTiles(a.c1 - a.c0, [&](int64_t c, int lanes) {
    HWY_ALIGN T kb[kTile], vb[kTile];
    const T* kt = Ahead(k + c, ahead, lanes, kb);
    const T* vt = Ahead(v + c, ahead, lanes, vb);
    for (size_t i = 0; i < kTile; i += hn::Lanes(tag)) {
      const auto e = weight(c + i, kt + i);
      const auto A = hn::Load(tag, s.A + c + i), C = hn::Load(tag, s.C + c + i);
      StoreTile(tag, hn::Mul(e, A), At(a, dv, j) + c, i, lanes);
      StoreTile(tag, hn::Mul(e, hn::MulSub(hn::LoadU(tag, vt + i), A, C)),
                At(a, dk, j) + c, i, lanes);
    }
  });
}

template <class T>
HWY_INLINE void NoKeyGradient(const Simple<T>& a, int64_t j, T* dk, T* dv) {
  memset(At(a, dk, j), 0, (a.c1 - a.c0) * sizeof(T));
  memset(At(a, dv, j), 0, (a.c1 - a.c0) * sizeof(T));
}

template <class T>
bool NotCausal(const Simple<T>& a, const T* dy, T* dq, T* dk, T* dv,
               T* scratch) {
  const TileTag<T> tag;
  State<T> s;
  Shares<T> sum;
  AbsorbAll(a, s);
  for (int64_t t = 0; t < a.Tq; ++t) {
    RowGradient(a, t, dy, dq, s, scratch);
    sum.Add(a.c1 - a.c0, scratch);
  }
  for (int64_t j = 0; j < a.Tk; ++j) {
    if (!KeyAt(a, j)) {
      NoKeyGradient(a, j, dk, dv);
      continue;
    }
    KeyGradient(
        a, j, kAhead * a.D, sum,
        [&](int64_t c, const T* k) {
          return ExpV(tag, hn::Sub(hn::LoadU(tag, k), hn::Load(tag, s.m + c)));
        },
        dk, dv);
  }
  const int64_t n = a.c1 - a.c0;
  return Finite(n, s) && Finite(n, sum.A) && Finite(n, sum.C);
}

/// Causal: processes chunks of rows from the last to the first. Each chunk
/// starts from the state before it. It visits its rows in ascending order, for
/// their contributions, then in descending order, for the gradients of its
/// keys. The weight of a key, and the factor by which the sums are rescaled
/// when a rise of the maximum is undone, follow from what Absorb returned, so
/// no exponential is computed twice.
template <class T>
bool Causal(const Simple<T>& a, const T* dy, T* dq, T* dk, T* dv, T* scratch) {
  const TileTag<T> tag;
  constexpr int64_t width = 3 * kSimpleChannels;
  const int64_t n_chunks = simple_states(a.Tq), n = a.c1 - a.c0,
                stride = a.states ? a.D : kSimpleChannels;
  T* states = a.states ? a.states + a.c0 : scratch + kSimpleRows * width;
  State<T> s;
  for (int64_t chunk = 0; !a.states && chunk < n_chunks; ++chunk) {
    s.Save(n, stride, states + chunk * 3 * stride);
    if (chunk + 1 == n_chunks) break;
    for (int64_t t = chunk * kSimpleRows; t < (chunk + 1) * kSimpleRows; ++t) {
      if (const T* k = KeyAt(a, t))
        AbsorbRow(k, At(a, a.v, t), n, kAhead * a.D, s);
    }
  }
  for (int64_t j = a.Tq; j < a.Tk; ++j) NoKeyGradient(a, j, dk, dv);
  Shares<T> sum;
  bool finite = true;
  for (int64_t chunk = n_chunks - 1; chunk >= 0; --chunk) {
    const int64_t t0 = chunk * kSimpleRows,
                  t1 = t0 + kSimpleRows < a.Tq ? t0 + kSimpleRows : a.Tq;
    s.Load(states + chunk * 3 * stride, n, stride);
    for (int64_t t = t0; t < t1; ++t)
      RowGradient(a, t, dy, dq, s, scratch + (t - t0) * width);
    if (chunk == n_chunks - 1) finite = Finite(n, s);
    for (int64_t t = t1 - 1; t >= t0; --t) {
      const T *share = scratch + (t - t0) * width,
              *undo = share + 2 * kSimpleChannels;
      sum.Add(n, share);
      if (!KeyAt(a, t)) {
        if (t < a.Tk) NoKeyGradient(a, t, dk, dv);
        continue;
      }
      const auto one = hn::Set(tag, T(1));
      KeyGradient(
          a, t, 0, sum,
          [&](int64_t c, const T*) {
            const auto u = hn::LoadU(tag, undo + c);
            return hn::IfThenElse(Signed(tag, u), one, u);
          },
          dk, dv);
      sum.Update(n, [&](int64_t c, auto& A, auto& C) {
        const auto u = hn::LoadU(tag, undo + c);
        const auto keep = hn::IfThenElse(Signed(tag, u), hn::Neg(u), one);
        A = hn::Mul(A, keep), C = hn::Mul(C, keep);
      });
    }
  }
  return finite && Finite(n, sum.A) && Finite(n, sum.C);
}

template <class T>
bool Backward(const Simple<T>& a, const T* dy, T* dq, T* dk, T* dv,
              T* scratch) {
  return (a.causal ? Causal<T> : NotCausal<T>)(a, dy, dq, dk, dv, scratch);
}

template <class T>
void Step(int64_t n, bool fresh, const T* q, const T* k, const T* v, T* state,
          T* y) {
  for (int64_t c0 = 0; c0 < n; c0 += kSimpleChannels) {
    const int64_t w = n - c0 < kSimpleChannels ? n - c0 : kSimpleChannels;
    State<T> s;
    if (!fresh) s.Load(state + c0, w, n);
    if (y) {
      WriteRow(k + c0, v + c0, q ? q + c0 : nullptr, w, 0, s, y + c0);
    } else {
      AbsorbRow(k + c0, v + c0, w, 0, s);
    }
    if (HWY_UNLIKELY(!Finite(w, s))) {
      State<T> before;
      if (!fresh) before.Load(state + c0, w, n);
      for (int64_t c = 0; c < w; ++c) {
        const double sums =
            NotFinite(s.m[c]) + NotFinite(s.n[c]) + NotFinite(s.d[c]);
        if (sums == 0) continue;
        s.m[c] = before.m[c], s.n[c] = before.n[c], s.d[c] = before.d[c];
        AbsorbNonFinite(k[c0 + c], v[c0 + c], s.m[c], s.n[c], s.d[c]);
        if (y) y[c0 + c] = Output(s.n[c], s.d[c], q ? q + c0 + c : nullptr);
      }
    }
    s.Save(w, n, state + c0);
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
      // so that nothing is rescaled. Exponents are computed as (k - k_max) + (w
      // - w_max), because k + w of large values would lose the low bits of
      // their difference.
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
      const auto most = hn::Set(tag, std::numeric_limits<T>::max());
      const bool finite = hn::AllTrue(
          tag, hn::And(hn::Le(hn::Abs(num), most), hn::Le(den, most)));
      auto y = Ratio(tag, num, den);
      if (a.q) {
        const T* q = Widen(a.q + c, lanes, qb);
        y = hn::Div(y, GateDivisor(tag, hn::LoadU(tag, q + i)));
      }
      StoreTile(tag, y, a.y + c, i, lanes);
      if (HWY_LIKELY(finite)) continue;
      HWY_ALIGN T sums[kTile];
      hn::Store(hn::Add(hn::Abs(num), den), tag, sums);
      for (size_t x = 0;
           x < hn::Lanes(tag) && i + x < static_cast<size_t>(lanes); ++x) {
        const int64_t channel = c + static_cast<int64_t>(i + x);
        if (NotFinite(sums[x]) != 0) a.y[channel] = StepOfChannel(a, channel);
      }
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

AFT_KERNEL_TABLES(SimpleKernels, Forward<T>, Backward<T>, Step<T>,
                  StepInWindow<T>, ExpArray<T>)

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

AFT_EXPORT_KERNELS(SimpleKernels, simple_kernels)

const char* target_name() noexcept {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);  // the lowest bit is the best
}

bool use_target(const char* name) noexcept {
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0;
       rest &= rest - 1) {
    const int64_t target = rest & -rest;
    if (std::strcmp(hwy::TargetName(target), name) != 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  return false;
}

}  // namespace aft::kernels
#endif
