// AFT-full and AFT-local as one banded matrix product: with W = exp(w) inside
// the band and 1 outside,
//
//   [num | den]_t = sum_j W_tj [exp(k) v | exp(k)]_j = before_t + sum_{j in
//   band} W_tj panel_j + after_t.
//
// The three parts are disjoint sums of non-negative weights, so nothing
// cancels. Backward is the same product with W transposed over the panel [a /
// den | -a r / den], and dw a product of the two panels.
#include "aft/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aft/kernels/band.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "aft/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aft {
namespace kernels {
namespace HWY_NAMESPACE {

// Rows of a panel that stay in the first-level cache while blocks multiply with
// them, and blocks that share them.
constexpr int64_t kDepth = 256;
constexpr int kGroup = 16;
// Rows that all tiles of a strip pack before the next rows.
constexpr int64_t kTogether = 32;

template <class T>
using PanelTag = hn::CappedTag<T, kPanel>;

/// acc[i] += sum_j w[j, i] panel[j] for kRows rows i: 12 accumulators of 256
/// bits, the inner loop of full and local.
template <class T>
HWY_INLINE void Multiply(const T* HWY_RESTRICT panel, const T* HWY_RESTRICT w,
                         int64_t n, T* HWY_RESTRICT acc) {
  const PanelTag<T> d;
  const size_t N = hn::Lanes(d);
  static_assert(kRows == 6, "six rows are written out below");
  for (size_t c = 0; c < kPanel; c += 2 * N) {
    const size_t e =
        c + N < kPanel
            ? c + N
            : c;  // a vector of 16 lanes is a whole panel row: do it once
    auto a0 = hn::Load(d, acc + c), b0 = hn::Load(d, acc + e);
    auto a1 = hn::Load(d, acc + kPanel + c), b1 = hn::Load(d, acc + kPanel + e);
    auto a2 = hn::Load(d, acc + 2 * kPanel + c),
         b2 = hn::Load(d, acc + 2 * kPanel + e);
    auto a3 = hn::Load(d, acc + 3 * kPanel + c),
         b3 = hn::Load(d, acc + 3 * kPanel + e);
    auto a4 = hn::Load(d, acc + 4 * kPanel + c),
         b4 = hn::Load(d, acc + 4 * kPanel + e);
    auto a5 = hn::Load(d, acc + 5 * kPanel + c),
         b5 = hn::Load(d, acc + 5 * kPanel + e);
    const T* p = panel;
    const T* x = w;
    for (int64_t j = 0; j < n; ++j, p += kPanel, x += kRows) {
      const auto pa = hn::Load(d, p + c);
      const auto pb = hn::Load(d, p + e);
      auto s = hn::Set(d, x[0]);
      a0 = hn::MulAdd(s, pa, a0);
      b0 = hn::MulAdd(s, pb, b0);
      s = hn::Set(d, x[1]);
      a1 = hn::MulAdd(s, pa, a1);
      b1 = hn::MulAdd(s, pb, b1);
      s = hn::Set(d, x[2]);
      a2 = hn::MulAdd(s, pa, a2);
      b2 = hn::MulAdd(s, pb, b2);
      s = hn::Set(d, x[3]);
      a3 = hn::MulAdd(s, pa, a3);
      b3 = hn::MulAdd(s, pb, b3);
      s = hn::Set(d, x[4]);
      a4 = hn::MulAdd(s, pa, a4);
      b4 = hn::MulAdd(s, pb, b4);
      s = hn::Set(d, x[5]);
      a5 = hn::MulAdd(s, pa, a5);
      b5 = hn::MulAdd(s, pb, b5);
    }
    hn::Store(a0, d, acc + c), hn::Store(b0, d, acc + e);
    hn::Store(a1, d, acc + kPanel + c), hn::Store(b1, d, acc + kPanel + e);
    hn::Store(a2, d, acc + 2 * kPanel + c),
        hn::Store(b2, d, acc + 2 * kPanel + e);
    hn::Store(a3, d, acc + 3 * kPanel + c),
        hn::Store(b3, d, acc + 3 * kPanel + e);
    hn::Store(a4, d, acc + 4 * kPanel + c),
        hn::Store(b4, d, acc + 4 * kPanel + e);
    hn::Store(a5, d, acc + 5 * kPanel + c),
        hn::Store(b5, d, acc + 5 * kPanel + e);
  }
}

/// The product of one tile over blocks [b0, b1), at most kGroup, of `outer`
/// items, each over the inner items [begin(b), end(b)); done(i, acc) gets the
/// kPanel sums of outer item i.
template <class T, class Begin, class End, class Done>
HWY_INLINE void Product(int64_t outer, int64_t b0, int64_t b1,
                        const Begin& begin, const End& end,
                        const Panel<T>& panel, int tile, const T* packed,
                        int64_t width, const Done& done) {
  const PanelTag<T> d;
  const int64_t skip = tile * panel.step;
  HWY_ALIGN T acc[kGroup * kRows * kPanel];
  for (int64_t b = b0; b < b1; ++b) {
    for (size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
      auto sum = panel.before
                     ? hn::LoadU(d, panel.before + skip + b * kPanel + c)
                     : hn::Zero(d);
      if (panel.after)
        sum = hn::Add(sum, hn::LoadU(d, panel.after + skip + b * kPanel + c));
      for (int i = 0; i < kRows; ++i)
        hn::Store(sum, d, acc + ((b - b0) * kRows + i) * kPanel + c);
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
        Multiply(panel.rows + skip + lo * kPanel,
                 packed + ((b - b0) * width + lo - from) * kRows, hi - lo,
                 acc + (b - b0) * kRows * kPanel);
      }
    }
  }
  for (int64_t i = b0 * kRows; i < std::min(b1 * kRows, outer); ++i)
    done(i, acc + (i - b0 * kRows) * kPanel);
}

/// before[b] = sum of the panel rows below begin(b), after[b] = those from
/// end(b) on.
template <class T, class Begin, class End>
HWY_INLINE void Outside(int64_t n_blocks, int64_t n, const Begin& begin,
                        const End& end, const T* panel, T* before, T* after) {
  const PanelTag<T> d;
  for (size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
    const auto add = [&](hn::Vec<PanelTag<T>> total, int64_t from, int64_t to) {
      auto part = hn::Zero(
          d);  // block by block: a shorter chain of roundings than one by one
      for (int64_t j = from; j < to; ++j)
        part = hn::Add(part, hn::Load(d, panel + j * kPanel + c));
      return hn::Add(total, part);
    };
    auto sum = hn::Zero(d);
    for (int64_t b = 0, j = 0; before && b < n_blocks; ++b) {
      const int64_t to = begin(b);
      if (to > j) sum = add(sum, j, to), j = to;
      hn::StoreU(sum, d, before + b * kPanel + c);
    }
    sum = hn::Zero(d);
    for (int64_t b = n_blocks - 1, j = n; after && b >= 0; --b) {
      const int64_t from = end(b);
      if (from < j) sum = add(sum, from, j), j = from;
      hn::StoreU(sum, d, after + b * kPanel + c);
    }
  }
}

/// What packing the keys of a tile learns on the way: a reference for each
/// lane, the extremes of the keys that take part, and the first key that is
/// beyond Safe (or `keys`).
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
  const auto limit = hn::Set(d, Safe<T>::exponent),
             v_limit = hn::Set(d, Safe<T>::value);
  HWY_ALIGN T kb[kTile], vb[kTile];
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
    const auto ref = hn::Load(d, s.ref + i);
    auto max = hn::Load(d, s.max + i), min = hn::Load(d, s.min + i),
         size = hn::Zero(d);
    for (int64_t j = j0; j < j1; ++j) {
      T* out = panel + j * kPanel + i;
      if (strip.padded && strip.padded[j]) {
        hn::Store(hn::Zero(d), d, out);
        hn::Store(hn::Zero(d), d, out + kTile);
        continue;
      }
      const T* k =
          Ahead(keys + j * strip.stride, kTogether * strip.stride, lanes, kb);
      const T* v =
          Ahead(values + j * strip.stride, kTogether * strip.stride, lanes, vb);
      const auto kj = hn::LoadU(d, k + i), vj = hn::LoadU(d, v + i);
      max = hn::Max(max, kj);
      min = hn::Min(min, kj);
      size = hn::Max(size, hn::Abs(vj));
      const auto e = ExpV(d, hn::Min(hn::Sub(kj, ref), limit));
      hn::Store(hn::Mul(e, vj), d, out);
      hn::Store(e, d, out + kTile);
    }
    hn::Store(max, d, s.max + i);
    hn::Store(min, d, s.min + i);
    auto bad = hn::Or(hn::Gt(hn::Sub(max, ref), limit), hn::Gt(size, v_limit));
    if (band.window_only)
      bad = hn::Or(bad, hn::Lt(hn::Sub(min, ref), hn::Neg(limit)));
    if (HWY_LIKELY(hn::AllFalse(d, bad)) || s.safe <= j0) continue;
    // Something is beyond Safe, here or (max and min remember) before: look for
    // the first key that is.
    for (int64_t j = j0; j < std::min(j1, s.safe); ++j) {
      if (strip.padded && strip.padded[j]) continue;
      for (int c = static_cast<int>(i);
           c < std::min<int>(static_cast<int>(i + hn::Lanes(d)), lanes); ++c) {
        const T x = keys[j * strip.stride + c] - s.ref[c];
        const bool beyond = x > Safe<T>::exponent ||
                            (band.window_only && x < -Safe<T>::exponent);
        if (beyond || std::abs(values[j * strip.stride + c]) > Safe<T>::value)
          s.safe = std::min(s.safe, j);
      }
    }
  }
}

template <class T>
void PackKeys(const Band& band, const Strip<T>& strip, const Panel<T>& panel,
              int64_t* safe_rows) {
  constexpr T limit = Safe<T>::exponent;
  KeyState<T> states[kStrip / kTile];
  const int tiles = strip.tiles();
  int64_t first = 0;
  while (strip.padded && first < band.keys && strip.padded[first]) ++first;
  for (int tile = 0; tile < tiles; ++tile) {
    KeyState<T>& s = states[tile];
    s.restart(band.keys);
    safe_rows[tile] = band.rows;
    for (int i = 0; i < kTile; ++i) s.ref[i] = T(0);
    // A causal reference may only know the past: the first key, which every row
    // sees, if 0 is too far from it.
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
        [&](int64_t b) { return band.key_begin(b * kRows); },
        [&](int64_t b) {
          return band.key_end(std::min((b + 1) * kRows, band.rows));
        },
        rows, panel.before ? panel.before + tile * panel.step : nullptr,
        panel.after ? panel.after + tile * panel.step : nullptr);
  }
}

/// One block of the packed weights. row(i, a, b): sets [a, b), the inner items
/// with a bias of outer item i, and returns where those of inner item x are:
/// row(...)[x]. far_before and far_after: the weights on either side of it.
template <class T, class Row>
HWY_INLINE bool PackBlock(int64_t lo, int64_t hi, T far_before, T far_after,
                          const Row& row, T* packed, int i) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kChunk = 64;
  HWY_ALIGN T buffer[kChunk];
  const auto limit = hn::Set(d, Safe<T>::exponent);
  int64_t a = lo, b = lo;
  const T* w = row(&a, &b);
  a = std::min(std::max(a, lo), hi), b = std::min(std::max(b, a), hi);
  bool safe = true;
  for (int64_t x = lo; x < a; ++x) packed[(x - lo) * kRows + i] = far_before;
  for (int64_t x = b; x < hi; ++x) packed[(x - lo) * kRows + i] = far_after;
  for (int64_t x = a; x < b; x += kChunk) {
    const int64_t n = std::min(kChunk, b - x);
    for (int64_t y = 0; y < kChunk; ++y) buffer[y] = y < n ? w[x + y] : T(0);
    for (size_t y = 0; y < kChunk; y += hn::Lanes(d)) {
      const auto wv = hn::Load(d, buffer + y);
      safe = safe && hn::AllFalse(d, hn::Gt(hn::Abs(wv), limit));
      hn::Store(ExpV(d, hn::Min(hn::Max(wv, hn::Neg(limit)), limit)), d,
                buffer + y);
    }
    for (int64_t y = 0; y < n; ++y)
      packed[(x + y - lo) * kRows + i] = buffer[y];
  }
  return safe;
}

template <class T>
void PackWeights(const Band& band, int64_t b0, int64_t b1, const T* w,
                 int64_t ld, int64_t t0, int64_t j0, int64_t width, T* packed,
                 uint8_t* unsafe) {
  const T far = band.window_only ? T(0) : T(1),
          later = band.causal ? T(0) : far;
  for (int64_t block = b0; block < b1; ++block, packed += width * kRows) {
    const int64_t t_end = std::min((block + 1) * kRows, band.rows);
    const int64_t lo = band.key_begin(block * kRows), hi = band.key_end(t_end);
    for (int i = 0; i < kRows; ++i) {
      const int64_t t = block * kRows + i;
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
  for (int64_t block = b0; block < b1; ++block, packed += width * kRows) {
    const int64_t j_end = std::min((block + 1) * kRows, band.keys);
    const int64_t lo = band.row_begin(block * kRows), hi = band.row_end(j_end);
    for (int i = 0; i < kRows; ++i) {
      const int64_t j = block * kRows + i;
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

template <class T>
void Forward(const Band& band, int64_t b0, int64_t b1, const Strip<T>& strip,
             const Panel<T>& panel, const T* packed, int64_t width,
             const BandOut<T>& out) {
  const TileTag<T> d;
  for (int64_t g = b0; g < b1; g += kGroup) {
    for (int tile = 0; tile < strip.tiles(); ++tile) {
      const int lanes = strip.lanes(tile);
      const uint8_t* exact = out.exact ? out.exact + tile * band.rows : nullptr;
      Product(
          band.rows, g, std::min<int64_t>(g + kGroup, b1),
          [&](int64_t b) { return band.key_begin(b * kRows); },
          [&](int64_t b) {
            return band.key_end(std::min((b + 1) * kRows, band.rows));
          },
          panel, tile, packed + (g - b0) * width * kRows, width,
          [&](int64_t t, const T* acc) {
            if (exact && exact[t]) return;
            HWY_ALIGN T qb[kTile];
            const int64_t at = t * strip.stride + tile * kTile;
            const T* q = strip.q
                             ? Ahead(strip.q + at,
                                     kGroup * kRows * strip.stride, lanes, qb)
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
              } else {  // one division does for both
                StoreTile(d, Ratio(d, num, hn::Mul(den, gate)), out.y + at, i,
                          lanes);
              }
              if (out.den) StoreTile(d, den, out.den + at, i, lanes);
            }
          });
    }
  }
}

/// Panel rows [t0, t1) of one tile of the panel of rows.
template <class T>
HWY_INLINE void PackRowRange(const Strip<T>& strip, int tile, int64_t t0,
                             int64_t t1, const BandGrad<T>& grad,
                             uint8_t* exact, T* panel) {
  const TileTag<T> d;
  const int lanes = strip.lanes(tile);
  HWY_ALIGN T qb[kTile], gb[kTile], rb[kTile], db[kTile];
  for (int64_t t = t0; t < t1; ++t) {
    T* out = panel + t * kPanel;
    const int64_t row = t * strip.stride + tile * kTile;
    const T* dy = Ahead(grad.dy + row, kTogether * strip.stride, lanes, gb);
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      const auto bad =
          hn::Gt(hn::Abs(hn::LoadU(d, dy + i)), hn::Set(d, Safe<T>::value));
      if (HWY_UNLIKELY(!hn::AllFalse(d, bad))) exact[t] = 1;
    }
    if (exact[t]) {
      for (int i = 0; i < kPanel; ++i) out[i] = T(0);
      continue;
    }
    const T* q = strip.q
                     ? Ahead(strip.q + row, kTogether * strip.stride, lanes, qb)
                     : nullptr;
    const T* r = Ahead(grad.r + row, kTogether * strip.stride, lanes, rb);
    const T* den = Ahead(grad.den + row, kTogether * strip.stride, lanes, db);
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
                   grad.exact + tile * band.rows,
                   panel.rows + tile * panel.step);
    }
  }
  for (int tile = 0; tile < strip.tiles(); ++tile) {
    Outside(
        blocks(band.keys), band.rows,
        [&](int64_t b) { return band.row_begin(b * kRows); },
        [&](int64_t b) {
          return band.row_end(std::min((b + 1) * kRows, band.keys));
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
  for (int64_t g = b0; g < b1; g += kGroup) {
    for (int tile = 0; tile < strip.tiles(); ++tile) {
      const int lanes = strip.lanes(tile);
      const T* key_rows = keys.rows + tile * keys.step;
      Product(
          band.keys, g, std::min<int64_t>(g + kGroup, b1),
          [&](int64_t b) { return band.row_begin(b * kRows); },
          [&](int64_t b) {
            return band.row_end(std::min((b + 1) * kRows, band.keys));
          },
          rows, tile, packed + (g - b0) * width * kRows, width,
          [&](int64_t j, const T* acc) {
            const T* key = key_rows + j * kPanel;
            const int64_t at = j * strip.stride + tile * kTile;
            for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
              const auto a = hn::Load(d, acc + i),
                         c = hn::Load(d, acc + kTile + i);
              const auto ev = hn::Load(d, key + i),
                         e = hn::Load(d, key + kTile + i);
              StoreTile(d, hn::Mul(e, a), dv + at, i, lanes);
              StoreTile(d, hn::MulAdd(ev, a, hn::Mul(e, c)), dk + at, i, lanes);
            }
          });
    }
  }
}

/// sums[i, j] = sum over tiles and channels of rows_panel[t_i] .
/// keys_panel[j_j], for 3 rows and 4 keys.
template <class T>
HWY_INLINE void Dots(const T* const* row, const T* const* key, int64_t tiles,
                     int64_t row_step, int64_t key_step, T* sums) {
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
    for (size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
      const auto a0 = hn::LoadU(d, r0 + c), a1 = hn::LoadU(d, r1 + c),
                 a2 = hn::LoadU(d, r2 + c);
      auto x = hn::LoadU(d, k0 + c);
      s00 = hn::MulAdd(a0, x, s00), s10 = hn::MulAdd(a1, x, s10),
      s20 = hn::MulAdd(a2, x, s20);
      x = hn::LoadU(d, k1 + c);
      s01 = hn::MulAdd(a0, x, s01), s11 = hn::MulAdd(a1, x, s11),
      s21 = hn::MulAdd(a2, x, s21);
      x = hn::LoadU(d, k2 + c);
      s02 = hn::MulAdd(a0, x, s02), s12 = hn::MulAdd(a1, x, s12),
      s22 = hn::MulAdd(a2, x, s22);
      x = hn::LoadU(d, k3 + c);
      s03 = hn::MulAdd(a0, x, s03), s13 = hn::MulAdd(a1, x, s13),
      s23 = hn::MulAdd(a2, x, s23);
    }
  }
  const auto total = [&](hn::Vec<TileTag<T>> s) {
    return hn::GetLane(hn::SumOfLanes(d, s));
  };
  sums[0] = total(s00), sums[1] = total(s01), sums[2] = total(s02),
  sums[3] = total(s03);
  sums[4] = total(s10), sums[5] = total(s11), sums[6] = total(s12),
  sums[7] = total(s13);
  sums[8] = total(s20), sums[9] = total(s21), sums[10] = total(s22),
  sums[11] = total(s23);
}

template <class T>
void Dw(const Band& band, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
        int64_t tiles, const T* keys_panel, int64_t key_step,
        const T* rows_panel, int64_t row_step, T* dw, int64_t ld) {
  constexpr int64_t kTiles = 16;  // their panel rows stay in the second-level
                                  // cache for all of the block's pairs
  for (int64_t tile = 0; tile < tiles; tile += kTiles) {
    const int64_t n = std::min(kTiles, tiles - tile);
    for (int64_t t = t0; t < t1; t += 3) {
      const T* row[3];
      for (int i = 0; i < 3; ++i)
        row[i] =
            rows_panel + tile * row_step + std::min(t + i, t1 - 1) * kPanel;
      const int64_t lo = std::max(j0, band.key_begin(t)),
                    hi = std::min(j1, band.key_end(std::min(t + 3, t1)));
      for (int64_t j = lo; j < hi; j += 4) {
        const T* key[4];
        for (int i = 0; i < 4; ++i)
          key[i] =
              keys_panel + tile * key_step + std::min(j + i, hi - 1) * kPanel;
        T sums[12];
        Dots(row, key, n, row_step, key_step, sums);
        for (int64_t y = 0; y < 3 && t + y < t1; ++y) {
          for (int64_t x = 0; x < 4 && j + x < hi; ++x)
            dw[(t + y - t0) * ld + j + x - j0] += sums[y * 4 + x];
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
    const auto limit = hn::Set(tag, Safe<T>::exponent);
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

template <class T>
void Outer(int64_t m, int64_t n, int64_t r, const T* a, const T* b, T* out,
           int64_t ld) {
  const int64_t whole = r / kPanel;
  for (int64_t i = 0; i < m; i += 3) {
    const T* row[3];
    for (int x = 0; x < 3; ++x) row[x] = a + std::min(i + x, m - 1) * r;
    for (int64_t j = 0; j < n; j += 4) {
      const T* key[4];
      for (int x = 0; x < 4; ++x) key[x] = b + std::min(j + x, n - 1) * r;
      T sums[12];
      Dots(row, key, whole, kPanel, kPanel, sums);
      for (int64_t y = 0; y < 3 && i + y < m; ++y) {
        for (int64_t x = 0; x < 4 && j + x < n; ++x) {
          T sum = sums[y * 4 + x];
          for (int64_t c = whole * kPanel; c < r; ++c)
            sum += row[y][c] * key[x][c];
          out[(i + y) * ld + j + x] = sum;
        }
      }
    }
  }
}

const BandKernels<float>& BandTable_f32() {
  static constexpr BandKernels<float> kTable = {
      PackKeys<float>, PackWeights<float>, PackWeightsTransposed<float>,
      Forward<float>,  PackRows<float>,    Backward<float>,
      Dw<float>,       ScaleDw<float>,     Outer<float>};
  return kTable;
}
const BandKernels<double>& BandTable_f64() {
  static constexpr BandKernels<double> kTable = {
      PackKeys<double>, PackWeights<double>, PackWeightsTransposed<double>,
      Forward<double>,  PackRows<double>,    Backward<double>,
      Dw<double>,       ScaleDw<double>,     Outer<double>};
  return kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

HWY_EXPORT(BandTable_f32);
HWY_EXPORT(BandTable_f64);

template <>
const BandKernels<float>& band_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(BandTable_f32)();
}
template <>
const BandKernels<double>& band_kernels() noexcept {
  return HWY_DYNAMIC_DISPATCH(BandTable_f64)();
}

}  // namespace aft::kernels
#endif
