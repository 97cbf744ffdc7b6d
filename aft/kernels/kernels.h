// The contract of the SIMD kernels. Everything here is raw pointers over row-major memory; nothing allocates, starts a
// thread, throws or prints. Callers split the work (one call = one batch row and a few channels) and own all buffers.
//
//   y_t = gate(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)
//
// reference.h holds the same in plain double loops: start there.
#pragma once

#include <cstdint>

namespace aft::kernels {

/// Channels that one panel row holds, and rows that one multiplication produces together. A panel row is two slots of
/// kTile numbers, [first | second], in forward passes [exp(k) v | exp(k)]: one cache line in float.
inline constexpr int kTile = 8;
inline constexpr int kRows = 6;
inline constexpr int kPanel = 2 * kTile;

/// What the fast path may meet: |w| and the distance of a key above its reference stay below `exponent`, |v| and |dy|
/// below `value`. Then no product, sum or quotient of it overflows, and what underflows is below rounding
/// (docs/math.md, "Stability"). Anything else takes the exact path of exact.h.
template <class T>
struct Safe;
template <>
struct Safe<float> {
  static constexpr float exponent = 16.f, value = 1e6f;
};
template <>
struct Safe<double> {
  static constexpr double exponent = 200., value = 1e60;
};

/// The highest-precision statement about our float exponential: relative error for -87 <= x <= 88; below it is 0.
inline constexpr double kExpError = 2.4e-7;
/// y[i] = exp(x[i]). x and y may be the same. Cost: about one load, one store and ten FMAs a vector.
void exp(const float* x, float* y, int64_t n) noexcept;
void exp(const double* x, double* y, int64_t n) noexcept;

/// The SIMD target in use, for example "AVX2".
const char* target_name() noexcept;

// ------------------------------------------------------------------------------------------------------------- simple

/// Channels that one call of simple_* should get: its state then lives in the first-level cache.
inline constexpr int kSimpleChannels = 32;

/// One batch row of AFT-simple, channels [c0, c1), c1 - c0 <= kSimpleChannels. q null: no gate (y = num / den).
/// Running maximum: stable for every finite input. O(T) time, state of three numbers a channel.
template <class T>
struct Simple {
  int64_t Tq, Tk, D, c0, c1;
  bool causal;
  const T *q, *k, *v;     // [Tq, D] or null, [Tk, D], [Tk, D]
  const uint8_t* padded;  // [Tk] or null
  T* y;                   // [Tq, D]; must not overlap the inputs
};
void simple_forward(const Simple<float>&) noexcept;
void simple_forward(const Simple<double>&) noexcept;

/// Numbers of scratch that simple_backward needs.
constexpr int64_t simple_scratch(int64_t Tq, int64_t Tk) { return 3 * kSimpleChannels * (Tq > Tk ? Tq : Tk); }
/// Gradients of simple_forward; `y` of the argument is not used. dq null where q is.
void simple_backward(const Simple<float>&, const float* dy, float* dq, float* dk, float* dv, float* scratch) noexcept;
void simple_backward(const Simple<double>&, const double* dy, double* dq, double* dk, double* dv,
                     double* scratch) noexcept;

/// One position of n channels: state is [3, n], `fresh` says that nothing was seen yet (the state is then not read).
void simple_step(int64_t n, bool fresh, const float* q, const float* k, const float* v, float* state,
                 float* y) noexcept;
void simple_step(int64_t n, bool fresh, const double* q, const double* k, const double* v, double* state,
                 double* y) noexcept;

// ------------------------------------------------------------------------------------------------------ full and local

/// Which (t, j) carry a bias: |t - j| < window, everything where window < 0 (full). Outside, w = 0, or -inf where
/// window_only. Both operators are one banded matrix product, so they share everything below.
struct Band {
  int64_t rows, keys, window;
  bool causal, window_only;

  bool sees(int64_t t, int64_t j) const { return !causal || j <= t; }
  bool inside(int64_t t, int64_t j) const {
    return sees(t, j) && (window < 0 || (t - j < window && j - t < window));
  }
  /// Keys [key_begin, key_end) that rows [t0, t1) must look at one by one; the rest has w = 0.
  int64_t key_begin(int64_t t0) const { return clamp(window < 0 ? 0 : t0 - window + 1, keys); }
  int64_t key_end(int64_t t1) const {
    return clamp(causal ? t1 : window < 0 ? keys : t1 - 1 + window, keys);
  }
  /// The same for the rows that keys [j0, j1) must look at.
  int64_t row_begin(int64_t j0) const { return clamp(causal ? j0 : window < 0 ? 0 : j0 - window + 1, rows); }
  int64_t row_end(int64_t j1) const { return clamp(window < 0 ? rows : j1 - 1 + window, rows); }

 private:
  static int64_t clamp(int64_t x, int64_t n) { return x < 0 ? 0 : x > n ? n : x; }
};

constexpr int64_t blocks(int64_t n) { return (n + kRows - 1) / kRows; }

/// One batch row, channels [c, c + lanes), lanes <= kTile; pointers at that first channel, rows `stride` apart.
template <class T>
struct Tile {
  const T *q, *k, *v;  // q may be null
  int64_t stride;
  int lanes;
  const uint8_t* padded;  // [keys] or null
};

/// Panel of keys: panel [keys, kPanel] = [exp(k - ref) v | exp(k - ref)]; before and after [blocks(rows), kPanel] = sums
/// of the panel rows below key_begin and from key_end on, per block of rows (null: not wanted: full, window_only, and
/// `after` of causal bands). Returns how many rows, from the first, may take the fast path.
int64_t band_pack_keys(const Band&, const Tile<float>&, float* panel, float* before, float* after) noexcept;
int64_t band_pack_keys(const Band&, const Tile<double>&, double* panel, double* before, double* after) noexcept;

/// exp(w) of blocks [b0, b1) of kRows rows, interleaved for the multiplication: packed [b1 - b0, width, kRows], width >=
/// key_end - key_begin of any block. w: element (t, j) at w[(t - t0) * ld + (j - j0)]. unsafe[t] (may be null) is set to 1
/// for rows whose bias is beyond Safe.
void band_pack_weights(const Band&, int64_t b0, int64_t b1, const float* w, int64_t ld, int64_t t0, int64_t j0,
                       int64_t width, float* packed, uint8_t* unsafe) noexcept;
void band_pack_weights(const Band&, int64_t b0, int64_t b1, const double* w, int64_t ld, int64_t t0, int64_t j0,
                       int64_t width, double* packed, uint8_t* unsafe) noexcept;
/// The same transposed: blocks of kRows keys over rows; w: element (t, j) at w[(j - j0) * ld + (t - t0)].
void band_pack_weights_transposed(const Band&, int64_t b0, int64_t b1, const float* w, int64_t ld, int64_t t0,
                                  int64_t j0, int64_t width, float* packed) noexcept;
void band_pack_weights_transposed(const Band&, int64_t b0, int64_t b1, const double* w, int64_t ld, int64_t t0,
                                  int64_t j0, int64_t width, double* packed) noexcept;

/// Rows of blocks [b0, b1): y, and r = num / den and den where they are wanted (null: not), each at the tile's first
/// channel with rows `stride` apart. Rows with exact[t] != 0 (exact may be null) are left alone.
template <class T>
struct BandOut {
  T *y, *r, *den;
  const uint8_t* exact;
};
void band_forward(const Band&, int64_t b0, int64_t b1, const Tile<float>&, const float* panel, const float* before,
                  const float* after, const float* packed, int64_t width, const BandOut<float>&) noexcept;
void band_forward(const Band&, int64_t b0, int64_t b1, const Tile<double>&, const double* panel, const double* before,
                  const double* after, const double* packed, int64_t width, const BandOut<double>&) noexcept;

/// Panel of rows: [a / den | -a r / den] with a = dy gate(q), zero where exact[t]; writes dq (null where q is);
/// before/after [blocks(keys), kPanel] as in band_pack_keys with rows for keys. Sets exact[t] where |dy| is beyond Safe.
template <class T>
struct BandGrad {
  const T *dy, *r, *den;  // [rows] x stride
  T* dq;
  uint8_t* exact;  // [rows]
};
void band_pack_rows(const Band&, const Tile<float>&, const BandGrad<float>&, float* panel, float* before,
                    float* after) noexcept;
void band_pack_rows(const Band&, const Tile<double>&, const BandGrad<double>&, double* panel, double* before,
                    double* after) noexcept;

/// dk and dv of the keys of blocks [b0, b1), from the panel of keys and the panel of rows.
void band_backward(const Band&, int64_t b0, int64_t b1, int64_t stride, int lanes, const float* keys_panel,
                   const float* rows_panel, const float* before, const float* after, const float* packed,
                   int64_t width, float* dk, float* dv) noexcept;
void band_backward(const Band&, int64_t b0, int64_t b1, int64_t stride, int lanes, const double* keys_panel,
                   const double* rows_panel, const double* before, const double* after, const double* packed,
                   int64_t width, double* dk, double* dv) noexcept;

/// dw of rows [t0, t1) and keys [j0, j1), summed over `tiles` pairs of panels that lie `key_step` and `row_step` numbers
/// apart: dw[(t - t0) * ld + (j - j0)] = exp(w) * sum; w has the layout of dw. Zero outside the band.
void band_dw(const Band&, int64_t t0, int64_t t1, int64_t j0, int64_t j1, int64_t tiles, const float* keys_panel,
             int64_t key_step, const float* rows_panel, int64_t row_step, const float* w, float* dw, int64_t ld) noexcept;
void band_dw(const Band&, int64_t t0, int64_t t1, int64_t j0, int64_t j1, int64_t tiles, const double* keys_panel,
             int64_t key_step, const double* rows_panel, int64_t row_step, const double* w, double* dw, int64_t ld) noexcept;

/// One position of local (and full): a ring of the last keys plus the sums of what left the ring. `state` is [3, n];
/// `ring_k`, `ring_v` are [capacity, n]; w is the bias of the ring's entries oldest first (null: no bias), of one or of
/// n numbers an entry (w_per_channel). The caller appends (k, v) before and moves what leaves with simple_absorb.
template <class T>
struct WindowStep {
  int64_t n, count, first, capacity;  // count entries from ring index first on, wrapping
  bool has_past;                      // state holds something (and counts: not window_only)
  const T *q, *ring_k, *ring_v, *state, *w;
  bool w_per_channel;
  T* y;
};
void window_step(const WindowStep<float>&) noexcept;
void window_step(const WindowStep<double>&) noexcept;
/// state += (k, v), as simple_step does without the output.
void simple_absorb(int64_t n, bool fresh, const float* k, const float* v, float* state) noexcept;
void simple_absorb(int64_t n, bool fresh, const double* k, const double* v, double* state) noexcept;

}  // namespace aft::kernels
