// The contract of the SIMD kernels. They work on raw pointers to row-major
// memory and never allocate, start a thread, throw or print. Callers split the
// work (one call: one batch row and a few channels) and own all buffers.
//
//   y_t = gate(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)
//
// reference.h computes the same in plain double loops: start there. It also
// defines the results for inputs of NaN and infinity. The kernels only detect
// such inputs; run.h computes these results (nonfinite_run.h).
//
// Names of the files in this directory: OPERATOR_PART.
//
//   OPERATOR   simple; band (full and local: one banded product); conv;
//              one_tap; linear and pointwise (not AFT); logspace, the path of
//              band and conv for exponents that are far apart; nonfinite,
//              inputs of NaN and infinity
//   PART       none       public header, if not in kernels.h and run.h
//              simd.cc    inner loops, compiled once per SIMD target
//              simd-inl.h parts of a simd.cc, included once per SIMD target
//              run*.cc    the whole operator: order of calls, memory, threads
//              run.h      internal header of run*.cc
#pragma once

#include <cstdint>

namespace aft::kernels {

/// Channels per tile: one cache line in float, the widest vector.
inline constexpr int kTile = 16;
/// Channels per panel of conv, one_tap and linear.
inline constexpr int kPanel = kTile;

/// The inputs that the fast path accepts: |w| up to `bias`, keys up to `key`
/// above their reference, |v| and |dy| up to `value`. Within these limits no
/// product, sum or quotient overflows, and what underflows is below rounding
/// (docs/math.md, "Stability"). Everything else takes the log-space path
/// (logspace.h).
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

/// The SIMD target in use, for example "AVX2"; "AVX3" is AVX-512.
const char* target_name() noexcept;
/// From now on uses the target of this name, in all threads. Returns false, and
/// changes nothing, if the processor or the build does not have it.
bool use_target(const char* name) noexcept;

// The kernels of an operator are a table of functions per element type (float,
// double), compiled for every SIMD target and selected for the processor at run
// time: `simple_kernels<float>().forward(...)`.

// -------------------------------------------------------------------------------------------------------------
// simple

/// Relative error of SimpleKernels<float>::exp for -87 <= x <= 88. Below, the
/// result is 0; above, exp(88).
inline constexpr double kExpError = 2.4e-7;

/// Maximum number of channels per call of forward and backward, large enough
/// for memory to be read sequentially; and the number of rows that backward
/// keeps in the cache.
inline constexpr int kSimpleChannels = 512;
inline constexpr int kSimpleRows = 16;

/// One batch row of AFT-simple, channels [c0, c1), c1 - c0 <= kSimpleChannels.
/// q null: no gate (y = num / den). The running maximum makes it stable for
/// every finite input. O(T) time, state of three values per channel.
template <class T>
struct Simple {
  int64_t Tq, Tk, D, c0, c1;
  bool causal;
  const T *q, *k, *v;     // [Tq, D] or null, [Tk, D], [Tk, D]
  const uint8_t* padded;  // [Tk] or null
  T* y;                   // [Tq, D]; must not overlap the inputs
  /// [simple_states(Tq), 3, D] or null, causal only: m, n and d before every
  /// kSimpleRows-th row. Forward writes them, backward reads them; if null,
  /// backward recomputes them from the keys.
  T* states;
};

constexpr int64_t simple_states(int64_t Tq) {
  return (Tq + kSimpleRows - 1) / kSimpleRows;
}
/// Size of the scratch of SimpleKernels::backward.
constexpr int64_t simple_scratch(int64_t Tq) {
  return 3 * kSimpleChannels * (kSimpleRows + simple_states(Tq));
}

/// One position of local, conv and full: a ring buffer of the last keys, and
/// the sums over the keys that were removed from it.
template <class T>
struct WindowStep {
  int64_t n, count, first, capacity;  // n channels; count entries from ring
                                      // index `first` on, wrapping at capacity
  bool has_past;  // the state holds keys, and they are used (not window_only)
  const T *q, *ring_k, *ring_v;  // [n] or null, [capacity, n], [capacity, n]
  const T *state, *w;  // [3, n]; biases of the entries, oldest first, or null
  bool w_per_channel;  // w is [count, n] instead of [count]
  T* y;                // [n]
};

template <class T>
struct SimpleKernels {
  /// Returns false, with an undefined y, if a sum is not finite, which needs a
  /// key or value that is not.
  bool (*forward)(const Simple<T>&);
  /// Gradients of forward; `y` of the argument is not used. dq is null if q is.
  /// Returns false, with undefined gradients, if a sum is not finite.
  bool (*backward)(const Simple<T>&, const T* dy, T* dq, T* dk, T* dv,
                   T* scratch);
  /// One position of n channels: state is [3, n], and not read if `fresh` (the
  /// first position). y null: only adds (k, v) to the state. A NaN stays in the
  /// state of its channel.
  void (*step)(int64_t n, bool fresh, const T* q, const T* k, const T* v,
               T* state, T* y);
  /// Before the call, the caller puts (k, v) into the ring, and passes a key
  /// that leaves the ring to `step` with y null.
  void (*window_step)(const WindowStep<T>&);
  /// y[i] = exp(x[i]); x and y may be the same.
  void (*exp)(const T* x, T* y, int64_t n);
};
template <class T>
const SimpleKernels<T>& simple_kernels() noexcept;

// ------------------------------------------------------------------------------------------------------
// full and local

/// Which pairs (t, j) have a bias: |t - j| < window, or all if window < 0
/// (full). Outside, w = 0, or -inf if window_only. Both operators are one
/// banded matrix product and share everything below.
struct Band {
  int64_t rows, keys, window;
  bool causal, window_only;

  /// Keys [key_begin, key_end) that have a bias for one of the rows [t0, t1).
  int64_t key_begin(int64_t t0) const {
    return clamp(window < 0 ? 0 : t0 - window + 1, keys);
  }
  int64_t key_end(int64_t t1) const {
    return clamp(causal ? t1 : window < 0 ? keys : t1 - 1 + window, keys);
  }
  /// Rows [row_begin, row_end) that have a bias for one of the keys [j0, j1).
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

/// Rows that one multiplication computes together. A panel has one row of
/// kBandPanel values per key, in forward passes [exp(k) v | exp(k)].
inline constexpr int kBlockRows = 6;
inline constexpr int kBandPanel = 2 * kTile;

constexpr int64_t blocks(int64_t n) {
  return (n + kBlockRows - 1) / kBlockRows;
}

/// Channels per call of the band kernels: rows are kilobytes apart, and memory
/// is read in whole cache lines.
inline constexpr int kStrip = 4 * kTile;

/// `channels` <= kStrip channels of one batch row; the pointers are at the
/// first of them, rows are `stride` apart. They form tiles() tiles, of which
/// the last may have fewer than kTile channels.
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

/// The panel of a tile, and per block the sums of its rows outside of the band;
/// the next tile is `step` values further. before and after are null if no such
/// rows are used (full, window_only, one side of causal bands).
template <class T>
struct Panel {
  T *rows, *before, *after;
  int64_t step;
};

/// Outputs of band forward, each at the strip's first channel with rows
/// `stride` apart; r and den may be null. Rows with logspace[tile * rows + t]
/// != 0 are not written (logspace may be null: none).
template <class T>
struct BandOut {
  T *y, *r, *den;
  const uint8_t* logspace;
};

/// The inputs of the panel of rows, and the output dq (null if q is); [rows] x
/// stride. logspace [tiles, rows] is read and set.
template <class T>
struct BandGrad {
  const T *dy, *r, *den;
  T* dq;
  uint8_t* logspace;
};

/// Packed weights: exp(w) of kBlockRows rows interleaved, [blocks, width,
/// kBlockRows], width >= key_end - key_begin of any block.
template <class T>
struct BandKernels {
  /// Panel of keys: rows [keys, kBandPanel] = [exp(k - ref) v | exp(k - ref)];
  /// before and after [blocks(rows), kBandPanel] = sums of the panel rows below
  /// key_begin and from key_end on. safe_rows [tiles]: the number of leading
  /// rows that may take the fast path.
  void (*pack_keys)(const Band&, const Strip<T>&, const Panel<T>&,
                    int64_t* safe_rows);
  /// Packs the weights of blocks [b0, b1) of rows. w: element (t, j) at w[(t -
  /// t0) * ld + (j - j0)]. Sets unsafe[t] to whether a bias of the row is
  /// beyond FastPathLimits.
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
  /// Panel of rows: [a / den | -a r / den] with a = dy gate(q), or zero in
  /// log-space rows; dq; before and after [blocks(keys), kBandPanel] as in
  /// pack_keys, with rows and keys exchanged. Sets `logspace` where |dy| is
  /// beyond FastPathLimits, or q, r or den is not finite.
  void (*pack_rows)(const Band&, const Strip<T>&, const BandGrad<T>&,
                    const Panel<T>& rows);
  /// dk and dv of the keys of blocks [b0, b1), at the strip's first channel.
  void (*backward)(const Band&, int64_t b0, int64_t b1, const Strip<T>&,
                   const Panel<T>& keys, const Panel<T>& rows, const T* packed,
                   int64_t width, T* dk, T* dv);
  /// For rows [t0, t1) and keys [j0, j1) of the band, adds the products of
  /// `tiles` pairs of panels, `key_step` and `row_step` apart: dw[(t - t0) * ld
  /// + (j - j0)] += keys_j . rows_t. Values outside of the band are undefined.
  void (*dw)(const Band&, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
             int64_t tiles, const T* keys, int64_t key_step, const T* rows,
             int64_t row_step, T* dw, int64_t ld);
  /// dw *= exp(w) in the band, 0 outside of it; w has the layout of dw.
  void (*scale_dw)(const Band&, int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                   const T* w, T* dw, int64_t ld);
  /// out[i * ld + j] = a_i . b_j for m rows a_i and n rows b_j of r values, r
  /// apart: w = u v^T. A product does not depend on m and n, and is
  /// bit-identical if a and b are exchanged.
  void (*outer)(int64_t m, int64_t n, int64_t r, const T* a, const T* b, T* out,
                int64_t ld);
};
template <class T>
const BandKernels<T>& band_kernels() noexcept;

// ---------------------------------------------------------------------------------------------------------------
// conv

/// The most neighbours that convolve computes together.
inline constexpr int kConvOutputs = 16;

/// The window of a position on a grid of Z x Y x X positions: offsets [-reach,
/// reach] in z and y, [lo, hi] in x. Position t is (t / (Y X), t / X % Y, t %
/// X); the offsets are the taps, numbered row-major, dz first.
struct ConvWindow {
  int64_t Z, Y, X;
  int64_t reach_z, reach_y, lo, hi;  // never beyond the grid
  bool before, after;  // whether positions outside are included: those before
                       // and after the window on a line

  int64_t T() const { return Z * Y * X; }
  int64_t width() const { return hi - lo + 1; }
  int64_t taps() const {
    return (2 * reach_z + 1) * (2 * reach_y + 1) * width();
  }
  /// Scratch of convolve.
  int64_t far_size() const { return (T() + kConvOutputs + Z * Y + Z) * kPanel; }
  /// The window of a key: offsets negated.
  ConvWindow transposed() const {
    return {Z, Y, X, reach_z, reach_y, -hi, -lo, after, before};
  }
};

/// `lanes` <= kPanel channels of one batch row, rows `stride` apart.
template <class T>
struct PanelChannels {
  T* at;
  int64_t stride;
  int lanes;
};

/// What is read or written next; entries may be null. Rows of few channels are
/// kilobytes apart, which hardware prefetchers do not follow.
template <class T>
struct NextChannels {
  static constexpr int kMax = 6;
  PanelChannels<const T> of[kMax] = {};
};

/// conv works on panels of kPanel channels, [T, kPanel]. Keys and values have
/// separate panels, since the key of a head is shared by many values. Channel i
/// of a panel of values belongs to head index[i] of a panel of heads. index is
/// [kPanel], or null if channel i belongs to head i.
template <class T>
struct ConvKernels {
  /// e = exp(k - ref), zero where padded. safe_rows [kPanel] as in
  /// BandKernels::pack_keys. The choice of the reference depends on window_only
  /// and causal.
  void (*pack_keys)(const ConvWindow&, const PanelChannels<const T>& k,
                    const uint8_t* padded, bool causal, bool window_only, T* e,
                    int64_t* safe_rows);
  /// ev = e[:, index] v. |v| beyond FastPathLimits are replaced by 0; returns
  /// whether there are none.
  bool (*pack_values)(int64_t T_, const PanelChannels<const T>& v, const T* e,
                      const int64_t* index, T* ev);
  /// out[t] = sum over the window of weights[tap] * panel + sum over the rest
  /// of the grid of panel; [T, kPanel]. Meanwhile, the rows of `next` are
  /// fetched into the cache.
  void (*convolve)(const ConvWindow&, const T* panel, const T* weights, T* far,
                   T* out, const NextChannels<T>& next);
  /// sums[tap] += sum_t rows[t] * panel[t + tap]; rows [T, kPanel], sums [taps,
  /// kPanel].
  void (*correlate)(const ConvWindow&, const T* panel, const T* rows, T* sums);
  /// y = gate(q) r, r = num / den[:, index]; q and r may be null.
  void (*finish)(int64_t T_, const T* num, const T* den, const int64_t* index,
                 const PanelChannels<const T>& q, const PanelChannels<T>& y,
                 const PanelChannels<T>& r);
  /// a = dy gate(q) / den[:, index], ar = a r, and dq; q and dq may be null.
  /// Returns whether |dy| is within FastPathLimits, and q, r and den are
  /// finite.
  bool (*rows)(int64_t T_, const PanelChannels<const T>& q,
               const PanelChannels<const T>& dy,
               const PanelChannels<const T>& r,
               const PanelChannels<const T>& den, const int64_t* index, T* a,
               T* ar, const PanelChannels<T>& dq);
  /// dv = e[:, index] sums and vdv = v dv.
  void (*values)(int64_t T_, const T* sums, const T* e, const int64_t* index,
                 const PanelChannels<const T>& v, const PanelChannels<T>& dv,
                 T* vdv);
  /// to[:, index] += x: adds `lanes` channels to their heads.
  void (*add_to_heads)(int64_t T_, int lanes, const T* x, const int64_t* index,
                       T* to);
  /// dk = vdv - e sums.
  void (*keys)(int64_t T_, const T* vdv, const T* e, const T* sums,
               const PanelChannels<T>& dk);
};
template <class T>
const ConvKernels<T>& conv_kernels() noexcept;

}  // namespace aft::kernels
