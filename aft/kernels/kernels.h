// The contract of the SIMD kernels. Everything here is raw pointers over
// row-major memory; nothing allocates, starts a thread, throws or prints.
// Callers split the work (one call = one batch row and a few channels) and own
// all buffers.
//
//   y_t = gate(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)
//
// reference.h holds the same in plain double loops: start there.
#pragma once

#include <cstdint>

namespace aft::kernels {

/// Channels that one panel row holds, and rows that one multiplication produces
/// together. A panel row is two slots of kTile numbers, [first | second], in
/// forward passes [exp(k) v | exp(k)]: one cache line in float.
inline constexpr int kTile = 8;
inline constexpr int kRows = 6;
inline constexpr int kPanel = 2 * kTile;

/// What the fast path may meet: |w| up to `bias`, keys up to `key` above their
/// reference, |v| and |dy| up to `value`. Then no product, sum or quotient of
/// it overflows, and what underflows is below rounding (docs/math.md,
/// "Stability"). Anything else takes the exact path of exact-inl.h and exact.h.
template <class T>
struct FastPathLimits;
template <>
struct FastPathLimits<float> {
  static constexpr float bias = 20.f, key = 18.f, value = 1e3f;
};
template <>
struct FastPathLimits<double> {
  static constexpr double bias = 200., key = 200., value = 1e20;
};

/// The SIMD target in use, for example "AVX2".
const char* target_name() noexcept;

// Each family of kernels is a table of functions for a number type (float,
// double), compiled for every SIMD target and chosen for the processor at run
// time: `simple_kernels<float>().forward(...)`.

// -------------------------------------------------------------------------------------------------------------
// simple

/// Relative error of SimpleKernels<float>::exp for -87 <= x <= 88; below that
/// it gives 0, above it stays at exp(88).
inline constexpr double kExpError = 2.4e-7;

/// The most channels that one call of forward and backward takes, and the rows
/// that backward keeps in the cache: wide enough for memory to be read in
/// order.
inline constexpr int kSimpleChannels = 512;
inline constexpr int kSimpleRows = 16;

/// One batch row of AFT-simple, channels [c0, c1), c1 - c0 <= kSimpleChannels.
/// q null: no gate (y = num / den). Running maximum: stable for every finite
/// input. O(T) time, state of three numbers a channel.
template <class T>
struct Simple {
  int64_t Tq, Tk, D, c0, c1;
  bool causal;
  const T *q, *k, *v;     // [Tq, D] or null, [Tk, D], [Tk, D]
  const uint8_t* padded;  // [Tk] or null
  T* y;                   // [Tq, D]; must not overlap the inputs
  /// [simple_states(Tq), 3, D] or null, causal only: m, n and d before every
  /// kSimpleRows-th row. Forward writes them; backward reads them, or else
  /// runs over the keys once more.
  T* states;
};

constexpr int64_t simple_states(int64_t Tq) {
  return (Tq + kSimpleRows - 1) / kSimpleRows;
}
/// Numbers of scratch that SimpleKernels::backward needs.
constexpr int64_t simple_scratch(int64_t Tq) {
  return 3 * kSimpleChannels * (kSimpleRows + simple_states(Tq));
}

/// One position of local, conv and full: a ring of the last keys plus the sums
/// of what has left it.
template <class T>
struct WindowStep {
  int64_t n, count, first, capacity;  // n channels; count entries from ring
                                      // index `first` on, wrapping at capacity
  bool has_past;  // state holds something (and counts: not window_only)
  const T *q, *ring_k, *ring_v;  // [n] or null, [capacity, n], [capacity, n]
  const T *state, *w;  // [3, n]; biases of the entries, oldest first, or null
  bool w_per_channel;  // w is [count, n] instead of [count]
  T* y;                // [n]
};

template <class T>
struct SimpleKernels {
  void (*forward)(const Simple<T>&);
  /// Gradients of forward; `y` of the argument is not used. dq null where q is.
  void (*backward)(const Simple<T>&, const T* dy, T* dq, T* dk, T* dv,
                   T* scratch);
  /// One position of n channels: state is [3, n], `fresh` says that nothing was
  /// seen yet (it is then not read). y null: only take (k, v) in.
  void (*step)(int64_t n, bool fresh, const T* q, const T* k, const T* v,
               T* state, T* y);
  /// The caller puts (k, v) into the ring before, and hands what leaves the
  /// ring to `step` without y.
  void (*window_step)(const WindowStep<T>&);
  /// y[i] = exp(x[i]); x and y may be the same.
  void (*exp)(const T* x, T* y, int64_t n);
};
template <class T>
const SimpleKernels<T>& simple_kernels() noexcept;

// ------------------------------------------------------------------------------------------------------
// full and local

/// Which (t, j) carry a bias: |t - j| < window, everything where window < 0
/// (full). Outside, w = 0, or -inf where window_only. Both operators are one
/// banded matrix product, so they share everything below.
struct Band {
  int64_t rows, keys, window;
  bool causal, window_only;

  bool sees(int64_t t, int64_t j) const { return !causal || j <= t; }
  bool inside(int64_t t, int64_t j) const {
    return sees(t, j) && (window < 0 || (t - j < window && j - t < window));
  }
  /// Keys [key_begin, key_end) that rows [t0, t1) must look at one by one; the
  /// rest has w = 0.
  int64_t key_begin(int64_t t0) const {
    return clamp(window < 0 ? 0 : t0 - window + 1, keys);
  }
  int64_t key_end(int64_t t1) const {
    return clamp(causal ? t1 : window < 0 ? keys : t1 - 1 + window, keys);
  }
  /// The same for the rows that keys [j0, j1) must look at.
  int64_t row_begin(int64_t j0) const {
    return clamp(causal ? j0 : window < 0 ? 0 : j0 - window + 1, rows);
  }
  int64_t row_end(int64_t j1) const {
    return clamp(window < 0 ? rows : j1 - 1 + window, rows);
  }

 private:
  static int64_t clamp(int64_t x, int64_t n) {
    return x < 0 ? 0 : x > n ? n : x;
  }
};

constexpr int64_t blocks(int64_t n) { return (n + kRows - 1) / kRows; }

/// Channels that one call of band_* should get: rows lie kilobytes apart, and
/// memory gives them back in whole lines.
inline constexpr int kStrip = 8 * kTile;

/// One batch row, `channels` <= kStrip of its channels; pointers at the first
/// of them, rows `stride` apart. It holds tiles() tiles, the last one perhaps
/// narrower than kTile.
template <class T>
struct Strip {
  const T *q, *k, *v;  // q may be null
  int64_t stride, channels;
  const uint8_t* padded;  // [keys] or null

  int tiles() const { return static_cast<int>((channels + kTile - 1) / kTile); }
  int lanes(int tile) const {
    return static_cast<int>(
        channels - tile * kTile < kTile ? channels - tile * kTile : kTile);
  }
};

/// The panel of a tile and the sums of its rows outside of the band, per block;
/// those of the next tile lie `step` on. before and after may be null: nothing
/// there (full, window_only, one side of causal bands).
template <class T>
struct Panel {
  T *rows, *before, *after;
  int64_t step;
};

/// Where band forward writes, each at the strip's first channel with rows
/// `stride` apart; r and den may be null. Rows with exact[tile * rows + t] != 0
/// are left alone (exact may be null).
template <class T>
struct BandOut {
  T *y, *r, *den;
  const uint8_t* exact;
};

/// What the panel of rows is made of, and dq (null where q is); [rows] x
/// stride. exact [tiles, rows] is read and set.
template <class T>
struct BandGrad {
  const T *dy, *r, *den;
  T* dq;
  uint8_t* exact;
};

/// Numbers of a tile in the exact path: three for each of kTile channels.
inline constexpr int kExact = 3 * kTile;

/// Packed weights: exp(w) of kRows rows interleaved, [blocks, width, kRows],
/// width >= key_end - key_begin of any block.
template <class T>
struct BandKernels {
  /// Panel of keys: rows [keys, kPanel] = [exp(k - ref) v | exp(k - ref)];
  /// before and after [blocks(rows), kPanel] = sums of the panel rows below
  /// key_begin and from key_end on. safe_rows [tiles]: how many rows, from the
  /// first, may take the fast path.
  void (*pack_keys)(const Band&, const Strip<T>&, const Panel<T>&,
                    int64_t* safe_rows);
  /// Packs the weights of blocks [b0, b1) of rows. w: element (t, j) at w[(t -
  /// t0) * ld + (j - j0)]. Sets unsafe[t] to whether the row's bias is beyond
  /// FastPathLimits.
  void (*pack_weights)(const Band&, int64_t b0, int64_t b1, const T* w,
                       int64_t ld, int64_t t0, int64_t j0, int64_t width,
                       T* packed, uint8_t* unsafe);
  /// The same transposed: blocks of keys over rows; w: element (t, j) at w[(j -
  /// j0) * ld + (t - t0)].
  void (*pack_weights_transposed)(const Band&, int64_t b0, int64_t b1,
                                  const T* w, int64_t ld, int64_t t0,
                                  int64_t j0, int64_t width, T* packed);
  /// y, r = num / den and den of the rows of blocks [b0, b1).
  void (*forward)(const Band&, int64_t b0, int64_t b1, const Strip<T>&,
                  const Panel<T>& keys, const T* packed, int64_t width,
                  const BandOut<T>&);
  /// Panel of rows: [a / den | -a r / den] with a = dy gate(q), zero where
  /// exact; dq; before and after [blocks(keys), kPanel] as in pack_keys with
  /// rows for keys. Sets exact where |dy| is beyond FastPathLimits.
  void (*pack_rows)(const Band&, const Strip<T>&, const BandGrad<T>&,
                    const Panel<T>& rows);
  /// dk and dv of the keys of blocks [b0, b1), at the strip's first channel.
  void (*backward)(const Band&, int64_t b0, int64_t b1, const Strip<T>&,
                   const Panel<T>& keys, const Panel<T>& rows, const T* packed,
                   int64_t width, T* dk, T* dv);
  /// For rows [t0, t1) and keys [j0, j1) of the band, adds the sum over `tiles`
  /// pairs of panels, which lie `key_step` and `row_step` apart, of their
  /// products: dw[(t - t0) * ld + (j - j0)] += keys_j . rows_t. Other pairs
  /// become garbage.
  void (*dw)(const Band&, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
             int64_t tiles, const T* keys, int64_t key_step, const T* rows,
             int64_t row_step, T* dw, int64_t ld);
  /// dw *= exp(w) in the band, 0 outside of it; w has the layout of dw.
  void (*scale_dw)(const Band&, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                   const T* w, T* dw, int64_t ld);
  /// out[i * ld + j] = a_i . b_j for m rows a_i and n rows b_j of r numbers, r
  /// apart: w = u v^T. A number does not depend on m and n, and is the same
  /// with a and b exchanged, to the bit.
  void (*outer)(int64_t m, int64_t n, int64_t r, const T* a, const T* b, T* out,
                int64_t ld);

  // The exact path (exact-inl.h), one tile at a time. w and dw of a row:
  // element j at [j]. A row is [a | lse | r], kExact numbers; a = 0: it has no
  // share.

  /// before [keys + 1, kExact]: sums over keys [0, j), as [m | num | den]
  /// relative to their maximum m; after: over keys [j, keys). Either may be
  /// null.
  void (*exact_sums)(const Band&, const Strip<T>&, int tile, double* before,
                     double* after);
  /// lse and r of row t; lse = -infinity and r = 0 where it sees no key.
  void (*exact_row)(const Band&, const Strip<T>&, int tile,
                    const double* before, const double* after, int64_t t,
                    const T* w, double* row);
  /// Adds the share of row t to dk and dv of the keys in its window.
  void (*exact_window)(const Band&, const Strip<T>&, int tile, int64_t t,
                       const T* w, const double* row, T* dk, T* dv);
  /// Adds the shares of all rows to the keys outside of their windows.
  void (*exact_outside)(const Band&, const Strip<T>&, int tile,
                        const double* rows, T* dk, T* dv);
  /// Adds the share of row t to its dw.
  void (*exact_dw)(const Band&, const Strip<T>&, int tile, int64_t t,
                   const T* w, const double* row, T* dw);
};
template <class T>
const BandKernels<T>& band_kernels() noexcept;

// ---------------------------------------------------------------------------------------------------------------
// conv

/// A window that moves over a grid of Z x Y x X positions: offsets [-reach,
/// reach] in z and y, [lo, hi] in x. Position t is (t / (Y X), t / X % Y, t %
/// X); its taps are numbered row-major, dz first.
struct Window {
  int64_t Z, Y, X;
  int64_t reach_z, reach_y, lo, hi;  // never beyond the grid
  bool before, after;  // whether the rest of the grid counts: on a line, what
                       // lies before and after

  int64_t T() const { return Z * Y * X; }
  int64_t width() const { return hi - lo + 1; }
  int64_t taps() const {
    return (2 * reach_z + 1) * (2 * reach_y + 1) * width();
  }
  /// Panel rows have zeros on both sides, for windows that reach over the edge
  /// and for the last block.
  int64_t left() const { return lo < 0 ? -lo : 0; }
  int64_t padded() const { return left() + X + (hi > 0 ? hi : 0) + 8; }
  int64_t panel_size() const { return Z * Y * padded() * kPanel; }
  /// Scratch of convolve.
  int64_t far_size() const { return (T() + Z * Y + Z) * kPanel; }
  /// Row of position t in a panel.
  int64_t panel_row(int64_t t) const {
    return t / X * padded() + left() + t % X;
  }
  /// The same window seen from the other side: offsets negated.
  Window transposed() const {
    return {Z, Y, X, reach_z, reach_y, -hi, -lo, after, before};
  }
};

/// Up to kPanel channels of one batch row, `lanes` of them, rows `stride`
/// apart.
template <class T>
struct Lanes {
  T* at;
  int64_t stride;
  int lanes;
};

/// conv works on panels of kPanel channels, [panel rows, kPanel]: keys and
/// values have panels of their own, since a head has one key for many values.
/// Lanes beyond the last channel are zero.
template <class T>
struct ConvKernels {
  /// panel = e = exp(k - ref), zero where padded, zeros around; e is also
  /// written out. safe_rows [kPanel] as in BandKernels::pack_keys; window_only
  /// and causal say what the reference may be.
  void (*pack_keys)(const Window&, const Lanes<const T>& k,
                    const uint8_t* padded, bool causal, bool window_only,
                    T* panel, const Lanes<T>& e, int64_t* safe_rows);
  /// panel = x, or x * y[:, index] where y is there; index [kPanel]. Returns
  /// whether all |x| that count are within FastPathLimits.
  bool (*pack)(const Window&, const Lanes<const T>& x, const T* y,
               int64_t y_stride, const int64_t* index, T* panel);
  /// out[t] = sum over the window of weights[tap] * panel + sum over the rest
  /// of the grid of panel; [T, kPanel].
  void (*convolve)(const Window&, const T* panel, const T* weights, T* far,
                   T* out);
  /// sums[tap] += sum_t rows[t] * panel[t + tap]; rows [T, kPanel], sums [taps,
  /// kPanel].
  void (*correlate)(const Window&, const T* panel, const T* rows, T* sums);
  /// y = gate(q) r, r = num / den[:, index]; q and r may be null. num [T,
  /// kPanel].
  void (*finish)(int64_t T_, const T* num, const T* den, int64_t den_stride,
                 const int64_t* index, const Lanes<const T>& q,
                 const Lanes<T>& y, const Lanes<T>& r);
  /// dv = e[:, index] * sums and vdv = v * dv; sums [T, kPanel].
  void (*values)(int64_t T_, const T* sums, const T* e, int64_t e_stride,
                 const int64_t* index, const Lanes<const T>& v,
                 const Lanes<T>& dv, const Lanes<T>& vdv);
  /// a = dy gate(q) / den and dq of one row of n channels; q and dq may be
  /// null. den_of [n]: den of each channel. Returns whether |dy| is within
  /// FastPathLimits.
  bool (*row)(int64_t n, const T* q, const T* dy, const T* r, const T* den_of,
              T* a, T* dq);
};
template <class T>
const ConvKernels<T>& conv_kernels() noexcept;

}  // namespace aft::kernels
