// Shared by the two passes of full and local: how the work is divided, how
// pieces of w are computed and packed, and the rows that take the log-space
// path.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aft/kernels/kernels.h"
#include "aft/kernels/logspace_run.h"
#include "aft/kernels/run.h"
#include "aft/kernels/run_buffers.h"

namespace aft::kernels {

// Elements of w that are packed at a time (5 MB in float), and elements of dw
// that a thread sums up. Both stay in the cache.
inline constexpr int64_t kPackedSize = 5 << 18, kDwSize = 1 << 18;
// Rows of w that are computed at a time.
inline constexpr int64_t kSub = 8 * kBlockRows;

/// Distance between the panels of two tiles. A few neighbouring rows of many
/// panels are used together: steps of 17 modulo 32 lines spread them over all
/// sets of the cache, whereas a power of two would map them to a few.
inline int64_t panel_step(int64_t size) {
  const int64_t lines = size / kTile;  // of 64 bytes in float
  return (lines < 64 ? lines | 1 : lines + (17 - lines % 32 + 32) % 32) * kTile;
}

/// How the work is divided into tasks. A task is a strip: one batch row and a
/// few tiles of its channels. Tiles are numbered across all batch rows; each
/// has its own panels and flags.
template <class T>
struct BandTasks {
  Band band;
  int64_t D, tiles, all_tiles, strip_tiles, strips, tasks;
  bool before, after;

  BandTasks(const Exec& exec, const Problem<T>& p, const BandBias<T>& bias) {
    const bool everything =
        bias.window < 0 || bias.window >= std::max(p.Tq, p.Tk);
    band = {p.Tq, p.Tk, everything ? -1 : bias.window, p.causal,
            bias.window_only};
    before = !everything && !bias.window_only;
    after = before && !p.causal;
    D = p.D;
    tiles = (D + kTile - 1) / kTile;
    all_tiles = p.B * tiles;
    strip_tiles = kStrip / kTile;
    const auto count = [&] { return (tiles + strip_tiles - 1) / strip_tiles; };
    while (strip_tiles > 1 && p.B * count() < 2 * exec.threads)
      strip_tiles /= 2;
    strips = count();
    tasks = p.B * strips;
  }
  int64_t batch(int64_t task) const { return task / strips; }
  int64_t channel(int64_t task) const {
    return task % strips * strip_tiles * kTile;
  }
  int64_t first_tile(int64_t task) const {
    return batch(task) * tiles + task % strips * strip_tiles;
  }
  int64_t row_offset(int64_t task) const {
    return batch(task) * band.rows * D + channel(task);
  }
  int64_t key_offset(int64_t task) const {
    return batch(task) * band.keys * D + channel(task);
  }
  Strip<T> strip(const Problem<T>& p, int64_t task) const {
    return {p.q ? p.q + row_offset(task) : nullptr,
            p.k + key_offset(task),
            p.v + key_offset(task),
            D,
            std::min(strip_tiles * kTile, D - channel(task)),
            p.padded ? p.padded + batch(task) * band.keys : nullptr};
  }
  /// The window in the form that the log-space path uses.
  LogspaceWindow logspace_window() const {
    const bool all = band.window < 0;
    return {1,
            1,
            band.rows,
            band.keys,
            0,
            0,
            all ? 1 - band.rows : 1 - band.window,
            band.causal ? 0
            : all       ? band.keys - 1
                        : band.window - 1,
            before,
            after};
  }
  /// The tap of row t and key j in it.
  int64_t tap(int64_t t, int64_t j) const {
    return j - t - logspace_window().lo;
  }
  /// Tile i of a task, for the log-space path.
  LogspaceSource<T> logspace_source(const Strip<T>& strip, int i) const {
    LogspaceSource<T> source{strip.k,      strip.v,        D,  D,
                             strip.padded, strip.lanes(i), {}, {}};
    for (int c = 0; c < source.lanes; ++c)
      source.key[c] = source.value[c] = i * kTile + c;
    return source;
  }
  /// The biases of row t as its taps; w: those of the keys from j0 on.
  void taps_of(int64_t t, const T* w, int64_t j0, double* taps) const {
    const int64_t end = band.key_end(t + 1), first = tap(t, 0);
    for (int64_t j = band.key_begin(t); j < end; ++j)
      taps[first + j] = w[j - j0];
  }
  /// The largest number of inner items in the band of a block of kBlockRows
  /// outer items.
  int64_t width(int64_t inner) const {
    if (band.window < 0) return std::max<int64_t>(inner, 1);
    return std::max<int64_t>(
        std::min(inner, (band.causal ? band.window : 2 * band.window - 1) +
                            kBlockRows - 1),
        1);
  }
};

/// Calls f(t, bias) for each row of [t0, t1) whose flag is set.
template <class T, class F>
void for_logspace_rows(const Exec& exec, const BandTasks<T>& tasks,
                       const BandBias<T>& bias, const uint8_t* flags,
                       int64_t t0, int64_t t1, const F& f) {
  Buffer<T> raw;
  Buffer<double> taps(exec, tasks.logspace_window().taps());
  for (int64_t s = t0; s < t1;) {
    if (!flags[s]) {
      ++s;
      continue;
    }
    int64_t e = s + 1;
    while (e < std::min(s + kSub, t1) && flags[e]) ++e;
    const int64_t lo = tasks.band.key_begin(s),
                  hi = std::max(lo, tasks.band.key_end(e)), ld = hi - lo;
    raw.grow(exec, std::max<int64_t>(ld * kSub, 1));
    if (ld > 0) bias.rows(s, e, lo, hi, raw.get(), ld);
    for (int64_t t = s; t < e; ++t) {
      tasks.taps_of(t, raw.get() + (t - s) * ld, lo, taps.get());
      f(t, LogspaceBias{taps.get(), false});
    }
    s = e;
  }
}

/// Calls f(b, e, raw) for pieces [b, e) of blocks [b0, b1), in parallel: at
/// most kSub rows each, and enough pieces for all threads. raw: a buffer for
/// their w.
template <class T, class F>
void for_pieces(const Exec& exec, int64_t b0, int64_t b1, const F& f) {
  const int64_t n = b1 - b0, piece = std::clamp<int64_t>(n / (4 * exec.threads),
                                                         1, kSub / kBlockRows);
  exec.parallel((n + piece - 1) / piece, [&](int64_t begin, int64_t end) {
    Buffer<T> raw;
    for (int64_t b = b0 + begin * piece; b < std::min(b0 + end * piece, b1);
         b += piece)
      f(b, std::min(b + piece, b1), raw);
  });
}

/// Computes and packs w for blocks [b0, b1) of rows.
template <class T>
void pack(const Exec& exec, const Band& band, const BandBias<T>& bias,
          int64_t b0, int64_t b1, int64_t width, T* packed, uint8_t* unsafe) {
  for_pieces<T>(exec, b0, b1, [&](int64_t b, int64_t e, Buffer<T>& raw) {
    const int64_t t0 = b * kBlockRows, t1 = std::min(e * kBlockRows, band.rows);
    const int64_t lo = band.key_begin(t0), hi = std::max(lo, band.key_end(t1)),
                  ld = hi - lo;
    raw.grow(exec, std::max<int64_t>(ld * (t1 - t0), 1));
    if (ld > 0) bias.rows(t0, t1, lo, hi, raw.get(), ld);
    band_kernels<T>().pack_weights(band, b, e, raw.get(), ld, t0, lo, width,
                                   packed + (b - b0) * width * kBlockRows,
                                   unsafe);
  });
}

/// The transpose: blocks of keys.
template <class T>
void pack_transposed(const Exec& exec, const Band& band,
                     const BandBias<T>& bias, int64_t b0, int64_t b1,
                     int64_t width, T* packed) {
  for_pieces<T>(exec, b0, b1, [&](int64_t b, int64_t e, Buffer<T>& raw) {
    const int64_t j0 = b * kBlockRows, j1 = std::min(e * kBlockRows, band.keys);
    const int64_t lo = band.row_begin(j0), hi = std::max(lo, band.row_end(j1)),
                  ld = hi - lo;
    raw.grow(exec, std::max<int64_t>(ld * (j1 - j0), 1));
    if (ld > 0) bias.keys(lo, hi, j0, j1, raw.get(), ld);
    band_kernels<T>().pack_weights_transposed(
        band, b, e, raw.get(), ld, lo, j0, width,
        packed + (b - b0) * width * kBlockRows);
  });
}

inline int64_t chunk_blocks(int64_t width, int64_t n_blocks) {
  const int64_t sub = kSub / kBlockRows,
                n = std::max<int64_t>(
                    kPackedSize / (width * kBlockRows) / sub * sub, sub);
  return std::min(n, std::max<int64_t>(n_blocks, 1));
}

/// Sets flags[t] to whether row t needs the log-space path. Returns whether any
/// row does.
inline bool set_flags(int64_t rows, const uint8_t* unsafe, int64_t safe_rows,
                      uint8_t* flags) {
  bool any = false;
  for (int64_t t = 0; t < rows; ++t)
    any |= flags[t] = (unsafe[t] || t >= safe_rows);
  return any;
}

}  // namespace aft::kernels
