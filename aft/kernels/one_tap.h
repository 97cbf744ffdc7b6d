// AFT-conv with kernels of one tap: head h has one biased key, with bias w_h at
// position t + o_h of the grid, and every other pair has w = 0.
//   y_t = gate(q_t) * num_t / den_t,
//   num_t = sum_{j != t+o} exp(k_j) v_j + exp(w) exp(k_{t+o}) v_{t+o},
// with o and w those of the head, and den_t the same with v = 1. If t + o lies
// outside of the grid, there is no biased key. Not causal.
#pragma once

#include <cstdint>

#include "aft/kernels/kernels.h"
#include "aft/kernels/run.h"

namespace aft::kernels {

/// Maximum number of positions of a grid.
inline constexpr int64_t kOneTapPositions = int64_t{1} << 25;

/// Up to kPanel channels [c0, c1) of one batch row on a grid of Z x Y x X
/// positions, T = Z Y X. |w| <= FastPathLimits<T>::bias; k, q and v may have
/// any value. Weights below 1e-22 of the
/// largest of a row may be lost.
template <class T>
struct OneTap {
  int64_t Z, Y, X, D, H, c0, c1;
  const T *q, *k, *v;      // [T, D] or null, [T, H], [T, D]
  const uint8_t* padded;   // [T] or null
  const T* w;              // [H]
  const int64_t* offsets;  // [H, 3]: along Z, Y, X; any values
  T* y;                    // [T, D]; must not overlap the inputs
};

/// Size of the scratch of OneTapKernels::forward, aligned to 64 bytes, for Z Y
/// lines of X positions.
constexpr int64_t one_tap_scratch(int64_t lines, int64_t X) {
  return (3 * lines + 2) * X * 2 * kPanel;
}

template <class T>
struct OneTapKernels {
  /// O(T) time for any offsets. Returns false, with an undefined y, if a sum is
  /// not finite, which needs a key or value that is not.
  bool (*forward)(const OneTap<T>&, T* scratch);
};
template <class T>
const OneTapKernels<T>& one_tap_kernels() noexcept;

/// The biases of all heads: w [H] at offsets [H, 3] on a grid of three sizes
/// (leading ones are 1).
template <class T>
struct OneTapBias {
  int64_t grid[3];
  const T* w;
  const int64_t* offsets;
};

/// The whole operator: y [B, T, D], where T is the product of the grid and at
/// most kOneTapPositions. Not causal. O(T D) time; memory: the scratch of each
/// thread.
template <class T>
void run_one_tap(const Exec&, const Problem<T>&, const OneTapBias<T>&, T* y);

}  // namespace aft::kernels
