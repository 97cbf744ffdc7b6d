// AFT with one biased key per head. As w is constant, num and den of row t
// depend only on i = t + o. One pass over the keys i computes
//   r_i = (rest_i + exp(w) x_i) / (the same with v = 1), x = exp(k) v,
// rest_i = sum_{j != i} x_j; then y_t = gate(q_t) r_{t+o} is a load and a
// product.
#include "aft/kernels/one_tap.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/one_tap_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "aft/kernels/math_simd-inl.h"
#include "aft/kernels/simd_dispatch.h"
#include "aft/kernels/simple_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

/// The layout of the panel. A row is [x | e] of kPanel channels; later r
/// replaces both, without gaps, so that it stays in the first-level cache.
/// There are `pad` rows between, before and after the lines of the grid, and a
/// whole line at the end. All of these hold r without a biased key, so that t +
/// o needs no check of the edges along X.
constexpr int64_t kWidth = 2 * kPanel;
struct OneTapPanel {
  int64_t X, lines, pad;

  /// Index of a row.
  int64_t row(int64_t line, int64_t x) const {
    return pad + line * (X + pad) + x;
  }
  int64_t outside() const { return row(lines, 0); }
};

/// Rows are kilobytes apart, which hardware prefetchers do not follow: the
/// first panel prefetches this many rows ahead, and each panel prefetches the
/// next one. (14 x 14, 384 channels, one thread: 4.8 ms without the latter, 3.9
/// to 4.2 with.)
constexpr int64_t kRowsAhead = 8;
/// Number of rows whose r are gathered before the gate is applied.
constexpr int64_t kRun = 16;

template <class T>
using PanelVec = hn::Vec<TileTag<T>>;
template <class T>
inline constexpr int kVectors = kPanel /
                                static_cast<int>(hn::MaxLanes(TileTag<T>()));

/// Calls f(0), f(1), ... f(n - 1) with compile-time constants, so that arrays
/// indexed by them stay in registers: compilers unroll ordinary loops too late
/// for that.
template <int n, class F>
HWY_INLINE void ForVectors(const F& f) {
  if constexpr (n > 0) {
    ForVectors<n - 1>(f);
    f(std::integral_constant<int, n - 1>());
  }
}

/// Iterates over the panel rows of all positions: `for (PanelRows r(layout,
/// panel); r.more(); r.next())`.
template <class T>
struct PanelRows {
  const OneTapPanel& layout;
  T* row;
  int64_t number, t = 0, x = 0;

  PanelRows(const OneTapPanel& l, T* panel)
      : layout(l), row(panel + l.row(0, 0) * kWidth), number(l.row(0, 0)) {}
  bool more() const { return t < layout.lines * layout.X; }
  void next() {
    const int64_t step = ++x == layout.X ? layout.pad + 1 : 1;
    if (x == layout.X) x = 0;
    ++t, number += step, row += step * kWidth;
  }
};

/// Row t of the channels of the piece, padded with zeros.
template <class T>
HWY_INLINE const T* PanelRow(const OneTap<T>& a, const T* x, int64_t t,
                             T* buffer) {
  const T* from = x + t * a.D + a.c0;
  if (a.c0 == 0) hwy::Prefetch(from + kRowsAhead * a.D);
  hwy::Prefetch(from + kPanel);
  const int64_t lanes = a.c1 - a.c0;
  if (lanes == kPanel) return from;
  for (int64_t i = 0; i < kPanel; ++i) buffer[i] = i < lanes ? from[i] : T(0);
  return buffer;
}

template <class T>
HWY_INLINE int64_t HeadOf(const OneTap<T>& a, int64_t lane) {
  return std::min(a.c0 + lane, a.c1 - 1) / (a.D / a.H);
}

/// The head of each lane. If heads have several channels, a panel has few
/// heads: they are one vector, expanded to the lanes when needed.
template <class T>
struct Heads {
  int64_t first;  // in lane 0 of the vector
  bool few;
  HWY_ALIGN hn::TFromD<hn::RebindToSigned<TileTag<T>>> lane[kPanel];

  explicit Heads(const OneTap<T>& a) : first(HeadOf(a, 0)) {
    const int64_t N = static_cast<int64_t>(hn::Lanes(TileTag<T>()));
    few = a.H < a.D && HeadOf(a, kPanel - 1) - first < N;
    for (int64_t i = 0; i < kPanel; ++i) lane[i] = HeadOf(a, i) - first;
  }
};

/// Copies keys to the second half of the panel rows: one per lane, or one
/// vector of heads if they are few. max: the largest keys that are not padded.
template <class T>
HWY_FLATTEN HWY_NOINLINE void TakeKeys(const OneTap<T>& a,
                                       const OneTapPanel& layout,
                                       const Heads<T>& heads, T* panel,
                                       T* max) {
  const TileTag<T> d;
  constexpr int kV = kVectors<T>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = layout.lines * layout.X * a.H;
  // Keys that are read at once, and whether the lanes are in order.
  const int64_t count = heads.few ? N : kPanel;
  const bool ordered = heads.few || a.H == a.D;
  PanelVec<T> most[kV];
  ForVectors<kV>(
      [&](auto v) { most[v] = hn::Set(d, std::numeric_limits<T>::lowest()); });
  for (PanelRows<T> r(layout, panel); r.more(); r.next()) {
    if (a.padded && a.padded[r.t]) continue;
    const int64_t at = r.t * a.H + heads.first;
    const T* from = a.k + at;
    T* to = r.row + kPanel;
    if (HWY_UNLIKELY(!ordered || at + count > end)) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t h = ordered ? i : heads.lane[i];
        to[i] = at + h < end ? from[h] : T(0);
      }
      from = to;
    }
    ForVectors<kV>([&](auto v) {
      if (v > 0 && heads.few) return;
      const auto k = hn::LoadU(d, from + v * N);
      most[v] = hn::Max(most[v], k);
      hn::Store(k, d, to + v * N);
    });
  }
  ForVectors<kV>([&](auto v) { hn::Store(most[v], d, max + v * N); });
}

/// Sums over all keys of [x | e] and of |x|, and the largest |x|.
template <class T>
struct Totals {
  HWY_ALIGN T sums[kWidth], size[kPanel], largest[kPanel];
};

/// Panel rows from their keys: e = exp(k - max) kOne and x = e v, 0 where
/// padded.
template <class T>
HWY_FLATTEN HWY_NOINLINE void Weigh(const OneTap<T>& a,
                                    const OneTapPanel& layout,
                                    const Heads<T>& heads, const T* max,
                                    T* panel, Totals<T>& totals) {
  const TileTag<T> d;
  constexpr int kV = kVectors<T>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN T buffer[kPanel];
  PanelVec<T> m[kV], sx[kV], se[kV], size[kV], largest[kV];
  decltype(hn::SetTableIndices(d, heads.lane)) index[kV];
  ForVectors<kV>([&](auto v) {
    if (heads.few) index[v] = hn::SetTableIndices(d, heads.lane + v * N);
    m[v] = hn::Load(d, max + v * N);
    sx[v] = se[v] = size[v] = largest[v] = hn::Zero(d);
  });
  for (PanelRows<T> r(layout, panel); r.more(); r.next()) {
    T* row = r.row;
    if (a.padded && a.padded[r.t]) {
      memset(row, 0, kWidth * sizeof(T));
      continue;
    }
    const T* values = PanelRow(a, a.v, r.t, buffer);
    // For the next panel.
    hwy::Prefetch(a.k + r.t * a.H + heads.first + kPanel);
    const auto weight = [&](auto v) {
      const auto k = hn::Load(d, row + kPanel + v * N);
      return hn::Mul(ExpV(d, hn::Sub(k, m[v])), hn::Set(d, kOne<T>));
    };
    auto e = weight(std::integral_constant<int, 0>());
    const auto few = e;
    ForVectors<kV>([&](auto v) {
      if (heads.few) {
        e = hn::TableLookupLanes(few, index[v]);
      } else if (v > 0) {
        e = weight(v);
      }
      const auto x = hn::Mul(e, hn::LoadU(d, values + v * N));
      hn::Store(x, d, row + v * N);
      hn::Store(e, d, row + kPanel + v * N);
      sx[v] = hn::Add(sx[v], x);
      se[v] = hn::Add(se[v], e);
      size[v] = hn::Add(size[v], hn::Abs(x));
      largest[v] = hn::Max(largest[v], hn::Abs(x));
    });
  }
  ForVectors<kV>([&](auto v) {
    hn::Store(sx[v], d, totals.sums + v * N);
    hn::Store(se[v], d, totals.sums + kPanel + v * N);
    hn::Store(size[v], d, totals.size + v * N);
    hn::Store(largest[v], d, totals.largest + v * N);
  });
}

/// rest [T, kWidth]: for each panel row, the sum of all others, computed from
/// the sum of those before it and the sum of those after it.
template <class T>
HWY_NOINLINE void Others(const OneTapPanel& layout, T* panel, T* rest) {
  const TileTag<T> d;
  const int64_t last = layout.lines * layout.X - 1;
  HWY_ALIGN T sum[kWidth] = {};
  for (PanelRows<T> r(layout, panel); r.more(); r.next()) {
    for (int64_t i = 0; i < kWidth; i += hn::Lanes(d)) {
      const auto before = hn::Load(d, sum + i);
      hn::Store(before, d, rest + r.t * kWidth + i);
      hn::Store(hn::Add(before, hn::Load(d, r.row + i)), d, sum + i);
    }
  }
  memset(sum, 0, sizeof(sum));
  for (int64_t t = last; t >= 0; --t) {
    const T* row = panel + layout.row(t / layout.X, t % layout.X) * kWidth;
    for (int64_t i = 0; i < kWidth; i += hn::Lanes(d)) {
      const auto after = hn::Load(d, sum + i);
      T* at = rest + t * kWidth + i;
      hn::Store(hn::Add(after, hn::Load(d, at)), d, at);
      hn::Store(hn::Add(after, hn::Load(d, row + i)), d, sum + i);
    }
  }
}

/// Replaces x of each panel row by r, and fills the rows between the lines.
template <class T>
HWY_NOINLINE void Reduce(const OneTapPanel& layout, int64_t lanes, const T* w,
                         const Totals<T>& totals, T* panel, T* rest) {
  const TileTag<T> d;
  constexpr int kV = kVectors<T>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  // r = (a rest + b x) / (a rest_e + b e) with b / a = exp(w) and a, b <= 1.
  PanelVec<T> a[kV], b[kV], none[kV];
  const auto zero = hn::Zero(d), half = hn::Set(d, T(0.5));
  bool apart = false;
  ForVectors<kV>([&](auto v) {
    const auto wv = hn::Load(d, w + v * N);
    const auto sum = hn::Load(d, totals.sums + kPanel + v * N);
    a[v] = ExpV(d, hn::Neg(hn::Max(wv, zero)));
    b[v] = ExpV(d, hn::Min(wv, zero));
    none[v] = Ratio(d, hn::Load(d, totals.sums + v * N), sum);
    // Computed from the totals, a total + (b - a) x, if that subtracts at most
    // half: if w >= 0, or if no single key or value dominates a sum. Otherwise
    // from the sums of the others.
    const auto less = hn::Sub(a[v], b[v]);
    const auto safe =
        hn::And(hn::Le(hn::Mul(less, hn::Load(d, totals.largest + v * N)),
                       hn::Mul(half, hn::Load(d, totals.size + v * N))),
                hn::Le(hn::Mul(less, hn::Set(d, kOne<T>)), hn::Mul(half, sum)));
    // Lanes beyond the channels are undefined.
    const auto unused = hn::Not(hn::FirstN(
        d, static_cast<size_t>(std::max<int64_t>(0, lanes - v * N))));
    apart = apart || !hn::AllTrue(d, hn::Or(safe, unused));
  });
  if (apart) {
    Others(layout, panel, rest);
  } else {
    memcpy(rest, totals.sums, sizeof(totals.sums));
    ForVectors<kV>([&](auto v) { b[v] = hn::Sub(b[v], a[v]); });
  }
  const int64_t stride = apart ? kWidth : 0;
  for (PanelRows<T> r(layout, panel); r.more(); r.next()) {
    T* row = r.row;
    const T* others = rest + r.t * stride;
    ForVectors<kV>([&](auto v) {
      const auto num = hn::MulAdd(a[v], hn::Load(d, others + v * N),
                                  hn::Mul(b[v], hn::Load(d, row + v * N)));
      const auto den =
          hn::MulAdd(a[v], hn::Load(d, others + kPanel + v * N),
                     hn::Mul(b[v], hn::Load(d, row + kPanel + v * N)));
      // Overwrites rows that have been read.
      hn::Store(Ratio(d, num, den), d, panel + r.number * kPanel + v * N);
    });
  }
  for (int64_t line = 0; line <= layout.lines; ++line) {
    T* row = panel + layout.row(line, -layout.pad) * kPanel;
    const int64_t count = layout.pad + (line == layout.lines ? layout.X : 0);
    for (int64_t x = 0; x < count; ++x, row += kPanel)
      ForVectors<kV>([&](auto v) { hn::Store(none[v], d, row + v * N); });
  }
}

/// Four elements, which are stored at once.
template <class T>
using Four __attribute__((vector_size(4 * sizeof(T)))) = T;

/// y_t = gate(q_t) r_{t+o}.
template <class T>
HWY_NOINLINE void Write(const OneTap<T>& a, const OneTapPanel& layout,
                        const int64_t (*offset)[kPanel], const T* panel) {
  const TileTag<T> d;
  constexpr int kV = kVectors<T>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d)), lanes = a.c1 - a.c0;
  HWY_ALIGN T buffer[kPanel], out[kPanel], run[kRun * kPanel];
  const T *from[kPanel], *line = panel + layout.row(0, 0) * kPanel;
  int64_t t = 0, near[kPanel];
  for (int64_t i = 0; i < kPanel; ++i)
    near[i] = (layout.row(offset[0][i] * a.Y + offset[1][i], offset[2][i]) -
               layout.row(0, 0)) *
                  kPanel +
              i;
  for (int64_t n = 0; n < layout.lines;
       ++n, line += (a.X + layout.pad) * kPanel) {
    const int64_t z = n / a.Y, y = n % a.Y;
    for (int64_t i = 0; i < kPanel; ++i) {
      const int64_t kz = z + offset[0][i], ky = y + offset[1][i];
      const bool inside = kz >= 0 && kz < a.Z && ky >= 0 && ky < a.Y;
      from[i] = inside ? line + near[i] : panel + layout.outside() * kPanel + i;
    }
    for (int64_t x0 = 0; x0 < a.X; x0 += kRun) {
      const int64_t rows = std::min(kRun, a.X - x0);
      // Four lanes at a time: their addresses stay in registers. (Gather
      // instructions take twice as long.)
      for (int64_t i = 0; i < kPanel; i += 4) {
        const T *p0 = from[i] + x0 * kPanel, *p1 = from[i + 1] + x0 * kPanel,
                *p2 = from[i + 2] + x0 * kPanel,
                *p3 = from[i + 3] + x0 * kPanel;
        for (int64_t x = 0; x < rows; ++x) {
          const Four<T> four = {p0[x * kPanel], p1[x * kPanel], p2[x * kPanel],
                                p3[x * kPanel]};
          memcpy(run + x * kPanel + i, &four, sizeof(four));
        }
      }
      for (int64_t x = 0; x < rows; ++x, ++t) {
        const T* q = a.q ? PanelRow(a, a.q, t, buffer) : nullptr;
        T* to = lanes == kPanel ? a.y + t * a.D + a.c0 : out;
        hwy::Prefetch(to + kPanel);
        ForVectors<kV>([&](auto v) {
          auto r = hn::Load(d, run + x * kPanel + v * N);
          if (q) r = hn::Div(r, GateDivisor(d, hn::LoadU(d, q + v * N)));
          hn::StoreU(r, d, to + v * N);
        });
        if (to == out)
          memcpy(a.y + t * a.D + a.c0, out,
                 static_cast<size_t>(lanes) * sizeof(T));
      }
    }
  }
}

/// Whether the totals of n channels are finite.
template <class T>
bool Finite(const Totals<T>& totals, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T both = totals.size[i] + totals.sums[kPanel + i];
    if (!(both <= std::numeric_limits<T>::max())) return false;
  }
  return true;
}

template <class T>
bool Forward(const OneTap<T>& piece, T* scratch) {
  const OneTap<T> a =
      piece;  // a local copy, which cannot alias the stores: stays in registers
  HWY_ALIGN T w[kPanel], max[kPanel];
  int64_t offset[3][kPanel];
  OneTapPanel layout{a.X, a.Z * a.Y, 0};
  const int64_t grid[3] = {a.Z, a.Y, a.X};
  for (int64_t i = 0; i < kPanel; ++i) {
    const int64_t h = HeadOf(a, i);
    w[i] = a.w[h];
    for (int axis = 0; axis < 3; ++axis) {
      // Clamped, so that sums do not overflow. Offsets that lead outside the
      // grid from every position still do.
      const int64_t o = a.offsets[3 * h + axis], n = grid[axis];
      offset[axis][i] = std::min(std::max(o, -n), n);
    }
    const int64_t x = offset[2][i] < 0 ? -offset[2][i] : offset[2][i];
    if (x < a.X) {
      layout.pad = std::max(layout.pad, x);
    } else {
      offset[0][i] = a.Z;  // outside along Z, which is checked
    }
  }
  T *rest = scratch, *panel = scratch + layout.lines * a.X * kWidth;
  const Heads<T> heads(a);
  Totals<T> totals;
  TakeKeys(a, layout, heads, panel, max);
  Weigh(a, layout, heads, max, panel, totals);
  Reduce(layout, a.c1 - a.c0, w, totals, panel, rest);
  Write(a, layout, offset, panel);
  return Finite(totals, a.c1 - a.c0);
}

AFT_KERNEL_TABLES(OneTapKernels, Forward<T>)

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

AFT_EXPORT_KERNELS(OneTapKernels, one_tap_kernels)

}  // namespace aft::kernels
#endif
