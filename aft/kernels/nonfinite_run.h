// Non-finite inputs of simple, full, local and conv. The passes compute with
// finite values and report inputs that might not be; such calls are repeated
// with copies in which NaN and infinities are replaced by 0 (keys and biases of
// -infinity mask and are kept). Then what depends on a replaced element is
// overwritten: marks take its place, and the log-space path carries them along
// the same windows, masks and sums as weights and values, with all weights 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "aft/kernels/logspace_run.h"
#include "aft/kernels/run_buffers.h"

namespace aft::kernels {

/// A key or bias without NaN and +infinity.
template <class T>
T finite_exponent(T x) {
  return x < std::numeric_limits<T>::infinity() ? x : T(0);
}
template <class T>
T finite_value(T x) {
  return std::abs(x) <= std::numeric_limits<T>::max() ? x : T(0);
}
/// The mark of a key or bias: 0, -infinity if it masks, NaN if it makes the
/// weights of a row NaN.
template <class T>
T mark_of_exponent(T x) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  return x == -inf ? -inf
         : x < inf ? T(0)
                   : std::numeric_limits<T>::quiet_NaN();
}

template <class T>
T not_nan(T x) {
  return x == x ? x : T(0);
}

/// f of the n elements of x (null: none). Sets *changed if any is not equal.
template <class T>
Buffer<T> replaced(const Exec& exec, const T* x, int64_t n, T (*f)(T),
                   bool* changed) {
  if (!x) return {};
  Buffer<T> copy(exec, n);
  bool any = false;
  for (int64_t i = 0; i < n; ++i) {
    copy.get()[i] = f(x[i]);
    any |= !(copy.get()[i] == x[i]);
  }
  *changed |= any;
  return copy;
}

/// The inputs of a forward pass, and optionally those of a backward pass, with
/// finite values, except that keys and biases of -infinity and queries of
/// +-infinity are kept: the passes can handle them.
template <class T>
struct FiniteInputs {
  FiniteInputs(const Exec& exec, const Problem<T>& p)
      : k(replaced(exec, p.k, p.B * p.Tk * p.H, finite_exponent<T>, &changed)),
        v(replaced(exec, p.v, p.B * p.Tk * p.D, finite_value<T>, &changed)),
        problem(p) {
    problem.k = k.get(), problem.v = v.get();
  }
  FiniteInputs(const Exec& exec, const Problem<T>& p, const T* dy_from,
               const Saved<T>& from)
      : FiniteInputs(exec, p) {
    const int64_t n = p.B * p.Tq * p.D, heads = p.B * p.Tq * p.H;
    q = replaced(exec, p.q, n, not_nan<T>, &changed);
    dy = replaced(exec, dy_from, n, finite_value<T>, &changed);
    r = replaced(exec, static_cast<const T*>(from.r), n, finite_value<T>,
                 &changed);
    den = replaced(exec, static_cast<const T*>(from.den), heads,
                   finite_value<T>, &changed);
    problem.q = q.get();
    saved = {r.get(), den.get(), from.unsafe};
  }

  bool changed = false;
  Buffer<T> k, v, q, dy, r, den;
  Problem<T> problem;
  Saved<T> saved{nullptr, nullptr, nullptr};
};

/// Overwrites y, and r if not null, at `at` if lane i of a row of marks depends
/// on a non-finite element. Returns whether its weights do.
template <class T>
bool overwrite_output(const double* row, int i, int64_t at, const T* q, T* y,
                      T* r) {
  const double mark = row[2 * kTile + i];
  if (mark == 0) return false;
  y[at] = logspace_output(row, i, q ? q + at : nullptr);
  if (r) r[at] = static_cast<T>(mark);
  return std::isnan(row[kTile + i]);
}

/// Turns a row of marks of `lanes` channels, the first at index `at`, into the
/// marks of its gradients: a is NaN if all of them depend on a non-finite
/// element, and r if all but dv do. Also overwrites dq; q and dq may be null.
template <class T>
void mark_gradients(double* row, int lanes, int64_t at, const T* dy, const T* q,
                    T* dq) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (int i = 0; i < kTile; ++i) {
    const bool all = i < lanes && (std::isnan(row[kTile + i]) ||
                                   !std::isfinite(dy[at + i]) ||
                                   (q && std::isnan(q[at + i])));
    const bool any = all || (i < lanes && row[2 * kTile + i] != 0);
    if (any && q) dq[at + i] = static_cast<T>(nan);
    row[i] = all ? nan : any ? 1 : 0;  // rows with 0 are ignored
    row[kTile + i] = 0;
    row[2 * kTile + i] = any ? nan : 0;
  }
}
inline bool has_marks(const double* row) {
  return std::any_of(row, row + kTile, [](double a) { return a != 0; });
}

}  // namespace aft::kernels
