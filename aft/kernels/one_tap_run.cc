// AFT with one biased key per head: batch rows and panels of channels are
// independent.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "aft/kernels/nonfinite_run.h"
#include "aft/kernels/one_tap.h"
#include "aft/kernels/run_buffers.h"

namespace aft::kernels {

namespace {

/// Returns false, with an undefined y, if a key or value is not finite.
template <class T>
bool forward(const Exec& exec, const Problem<T>& p, const OneTapBias<T>& bias,
             T* y) {
  std::atomic<bool> finite{true};
  const int64_t groups = (p.D + kPanel - 1) / kPanel, n = p.Tk;
  exec.parallel(p.B * groups, [&](int64_t begin, int64_t end) {
    const Buffer<T> scratch(
        exec, one_tap_scratch(bias.grid[0] * bias.grid[1], bias.grid[2]));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / groups, c0 = i % groups * kPanel;
      const OneTap<T> piece{bias.grid[0],
                            bias.grid[1],
                            bias.grid[2],
                            p.D,
                            p.H,
                            c0,
                            std::min<int64_t>(c0 + kPanel, p.D),
                            p.q ? p.q + b * n * p.D : nullptr,
                            p.k + b * n * p.H,
                            p.v + b * n * p.D,
                            p.padded ? p.padded + b * n : nullptr,
                            bias.w,
                            bias.offsets,
                            y + b * n * p.D};
      if (!one_tap_kernels<T>().forward(piece, scratch.get())) finite = false;
    }
  });
  return finite;
}

/// Overwrites the results that depend on a non-finite element: each row depends
/// on all keys that are not masked, and on w if it has a biased key.
template <class T>
void overwrite(const Exec& exec, const Problem<T>& p, const OneTapBias<T>& bias,
               T* y) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const int64_t n = p.Tk, per_head = p.D / p.H, *g = bias.grid;
  exec.parallel(p.B * p.D, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / p.D, c = i % p.D, h = c / per_head;
      // The mark of key j: NaN, or its value if that is not finite.
      const auto masked = [&](int64_t j) {
        return (p.padded && p.padded[b * n + j]) ||
               p.k[(b * n + j) * p.H + h] ==
                   -std::numeric_limits<T>::infinity();
      };
      double all = 0;
      for (int64_t j = 0; j < n; ++j) {
        if (masked(j)) continue;
        const T v = p.v[(b * n + j) * p.D + c];
        if (std::isnan(mark_of_exponent(p.k[(b * n + j) * p.H + h]))) all = nan;
        if (!std::isfinite(v)) all += v;
      }
      const bool biased = std::isnan(mark_of_exponent(bias.w[h]));
      if (all == 0 && !biased) continue;
      const int64_t* o = bias.offsets + 3 * h;
      for (int64_t t = 0; t < n; ++t) {
        double mark = all;
        const int64_t at[] = {t / (g[1] * g[2]), t / g[2] % g[1], t % g[2]};
        bool inside = biased;
        for (int axis = 0; axis < 3; ++axis)  // without overflow
          inside =
              inside && o[axis] >= -at[axis] && o[axis] < g[axis] - at[axis];
        if (inside && !masked(t + (o[0] * g[1] + o[1]) * g[2] + o[2]))
          mark = nan;
        if (mark == 0) continue;
        T& out = y[(b * n + t) * p.D + c];
        const T* q = p.q ? p.q + (b * n + t) * p.D + c : nullptr;
        out = static_cast<T>(q ? mark * sigmoid(*q) : mark);
      }
    }
  });
}

}  // namespace

template <class T>
void run_one_tap(const Exec& exec, const Problem<T>& p,
                 const OneTapBias<T>& bias, T* y) {
  if (nothing(p, y)) return;
  bool changed = false;
  const Buffer<T> w = replaced(exec, bias.w, p.H, finite_exponent<T>, &changed);
  const OneTapBias<T> finite_bias{
      {bias.grid[0], bias.grid[1], bias.grid[2]}, w.get(), bias.offsets};
  if (forward(exec, p, finite_bias, y) && !changed) return;
  const FiniteInputs<T> finite(exec, p);
  if (finite.changed) forward(exec, finite.problem, finite_bias, y);
  if (finite.changed || changed) overwrite(exec, p, bias, y);
}

template void run_one_tap(const Exec&, const Problem<float>&,
                          const OneTapBias<float>&, float*);
template void run_one_tap(const Exec&, const Problem<double>&,
                          const OneTapBias<double>&, double*);

}  // namespace aft::kernels
