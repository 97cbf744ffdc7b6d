// Whole operators, composed of the kernels: which calls, in which order, on
// which pieces. Memory and threads come from the caller (Exec), so nothing here
// depends on torch or on a thread pool.
//
// Inputs may be NaN or infinite: outputs and gradients that depend on such an
// element are as the formula says (reference.h), except that gradients that
// depend on an infinite element are NaN. All others are not affected. This
// takes about twice the time, plus O(window) per row of the affected channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace aft::kernels {

/// Provides memory and threads.
struct Exec {
  int threads = 1;
  /// Calls f(begin, end) for pieces that cover [0, n), possibly concurrently.
  /// Must propagate exceptions.
  std::function<void(int64_t n, const std::function<void(int64_t, int64_t)>& f)>
      parallel;
  /// `bytes` of memory, aligned to 64.
  std::function<std::shared_ptr<void>(size_t bytes)> allocate;

  /// One thread, memory from the C++ library.
  static Exec serial();
};

/// Row-major and contiguous: q [B, Tq, D] or null (no gate), k [B, Tk, H], v
/// [B, Tk, D], padded [B, Tk] or null. H = D except in conv, where H divides D
/// and channel c belongs to head c / (D / H).
template <class T>
struct Problem {
  int64_t B, Tq, Tk, D, H;
  bool causal;
  const T *q, *k, *v;
  const uint8_t* padded;
};

/// Gradients, all overwritten; dq is null if q is.
template <class T>
struct Gradients {
  T *dq, *dk, *dv;
};

/// AFT-simple. y [B, Tq, D]. O(T) time. Backward needs nothing from forward,
/// but saves one pass over the keys if given the states [B, simple_states(Tq),
/// 3, D] that forward writes (causal only; null: not wanted).
template <class T>
void run_simple(const Exec&, const Problem<T>&, T* y, T* states = nullptr);
template <class T>
void run_simple_backward(const Exec&, const Problem<T>&, const T* dy,
                         const T* states, const Gradients<T>&);

/// Which parameters a piece of dw contributes to: those of its rows (u, or w
/// itself) or those of its keys (v).
enum class BandSide { kRows, kKeys };

/// The biases of full and local. The functions are called from several threads
/// concurrently.
template <class T>
struct BandBias {
  int64_t window;    // |t - j| < window; < 0: all pairs (full), 0: simple
  bool window_only;  // outside: -inf instead of 0
  /// w[(t - t0) * ld + j - j0] for t in [t0, t1), j in [j0, j1).
  std::function<void(int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* w,
                     int64_t ld)>
      rows;
  /// The same transposed: w[(j - j0) * ld + t - t0].
  std::function<void(int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* w,
                     int64_t ld)>
      keys;
  /// Adds a piece of dw, in the layout of `rows`, to the gradients; empty: dw
  /// is not wanted. Each piece is passed twice, once per side. Each side gets
  /// the pieces in order; the two sides may be called concurrently.
  std::function<void(int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                     const T* dw, int64_t ld, BandSide side)>
      take;
};

/// What the forward pass of full, local and conv saves for the backward pass
/// (null: not wanted).
template <class T>
struct Saved {
  T* r;             // [B, Tq, D] num / den
  T* den;           // [B, Tq, H] relative to the reference of the panel
  uint8_t* unsafe;  // what is beyond FastPathLimits: rows [Tq] with such a bias
                    // (full, local), channels [B, D] (conv)
};

/// AFT-full and AFT-local. O(T window D) time; memory O(B T D) plus a block of
/// w.
template <class T>
void run_band(const Exec&, const Problem<T>&, const BandBias<T>&, T* y,
              const Saved<T>&);
template <class T>
void run_band_backward(const Exec&, const Problem<T>&, const BandBias<T>&,
                       const T* dy, const Saved<T>&, const Gradients<T>&);

/// The kernel of AFT-conv: w [H, kernel[0], kernel[1], kernel[2]] over a grid
/// of three sizes (leading ones are 1). Centred and odd; causal (1d): the last
/// tap is the current position.
template <class T>
struct ConvBias {
  int64_t grid[3], kernel[3];
  bool window_only;
  const T* w;
  T* dw;  // [H, taps], overwritten by backward; null: not wanted
};

/// AFT-conv. O(T taps D) time, O(B T D) memory.
template <class T>
void run_conv(const Exec&, const Problem<T>&, const ConvBias<T>&, T* y,
              const Saved<T>&);
template <class T>
void run_conv_backward(const Exec&, const Problem<T>&, const ConvBias<T>&,
                       const T* dy, const Saved<T>&, const Gradients<T>&);

}  // namespace aft::kernels
