// AFT-full and AFT-local as one banded matrix product: with W = exp(w) inside
// the band and 1 outside,
//
//   [num | den]_t = sum_j W_tj [exp(k) v | exp(k)]_j
//                 = before_t + sum_{j in band} W_tj panel_j + after_t.
//
// The three parts are disjoint sums of non-negative weights, so nothing
// cancels. Backward is the same product with W transposed over the panel [a /
// den | -a r / den], and dw a product of the two panels.
#include "aft/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/band_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "aft/kernels/band_simd-inl.h"
#include "aft/kernels/math_simd-inl.h"
#include "aft/kernels/simd_dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

/// Collected while the keys of a tile are packed: a reference per lane, the
/// extremes of the keys that are not padded, and the first key beyond
/// FastPathLimits (`keys` if none).
template <class T>
struct KeyState {
  HWY_ALIGN T ref[kTile], max[kTile], min[kTile];
  int64_t safe;

  void restart(int64_t keys) {
    for (int i = 0; i < kTile; ++i)
      max[i] = -std::numeric_limits<T>::infinity(), min[i] = -max[i];
    safe = keys;
  }
};

/// Panel rows of keys [j0, j1) of one tile.
template <class T>
HWY_INLINE void PackRange(const Band& band, const Strip<T>& strip, int tile,
                          int64_t j0, int64_t j1, KeyState<T>& s, T* panel) {
  const TileTag<T> d;
  const int lanes = strip.lanes(tile);
  const T *keys = strip.k + tile * kTile, *values = strip.v + tile * kTile;
  const auto limit = hn::Set(d, FastPathLimits<T>::key),
             v_limit = hn::Set(d, FastPathLimits<T>::value);
  HWY_ALIGN T kb[kTile], vb[kTile];
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
    const auto ref = hn::Load(d, s.ref + i);
    auto max = hn::Load(d, s.max + i), min = hn::Load(d, s.min + i);
    auto good = hn::Eq(ref, ref);  // NaN fails every comparison
    for (int64_t j = j0; j < j1; ++j) {
      T* out = panel + j * kBandPanel + i;
      if (strip.padded && strip.padded[j]) {
        hn::Store(hn::Zero(d), d, out);
        hn::Store(hn::Zero(d), d, out + kTile);
        continue;
      }
      const T* k =
          Ahead(keys + j * strip.stride, kAhead * strip.stride, lanes, kb);
      const T* v =
          Ahead(values + j * strip.stride, kAhead * strip.stride, lanes, vb);
      const auto kj = hn::LoadU(d, k + i), vj = hn::LoadU(d, v + i);
      max = hn::Max(max, kj);
      min = hn::Min(min, kj);
      const auto x = hn::Sub(kj, ref);
      good = hn::And(good,
                     hn::And(hn::Le(x, limit), hn::Le(hn::Abs(vj), v_limit)));
      const auto e = ExpV(d, hn::Min(x, limit));
      hn::Store(hn::Mul(e, vj), d, out);
      hn::Store(e, d, out + kTile);
    }
    hn::Store(max, d, s.max + i);
    hn::Store(min, d, s.min + i);
    auto bad = hn::Not(good);
    if (band.window_only)
      bad = hn::Or(bad, hn::Lt(hn::Sub(min, ref), hn::Neg(limit)));
    if (HWY_LIKELY(hn::AllFalse(d, bad))) continue;
    // A key is beyond FastPathLimits, in this range or before it (min is
    // cumulative). Find the first one, and set such keys to 0: rows of the fast
    // path multiply them by a weight of 0, and 0 * inf is NaN.
    const int last =
        static_cast<int>(std::min<size_t>(i + hn::Lanes(d), lanes));
    for (int64_t j = j0; j < j1; ++j) {
      if (strip.padded && strip.padded[j]) continue;
      for (int c = static_cast<int>(i); c < last; ++c) {
        const T x = keys[j * strip.stride + c] - s.ref[c];
        const T v = values[j * strip.stride + c];
        const bool beyond = !(x <= FastPathLimits<T>::key) ||
                            !(std::abs(v) <= FastPathLimits<T>::value) ||
                            (band.window_only && x < -FastPathLimits<T>::key);
        if (!beyond) continue;
        s.safe = std::min(s.safe, j);
        panel[j * kBandPanel + c] = panel[j * kBandPanel + kTile + c] = T(0);
      }
    }
  }
}

template <class T>
void PackKeys(const Band& band, const Strip<T>& strip, const Panel<T>& panel,
              int64_t* safe_rows) {
  constexpr T limit = FastPathLimits<T>::key;
  KeyState<T> states[kStrip / kTile];
  const int tiles = strip.tiles();
  int64_t first = 0;
  while (strip.padded && first < band.keys && strip.padded[first]) ++first;
  for (int tile = 0; tile < tiles; ++tile) {
    KeyState<T>& s = states[tile];
    s.restart(band.keys);
    safe_rows[tile] = band.rows;
    for (int i = 0; i < kTile; ++i) s.ref[i] = T(0);
    // A causal reference may only depend on the past: 0, or, if that is too far
    // away, the first key, which all rows have in common.
    for (int i = 0; band.causal && first < band.keys && i < strip.lanes(tile);
         ++i) {
      const T k = strip.k[first * strip.stride + tile * kTile + i];
      if (!(k >= -limit && k <= limit)) s.ref[i] = k;
      if (!(std::abs(k) <= std::numeric_limits<T>::max()))
        s.ref[i] = T(0), safe_rows[tile] = 0;
    }
  }
  for (int64_t j = 0; j < band.keys; j += kTogether) {
    for (int tile = 0; tile < tiles; ++tile) {
      PackRange(band, strip, tile, j, std::min(j + kTogether, band.keys),
                states[tile], panel.rows + tile * panel.step);
    }
  }
  for (int tile = 0; tile < tiles; ++tile) {
    KeyState<T>& s = states[tile];
    T* rows = panel.rows + tile * panel.step;
    bool moved = false;
    for (int i = 0; !band.causal && i < strip.lanes(tile); ++i) {
      const bool any = s.max[i] >= -std::numeric_limits<T>::max();
      if (!any || (s.max[i] >= -limit && s.max[i] <= limit &&
                   !(band.window_only && s.min[i] < -limit)))
        continue;
      s.ref[i] = band.window_only ? s.max[i] / 2 + s.min[i] / 2 : s.max[i];
      if (!(std::abs(s.ref[i]) <= std::numeric_limits<T>::max()))
        s.ref[i] = T(0);
      moved = true;
    }
    if (moved) {
      s.restart(band.keys);
      PackRange(band, strip, tile, 0, band.keys, s, rows);
    }
    if (s.safe < band.keys)
      safe_rows[tile] = band.causal ? std::min(safe_rows[tile], s.safe) : 0;
    Outside(
        blocks(band.rows), band.keys,
        [&](int64_t b) { return band.key_begin(b * kBlockRows); },
        [&](int64_t b) {
          return band.key_end(std::min((b + 1) * kBlockRows, band.rows));
        },
        rows, panel.before ? panel.before + tile * panel.step : nullptr,
        panel.after ? panel.after + tile * panel.step : nullptr);
  }
}

/// The rows of blocks [g0, g1) from their sums, row by row through all tiles,
/// so that whole cache lines are written.
template <class T>
HWY_INLINE void FinishRows(const Band& band, int64_t g0, int64_t g1,
                           const Strip<T>& strip, const Sums<T>& sums,
                           const BandOut<T>& out) {
  const TileTag<T> d;
  for (int64_t t = g0 * kBlockRows; t < std::min(g1 * kBlockRows, band.rows);
       ++t) {
    for (int tile = 0; tile < strip.tiles(); ++tile) {
      if (out.logspace && out.logspace[tile * band.rows + t]) continue;
      const int lanes = strip.lanes(tile);
      const T* acc = sums.of[tile] + (t - g0 * kBlockRows) * kBandPanel;
      HWY_ALIGN T qb[kTile];
      const int64_t at = t * strip.stride + tile * kTile;
      const T* q = strip.q
                       ? Ahead(strip.q + at, kGroup * kBlockRows * strip.stride,
                               lanes, qb)
                       : nullptr;
      for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
        const auto num = hn::Load(d, acc + i),
                   den = hn::Load(d, acc + kTile + i);
        const auto gate =
            q ? GateDivisor(d, hn::LoadU(d, q + i)) : hn::Set(d, T(1));
        if (out.r) {
          const auto r = Ratio(d, num, den);
          StoreTile(d, r, out.r + at, i, lanes);
          StoreTile(d, hn::Div(r, gate), out.y + at, i, lanes);
        } else {  // one division for both
          StoreTile(d, Ratio(d, num, hn::Mul(den, gate)), out.y + at, i, lanes);
        }
        if (out.den) StoreTile(d, den, out.den + at, i, lanes);
      }
    }
  }
}

template <class T>
void Forward(const Band& band, int64_t b0, int64_t b1, const Strip<T>& strip,
             const Panel<T>& panel, const T* packed, int64_t width,
             const BandOut<T>& out) {
  Sums<T> sums;
  for (int64_t g0 = b0; g0 < b1; g0 += kGroup) {
    const int64_t g1 = std::min<int64_t>(g0 + kGroup, b1);
    for (int tile = 0; tile < strip.tiles(); ++tile) {
      Product(
          g0, g1, [&](int64_t b) { return band.key_begin(b * kBlockRows); },
          [&](int64_t b) {
            return band.key_end(std::min((b + 1) * kBlockRows, band.rows));
          },
          panel, tile, packed + (g0 - b0) * width * kBlockRows, width,
          sums.of[tile]);
    }
    FinishRows(band, g0, g1, strip, sums, out);
  }
}

/// Panel rows [t0, t1) of one tile of the panel of rows.
template <class T>
HWY_INLINE void PackRowRange(const Strip<T>& strip, int tile, int64_t t0,
                             int64_t t1, const BandGrad<T>& grad,
                             uint8_t* logspace, T* panel) {
  const TileTag<T> d;
  const int lanes = strip.lanes(tile);
  HWY_ALIGN T qb[kTile], gb[kTile], rb[kTile], db[kTile];
  for (int64_t t = t0; t < t1; ++t) {
    T* out = panel + t * kBandPanel;
    const int64_t row = t * strip.stride + tile * kTile;
    const T* dy = Ahead(grad.dy + row, kAhead * strip.stride, lanes, gb);
    const T* q = strip.q
                     ? Ahead(strip.q + row, kAhead * strip.stride, lanes, qb)
                     : nullptr;
    const T* r = Ahead(grad.r + row, kAhead * strip.stride, lanes, rb);
    const T* den = Ahead(grad.den + row, kAhead * strip.stride, lanes, db);
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      const auto good = WithinLimits(
          d, hn::LoadU(d, dy + i), q ? hn::LoadU(d, q + i) : hn::Zero(d),
          hn::LoadU(d, r + i), hn::LoadU(d, den + i));
      if (HWY_UNLIKELY(!hn::AllTrue(d, good))) logspace[t] = 1;
    }
    if (logspace[t]) {
      for (int i = 0; i < kBandPanel; ++i) out[i] = T(0);
      continue;
    }
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      const auto rt = hn::LoadU(d, r + i);
      auto a = hn::LoadU(d, dy + i);
      if (q) {
        auto dq = hn::Zero(d);
        a = GateGradient(d, a, hn::LoadU(d, q + i), rt, dq);
        StoreTile(d, dq, grad.dq + row, i, lanes);
      }
      const auto share = Ratio(d, a, hn::LoadU(d, den + i));
      hn::Store(share, d, out + i);
      hn::Store(hn::Neg(hn::Mul(share, rt)), d, out + kTile + i);
    }
  }
}

template <class T>
void PackRows(const Band& band, const Strip<T>& strip, const BandGrad<T>& grad,
              const Panel<T>& panel) {
  for (int64_t t = 0; t < band.rows; t += kTogether) {
    for (int tile = 0; tile < strip.tiles(); ++tile) {
      PackRowRange(strip, tile, t, std::min(t + kTogether, band.rows), grad,
                   grad.logspace + tile * band.rows,
                   panel.rows + tile * panel.step);
    }
  }
  for (int tile = 0; tile < strip.tiles(); ++tile) {
    Outside(
        blocks(band.keys), band.rows,
        [&](int64_t b) { return band.row_begin(b * kBlockRows); },
        [&](int64_t b) {
          return band.row_end(std::min((b + 1) * kBlockRows, band.keys));
        },
        panel.rows + tile * panel.step,
        panel.before ? panel.before + tile * panel.step : nullptr,
        panel.after ? panel.after + tile * panel.step : nullptr);
  }
}

template <class T>
void Backward(const Band& band, int64_t b0, int64_t b1, const Strip<T>& strip,
              const Panel<T>& keys, const Panel<T>& rows, const T* packed,
              int64_t width, T* dk, T* dv) {
  const TileTag<T> d;
  Sums<T> sums;
  for (int64_t g0 = b0; g0 < b1; g0 += kGroup) {
    const int64_t g1 = std::min<int64_t>(g0 + kGroup, b1);
    for (int tile = 0; tile < strip.tiles(); ++tile) {
      Product(
          g0, g1, [&](int64_t b) { return band.row_begin(b * kBlockRows); },
          [&](int64_t b) {
            return band.row_end(std::min((b + 1) * kBlockRows, band.keys));
          },
          rows, tile, packed + (g0 - b0) * width * kBlockRows, width,
          sums.of[tile]);
    }
    for (int64_t j = g0 * kBlockRows; j < std::min(g1 * kBlockRows, band.keys);
         ++j) {
      for (int tile = 0; tile < strip.tiles(); ++tile) {
        const int lanes = strip.lanes(tile);
        const T* acc = sums.of[tile] + (j - g0 * kBlockRows) * kBandPanel;
        const T* key = keys.rows + tile * keys.step + j * kBandPanel;
        const int64_t at = j * strip.stride + tile * kTile;
        for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
          const auto a = hn::Load(d, acc + i), c = hn::Load(d, acc + kTile + i);
          const auto ev = hn::Load(d, key + i),
                     e = hn::Load(d, key + kTile + i);
          StoreTile(d, hn::Mul(e, a), dv + at, i, lanes);
          StoreTile(d, hn::MulAdd(ev, a, hn::Mul(e, c)), dk + at, i, lanes);
        }
      }
    }
  }
}

AFT_KERNEL_TABLES(BandKernels, PackKeys<T>, PackWeights<T>,
                  PackWeightsTransposed<T>, Forward<T>, PackRows<T>,
                  Backward<T>, Dw<T>, ScaleDw<T>, Outer<T>)

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

AFT_EXPORT_KERNELS(BandKernels, band_kernels)

}  // namespace aft::kernels
#endif
