// AFT-full and AFT-local as one banded matrix product: with W = exp(w) inside the band and 1 outside,
//
//   [num | den]_t = sum_j W_tj [exp(k) v | exp(k)]_j = before_t + sum_{j in band} W_tj panel_j + after_t.
//
// The three parts are disjoint sums of non-negative weights, so nothing cancels. Backward is the same product with W
// transposed over the panel [a / den | -a r / den], and dw a product of the two panels.
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

// Rows of a panel that stay in the first-level cache while blocks multiply with them, and blocks that share them.
constexpr int64_t kDepth = 256;
constexpr int kGroup = 16;

template <class T>
using PanelTag = hn::CappedTag<T, kPanel>;

/// acc[i] += sum_j w[j, i] panel[j] for kRows rows i: 12 accumulators of 256 bits, the inner loop of full and local.
template <class T>
HWY_INLINE void Multiply(const T* HWY_RESTRICT panel, const T* HWY_RESTRICT w, int64_t n, T* HWY_RESTRICT acc) {
  const PanelTag<T> d;
  const size_t N = hn::Lanes(d);
  static_assert(kRows == 6, "six rows are written out below");
  for (size_t c = 0; c < kPanel; c += 2 * N) {
    const size_t e = c + N < kPanel ? c + N : c;  // a vector of 16 lanes is a whole panel row: do it once
    auto a0 = hn::Load(d, acc + c), b0 = hn::Load(d, acc + e);
    auto a1 = hn::Load(d, acc + kPanel + c), b1 = hn::Load(d, acc + kPanel + e);
    auto a2 = hn::Load(d, acc + 2 * kPanel + c), b2 = hn::Load(d, acc + 2 * kPanel + e);
    auto a3 = hn::Load(d, acc + 3 * kPanel + c), b3 = hn::Load(d, acc + 3 * kPanel + e);
    auto a4 = hn::Load(d, acc + 4 * kPanel + c), b4 = hn::Load(d, acc + 4 * kPanel + e);
    auto a5 = hn::Load(d, acc + 5 * kPanel + c), b5 = hn::Load(d, acc + 5 * kPanel + e);
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
    hn::Store(a2, d, acc + 2 * kPanel + c), hn::Store(b2, d, acc + 2 * kPanel + e);
    hn::Store(a3, d, acc + 3 * kPanel + c), hn::Store(b3, d, acc + 3 * kPanel + e);
    hn::Store(a4, d, acc + 4 * kPanel + c), hn::Store(b4, d, acc + 4 * kPanel + e);
    hn::Store(a5, d, acc + 5 * kPanel + c), hn::Store(b5, d, acc + 5 * kPanel + e);
  }
}

/// The product over blocks [b0, b1) of `outer` items, each over the `inner` items [begin(b), end(b)); done(i, acc) gets
/// the kPanel sums of outer item i.
template <class T, class Begin, class End, class Done>
HWY_INLINE void Product(int64_t outer, int64_t b0, int64_t b1, const Begin& begin, const End& end, const T* panel,
                        const T* before, const T* after, const T* packed, int64_t width, const Done& done) {
  const PanelTag<T> d;
  const size_t N = hn::Lanes(d);
  HWY_ALIGN T acc[kGroup * kRows * kPanel];
  for (int64_t g = b0; g < b1; g += kGroup) {
    const int64_t g1 = std::min<int64_t>(g + kGroup, b1);
    for (int64_t b = g; b < g1; ++b) {
      for (size_t c = 0; c < kPanel; c += N) {
        auto sum = before ? hn::LoadU(d, before + b * kPanel + c) : hn::Zero(d);
        if (after) sum = hn::Add(sum, hn::LoadU(d, after + b * kPanel + c));
        for (int i = 0; i < kRows; ++i) hn::Store(sum, d, acc + ((b - g) * kRows + i) * kPanel + c);
      }
    }
    const int64_t first = begin(g), last = end(g1 - 1);
    const int64_t depth = width <= 2 * kDepth ? std::max<int64_t>(last - first, 1) : kDepth;
    for (int64_t j = first; j < last; j += depth) {
      for (int64_t b = g; b < g1; ++b) {
        const int64_t from = begin(b), lo = std::max(j, from), hi = std::min(j + depth, end(b));
        if (lo < hi) {
          Multiply(panel + lo * kPanel, packed + ((b - b0) * width + lo - from) * kRows, hi - lo,
                   acc + (b - g) * kRows * kPanel);
        }
      }
    }
    for (int64_t i = g * kRows; i < std::min(g1 * kRows, outer); ++i) done(i, acc + (i - g * kRows) * kPanel);
  }
}

/// before[b] = sum of the panel rows below begin(b), after[b] = those from end(b) on.
template <class T, class Begin, class End>
HWY_INLINE void Outside(int64_t n_blocks, int64_t n, const Begin& begin, const End& end, const T* panel, T* before,
                        T* after) {
  const PanelTag<T> d;
  for (size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
    const auto add = [&](hn::Vec<PanelTag<T>> total, int64_t from, int64_t to) {
      auto part = hn::Zero(d);  // block by block: a shorter chain of roundings than one by one
      for (int64_t j = from; j < to; ++j) part = hn::Add(part, hn::Load(d, panel + j * kPanel + c));
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

/// Panel of keys relative to ref [kTile]; returns the first key that is beyond Safe, or `keys`. max and min [kTile] are
/// over the keys that take part.
template <class T>
HWY_INLINE int64_t PackPanel(const Band& band, const Tile<T>& tile, const T* ref, T* panel, T* max, T* min) {
  const TileTag<T> d;
  const auto limit = hn::Set(d, Safe<T>::exponent), v_limit = hn::Set(d, Safe<T>::value);
  int64_t safe = band.keys;
  for (int i = 0; i < kTile; ++i) max[i] = -std::numeric_limits<T>::infinity(), min[i] = -max[i];
  HWY_ALIGN T kb[kTile], vb[kTile];
  for (int64_t j = 0; j < band.keys; ++j) {
    T* out = panel + j * kPanel;
    if (tile.padded && tile.padded[j]) {
      for (int i = 0; i < kPanel; ++i) out[i] = T(0);
      continue;
    }
    const T* k = Widen(tile.k + j * tile.stride, tile.lanes, kb);
    const T* v = Widen(tile.v + j * tile.stride, tile.lanes, vb);
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      const auto kj = hn::LoadU(d, k + i), vj = hn::LoadU(d, v + i);
      const auto x = hn::Sub(kj, hn::Load(d, ref + i));
      auto bad = hn::Or(hn::Gt(x, limit), hn::Gt(hn::Abs(vj), v_limit));
      if (band.window_only) bad = hn::Or(bad, hn::Lt(x, hn::Neg(limit)));
      if (HWY_UNLIKELY(!hn::AllFalse(d, bad)) && safe > j) safe = j;
      hn::Store(hn::Max(hn::Load(d, max + i), kj), d, max + i);
      hn::Store(hn::Min(hn::Load(d, min + i), kj), d, min + i);
      const auto e = ExpV(d, hn::Min(x, limit));
      hn::Store(hn::Mul(e, vj), d, out + i);
      hn::Store(e, d, out + kTile + i);
    }
  }
  return safe;
}

template <class T>
int64_t PackKeys(const Band& band, const Tile<T>& tile, T* panel, T* before, T* after) {
  HWY_ALIGN T ref[kTile] = {}, max[kTile], min[kTile];
  constexpr T limit = Safe<T>::exponent;
  int64_t safe_rows = band.rows;
  if (band.causal) {
    // The reference may only know the past: the first key, which every row sees, if 0 is too far from it.
    int64_t first = 0;
    while (tile.padded && first < band.keys && tile.padded[first]) ++first;
    for (int i = 0; first < band.keys && i < tile.lanes; ++i) {
      const T k = tile.k[first * tile.stride + i];
      if (!(k >= -limit && k <= limit)) ref[i] = k;
      if (!(std::abs(k) <= std::numeric_limits<T>::max())) ref[i] = T(0), safe_rows = 0;
    }
    const int64_t safe = PackPanel(band, tile, ref, panel, max, min);
    if (safe < band.keys) safe_rows = std::min(safe_rows, safe);
  } else {
    int64_t safe = PackPanel(band, tile, ref, panel, max, min);
    bool moved = false;
    for (int i = 0; i < tile.lanes; ++i) {
      const bool any = max[i] >= -std::numeric_limits<T>::max();
      if (!any || (max[i] >= -limit && max[i] <= limit && !(band.window_only && min[i] < -limit))) continue;
      ref[i] = band.window_only ? max[i] / 2 + min[i] / 2 : max[i];
      moved = true;
    }
    if (moved) safe = PackPanel(band, tile, ref, panel, max, min);
    if (safe < band.keys) safe_rows = 0;
  }
  Outside(
      blocks(band.rows), band.keys, [&](int64_t b) { return band.key_begin(b * kRows); },
      [&](int64_t b) { return band.key_end(std::min((b + 1) * kRows, band.rows)); }, panel, before, after);
  return safe_rows;
}

/// One block of the packed weights. row(i, a, b): sets [a, b), the inner items with a bias of outer item i, and returns
/// where those of inner item x are: row(...)[x]. far_before and far_after: the weights on either side of it.
template <class T, class Row>
HWY_INLINE bool PackBlock(int64_t lo, int64_t hi, T far_before, T far_after, const Row& row, T* packed, int i) {
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
      hn::Store(ExpV(d, hn::Min(hn::Max(wv, hn::Neg(limit)), limit)), d, buffer + y);
    }
    for (int64_t y = 0; y < n; ++y) packed[(x + y - lo) * kRows + i] = buffer[y];
  }
  return safe;
}

template <class T>
void PackWeights(const Band& band, int64_t b0, int64_t b1, const T* w, int64_t ld, int64_t t0, int64_t j0,
                 int64_t width, T* packed, uint8_t* unsafe) {
  const T far = band.window_only ? T(0) : T(1), later = band.causal ? T(0) : far;
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
      const bool safe = PackBlock(lo, hi, real ? far : T(0), real ? later : T(0), row, packed, i);
      if (unsafe && real) unsafe[t] = !safe;
    }
  }
}

template <class T>
void PackWeightsTransposed(const Band& band, int64_t b0, int64_t b1, const T* w, int64_t ld, int64_t t0, int64_t j0,
                           int64_t width, T* packed) {
  const T far = band.window_only ? T(0) : T(1), earlier = band.causal ? T(0) : far;
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
      PackBlock(lo, hi, real ? earlier : T(0), real ? far : T(0), row, packed, i);
    }
  }
}

template <class T>
void Forward(const Band& band, int64_t b0, int64_t b1, const Tile<T>& tile, const T* panel, const T* before,
             const T* after, const T* packed, int64_t width, const BandOut<T>& out) {
  const TileTag<T> d;
  Product(
      band.rows, b0, b1, [&](int64_t b) { return band.key_begin(b * kRows); },
      [&](int64_t b) { return band.key_end(std::min((b + 1) * kRows, band.rows)); }, panel, before, after, packed,
      width, [&](int64_t t, const T* acc) {
        if (out.exact && out.exact[t]) return;
        HWY_ALIGN T qb[kTile];
        const T* q = tile.q ? Widen(tile.q + t * tile.stride, tile.lanes, qb) : nullptr;
        for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
          const auto num = hn::Load(d, acc + i), den = hn::Load(d, acc + kTile + i);
          const auto r = Ratio(d, num, den);
          StoreTile(d, q ? Gated(d, r, hn::LoadU(d, q + i)) : r, out.y + t * tile.stride, i, tile.lanes);
          if (out.r) StoreTile(d, r, out.r + t * tile.stride, i, tile.lanes);
          if (out.den) StoreTile(d, den, out.den + t * tile.stride, i, tile.lanes);
        }
      });
}

template <class T>
void PackRows(const Band& band, const Tile<T>& tile, const BandGrad<T>& grad, T* panel, T* before, T* after) {
  const TileTag<T> d;
  HWY_ALIGN T qb[kTile], gb[kTile], rb[kTile], db[kTile];
  for (int64_t t = 0; t < band.rows; ++t) {
    T* out = panel + t * kPanel;
    const int64_t row = t * tile.stride;
    const T* dy = Widen(grad.dy + row, tile.lanes, gb);
    for (int i = 0; i < kTile; ++i) {
      if (std::abs(dy[i]) > Safe<T>::value) grad.exact[t] = 1;
    }
    if (grad.exact[t]) {
      for (int i = 0; i < kPanel; ++i) out[i] = T(0);
      continue;
    }
    const T* q = tile.q ? Widen(tile.q + row, tile.lanes, qb) : nullptr;
    const T* r = Widen(grad.r + row, tile.lanes, rb);
    const T* den = Widen(grad.den + row, tile.lanes, db);
    for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
      const auto rt = hn::LoadU(d, r + i);
      auto a = hn::LoadU(d, dy + i);
      if (q) {
        auto dq = hn::Zero(d);
        a = GateGradient(d, a, hn::LoadU(d, q + i), rt, dq);
        StoreTile(d, dq, grad.dq + row, i, tile.lanes);
      }
      const auto share = Ratio(d, a, hn::LoadU(d, den + i));
      hn::Store(share, d, out + i);
      hn::Store(hn::Neg(hn::Mul(share, rt)), d, out + kTile + i);
    }
  }
  Outside(
      blocks(band.keys), band.rows, [&](int64_t b) { return band.row_begin(b * kRows); },
      [&](int64_t b) { return band.row_end(std::min((b + 1) * kRows, band.keys)); }, panel, before, after);
}

template <class T>
void Backward(const Band& band, int64_t b0, int64_t b1, int64_t stride, int lanes, const T* keys_panel,
              const T* rows_panel, const T* before, const T* after, const T* packed, int64_t width, T* dk, T* dv) {
  const TileTag<T> d;
  Product(
      band.keys, b0, b1, [&](int64_t b) { return band.row_begin(b * kRows); },
      [&](int64_t b) { return band.row_end(std::min((b + 1) * kRows, band.keys)); }, rows_panel, before, after,
      packed, width, [&](int64_t j, const T* acc) {
        for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
          const auto a = hn::Load(d, acc + i), c = hn::Load(d, acc + kTile + i);
          const auto ev = hn::Load(d, keys_panel + j * kPanel + i), e = hn::Load(d, keys_panel + j * kPanel + kTile + i);
          StoreTile(d, hn::Mul(e, a), dv + j * stride, i, lanes);
          StoreTile(d, hn::MulAdd(ev, a, hn::Mul(e, c)), dk + j * stride, i, lanes);
        }
      });
}

/// sums[i, j] = sum over tiles and channels of rows_panel[t_i] . keys_panel[j_j], for 3 rows and 4 keys.
template <class T>
HWY_INLINE void Dots(const T* const* row, const T* const* key, int64_t tiles, int64_t row_step, int64_t key_step,
                     T* sums) {
  const TileTag<T> d;
  auto s00 = hn::Zero(d), s01 = hn::Zero(d), s02 = hn::Zero(d), s03 = hn::Zero(d);
  auto s10 = hn::Zero(d), s11 = hn::Zero(d), s12 = hn::Zero(d), s13 = hn::Zero(d);
  auto s20 = hn::Zero(d), s21 = hn::Zero(d), s22 = hn::Zero(d), s23 = hn::Zero(d);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const T *r0 = row[0] + tile * row_step, *r1 = row[1] + tile * row_step, *r2 = row[2] + tile * row_step;
    const T *k0 = key[0] + tile * key_step, *k1 = key[1] + tile * key_step;
    const T *k2 = key[2] + tile * key_step, *k3 = key[3] + tile * key_step;
    for (size_t c = 0; c < kPanel; c += hn::Lanes(d)) {
      const auto a0 = hn::Load(d, r0 + c), a1 = hn::Load(d, r1 + c), a2 = hn::Load(d, r2 + c);
      auto x = hn::Load(d, k0 + c);
      s00 = hn::MulAdd(a0, x, s00), s10 = hn::MulAdd(a1, x, s10), s20 = hn::MulAdd(a2, x, s20);
      x = hn::Load(d, k1 + c);
      s01 = hn::MulAdd(a0, x, s01), s11 = hn::MulAdd(a1, x, s11), s21 = hn::MulAdd(a2, x, s21);
      x = hn::Load(d, k2 + c);
      s02 = hn::MulAdd(a0, x, s02), s12 = hn::MulAdd(a1, x, s12), s22 = hn::MulAdd(a2, x, s22);
      x = hn::Load(d, k3 + c);
      s03 = hn::MulAdd(a0, x, s03), s13 = hn::MulAdd(a1, x, s13), s23 = hn::MulAdd(a2, x, s23);
    }
  }
  const auto total = [&](hn::Vec<TileTag<T>> s) { return hn::GetLane(hn::SumOfLanes(d, s)); };
  sums[0] = total(s00), sums[1] = total(s01), sums[2] = total(s02), sums[3] = total(s03);
  sums[4] = total(s10), sums[5] = total(s11), sums[6] = total(s12), sums[7] = total(s13);
  sums[8] = total(s20), sums[9] = total(s21), sums[10] = total(s22), sums[11] = total(s23);
}

template <class T>
void Dw(const Band& band, int64_t t0, int64_t t1, int64_t j0, int64_t j1, int64_t tiles, const T* keys_panel,
        int64_t key_step, const T* rows_panel, int64_t row_step, const T* w, T* dw, int64_t ld) {
  constexpr int64_t kTiles = 16;  // their panel rows stay in the second-level cache for all of the block's pairs
  for (int64_t t = t0; t < t1; ++t) std::fill(dw + (t - t0) * ld, dw + (t - t0) * ld + (j1 - j0), T(0));
  for (int64_t tile = 0; tile < tiles; tile += kTiles) {
    const int64_t n = std::min(kTiles, tiles - tile);
    for (int64_t t = t0; t < t1; t += 3) {
      const T* row[3];
      for (int i = 0; i < 3; ++i) row[i] = rows_panel + tile * row_step + std::min(t + i, t1 - 1) * kPanel;
      const int64_t lo = std::max(j0, band.key_begin(t)), hi = std::min(j1, band.key_end(std::min(t + 3, t1)));
      for (int64_t j = lo; j < hi; j += 4) {
        const T* key[4];
        for (int i = 0; i < 4; ++i) key[i] = keys_panel + tile * key_step + std::min(j + i, hi - 1) * kPanel;
        T sums[12];
        Dots(row, key, n, row_step, key_step, sums);
        for (int64_t y = 0; y < 3 && t + y < t1; ++y) {
          for (int64_t x = 0; x < 4 && j + x < hi; ++x) dw[(t + y - t0) * ld + j + x - j0] += sums[y * 4 + x];
        }
      }
    }
  }
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> d1;
  const auto scale = [&](auto tag, T* to, const T* from) {
    const auto limit = hn::Set(tag, Safe<T>::exponent);
    const auto e = ExpV(tag, hn::Min(hn::Max(hn::LoadU(tag, from), hn::Neg(limit)), limit));
    hn::StoreU(hn::Mul(e, hn::LoadU(tag, to)), tag, to);
  };
  for (int64_t t = t0; t < t1; ++t) {
    T* to = dw + (t - t0) * ld - j0;
    const T* from = w + (t - t0) * ld - j0;
    const int64_t lo = std::max(j0, band.key_begin(t)), hi = std::max(lo, std::min(j1, band.key_end(t + 1)));
    std::fill(to + j0, to + std::min(lo, j1), T(0));
    std::fill(to + std::min(hi, j1), to + j1, T(0));
    int64_t j = lo;
    for (; j + static_cast<int64_t>(hn::Lanes(d)) <= hi; j += hn::Lanes(d)) scale(d, to + j, from + j);
    for (; j < hi; ++j) scale(d1, to + j, from + j);
  }
}

// Highway dispatches plain functions, so each gets a name for each type.
#define AFT_BOTH(T, _)                                                                                                 \
  int64_t BandPackKeys_##_(const Band& b, const Tile<T>& t, T* p, T* before, T* after) {                               \
    return PackKeys(b, t, p, before, after);                                                                           \
  }                                                                                                                    \
  void BandPackWeights_##_(const Band& b, int64_t b0, int64_t b1, const T* w, int64_t ld, int64_t t0, int64_t j0,      \
                           int64_t width, T* packed, uint8_t* unsafe) {                                                \
    PackWeights(b, b0, b1, w, ld, t0, j0, width, packed, unsafe);                                                      \
  }                                                                                                                    \
  void BandPackWeightsTransposed_##_(const Band& b, int64_t b0, int64_t b1, const T* w, int64_t ld, int64_t t0,        \
                                     int64_t j0, int64_t width, T* packed) {                                           \
    PackWeightsTransposed(b, b0, b1, w, ld, t0, j0, width, packed);                                                    \
  }                                                                                                                    \
  void BandForward_##_(const Band& b, int64_t b0, int64_t b1, const Tile<T>& t, const T* panel, const T* before,       \
                       const T* after, const T* packed, int64_t width, const BandOut<T>& out) {                        \
    Forward(b, b0, b1, t, panel, before, after, packed, width, out);                                                   \
  }                                                                                                                    \
  void BandPackRows_##_(const Band& b, const Tile<T>& t, const BandGrad<T>& g, T* p, T* before, T* after) {            \
    PackRows(b, t, g, p, before, after);                                                                               \
  }                                                                                                                    \
  void BandBackward_##_(const Band& b, int64_t b0, int64_t b1, int64_t stride, int lanes, const T* kp, const T* rp,    \
                        const T* before, const T* after, const T* packed, int64_t width, T* dk, T* dv) {               \
    Backward(b, b0, b1, stride, lanes, kp, rp, before, after, packed, width, dk, dv);                                  \
  }                                                                                                                    \
  void BandDw_##_(const Band& b, int64_t t0, int64_t t1, int64_t j0, int64_t j1, int64_t tiles, const T* kp,           \
                  int64_t ks, const T* rp, int64_t rs, const T* w, T* dw, int64_t ld) {                                \
    Dw(b, t0, t1, j0, j1, tiles, kp, ks, rp, rs, w, dw, ld);                                                           \
  }
AFT_BOTH(float, f32)
AFT_BOTH(double, f64)
#undef AFT_BOTH

}  // namespace HWY_NAMESPACE
}  // namespace kernels
}  // namespace aft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aft::kernels {

#define AFT_EXPORT(T, _)                                                                                               \
  HWY_EXPORT(BandPackKeys_##_);                                                                                        \
  HWY_EXPORT(BandPackWeights_##_);                                                                                     \
  HWY_EXPORT(BandPackWeightsTransposed_##_);                                                                           \
  HWY_EXPORT(BandForward_##_);                                                                                         \
  HWY_EXPORT(BandPackRows_##_);                                                                                        \
  HWY_EXPORT(BandBackward_##_);                                                                                        \
  HWY_EXPORT(BandDw_##_);                                                                                              \
  int64_t band_pack_keys(const Band& b, const Tile<T>& t, T* panel, T* before, T* after) noexcept {                    \
    return HWY_DYNAMIC_DISPATCH(BandPackKeys_##_)(b, t, panel, before, after);                                         \
  }                                                                                                                    \
  void band_pack_weights(const Band& b, int64_t b0, int64_t b1, const T* w, int64_t ld, int64_t t0, int64_t j0,        \
                         int64_t width, T* packed, uint8_t* unsafe) noexcept {                                         \
    HWY_DYNAMIC_DISPATCH(BandPackWeights_##_)(b, b0, b1, w, ld, t0, j0, width, packed, unsafe);                        \
  }                                                                                                                    \
  void band_pack_weights_transposed(const Band& b, int64_t b0, int64_t b1, const T* w, int64_t ld, int64_t t0,         \
                                    int64_t j0, int64_t width, T* packed) noexcept {                                   \
    HWY_DYNAMIC_DISPATCH(BandPackWeightsTransposed_##_)(b, b0, b1, w, ld, t0, j0, width, packed);                      \
  }                                                                                                                    \
  void band_forward(const Band& b, int64_t b0, int64_t b1, const Tile<T>& t, const T* panel, const T* before,          \
                    const T* after, const T* packed, int64_t width, const BandOut<T>& out) noexcept {                  \
    HWY_DYNAMIC_DISPATCH(BandForward_##_)(b, b0, b1, t, panel, before, after, packed, width, out);                     \
  }                                                                                                                    \
  void band_pack_rows(const Band& b, const Tile<T>& t, const BandGrad<T>& g, T* panel, T* before,                      \
                      T* after) noexcept {                                                                             \
    HWY_DYNAMIC_DISPATCH(BandPackRows_##_)(b, t, g, panel, before, after);                                             \
  }                                                                                                                    \
  void band_backward(const Band& b, int64_t b0, int64_t b1, int64_t stride, int lanes, const T* keys_panel,            \
                     const T* rows_panel, const T* before, const T* after, const T* packed, int64_t width, T* dk,      \
                     T* dv) noexcept {                                                                                 \
    HWY_DYNAMIC_DISPATCH(BandBackward_##_)                                                                             \
    (b, b0, b1, stride, lanes, keys_panel, rows_panel, before, after, packed, width, dk, dv);                          \
  }                                                                                                                    \
  void band_dw(const Band& b, int64_t t0, int64_t t1, int64_t j0, int64_t j1, int64_t tiles, const T* keys_panel,      \
               int64_t key_step, const T* rows_panel, int64_t row_step, const T* w, T* dw, int64_t ld) noexcept {      \
    HWY_DYNAMIC_DISPATCH(BandDw_##_)(b, t0, t1, j0, j1, tiles, keys_panel, key_step, rows_panel, row_step, w, dw, ld); \
  }
AFT_EXPORT(float, f32)
AFT_EXPORT(double, f64)
#undef AFT_EXPORT

}  // namespace aft::kernels
#endif
