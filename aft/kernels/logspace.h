// The log-space path of full, local and conv: rows whose exponents are too far
// apart for products of exponentials (see FastPathLimits). Everything is in
// double, kTile channels at once, each row relative to its own maximum m:
//
//   lse_t = m + log sum_j exp(k_j + w_tj - m),  r_t = sum_j exp(...) v_j / ...
//   dv_j += a_t exp(k_j + w_tj - lse_t),  dk_j += the same times (v_j - r_t)
//
// with a_t = dy_t gate(q_t). Outside a row's window, w = 0. Those keys enter as
// a few sums that are computed once for all rows, from running sums along the
// lines of the grid, over its lines and over its slices. Nothing is subtracted,
// so this is accurate for every finite input, and a row costs O(window), also
// on a grid.
#pragma once

#include <cstdint>

#include "aft/kernels/kernels.h"

namespace aft::kernels {

/// A sum of exp(x_i) (n_i, d_i) relative to m, the largest x_i, for the
/// channels of a tile: [m | n | d]. m = -infinity: empty.
inline constexpr int kLogSum = 3 * kTile;

/// The windows of all rows. A grid has Z x Y lines, each of `rows` rows and
/// `keys` keys; row (z, y, x) has key (z + dz, y + dy, x + dx) in its window if
/// |dz| <= reach_z, |dy| <= reach_y and lo <= dx <= hi. These offsets are the
/// taps, numbered row-major. A band is a grid of one line.
struct LogspaceWindow {
  int64_t Z, Y, rows, keys;
  int64_t reach_z, reach_y, lo, hi;
  /// Whether keys outside of the window are included, with w = 0. On the lines
  /// of the window: those before and those after it. Other lines are included
  /// if either is set.
  bool before, after;

  int64_t all_rows() const { return Z * Y * rows; }
  int64_t all_keys() const { return Z * Y * keys; }
  int64_t width() const { return hi - lo + 1; }
  int64_t taps() const {
    return (2 * reach_z + 1) * (2 * reach_y + 1) * width();
  }
  bool has_outside() const { return before || after; }
  /// Doubles of the buffer `outside` below.
  int64_t outside_size() const {
    return (all_rows() + 2 * Z * Y + 2 * Z) * kLogSum;
  }
  /// The window of a key: the rows whose windows contain it.
  LogspaceWindow transposed() const {
    return {Z, Y, keys, rows, reach_z, reach_y, -hi, -lo, after, before};
  }
};

/// One tile of channels. Buffers are aligned to 64 bytes.
struct LogspaceTile {
  const double* keys;     // [all_keys, 2, kTile] = [k | v]; k = -infinity and
                          // v = 0 where padded
  const uint8_t* padded;  // [all_keys] or null
};

/// Biases of the taps of one row: [taps] for all channels, or [taps, kTile].
/// Only taps that meet a key which is not padded are read.
struct LogspaceBias {
  const double* w;
  bool per_channel;
};

struct LogspaceKernels {
  /// The sums over the keys outside of each row's window.
  void (*sum_keys)(const LogspaceWindow&, const LogspaceTile&, double* outside);
  /// Writes lse and r of row t to row [a | lse | r]; lse = -infinity and r = 0
  /// if it has no key. `outside` comes from sum_keys; null: those keys are
  /// masked.
  void (*row)(const LogspaceWindow&, const LogspaceTile&, int64_t t,
              const LogspaceBias&, const double* outside, double* row);
  /// Adds the contribution of row t = [a | lse | r] to the gradients of the
  /// keys in its window, grads [all_keys, 2, kTile] = [dk | dv], and to dw, in
  /// the layout of the biases. Either may be null.
  void (*row_gradient)(const LogspaceWindow&, const LogspaceTile&, int64_t t,
                       const LogspaceBias&, const double* row, double* grads,
                       double* dw);
  /// The sums over the rows outside of each key's window, from rows [all_rows,
  /// 3, kTile]; those with a = 0 are ignored. `transposed`: the window of keys.
  void (*sum_rows)(const LogspaceWindow& transposed, const double* rows,
                   double* outside);
  /// Adds the contributions of the rows outside of each key's window to grads.
  void (*outside_gradient)(const LogspaceWindow& transposed,
                           const LogspaceTile&, const double* outside,
                           double* grads);
};
const LogspaceKernels& logspace_kernels() noexcept;

}  // namespace aft::kernels
