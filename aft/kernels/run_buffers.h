// Shared by all *_run*.cc: buffers from Exec, empty problems, and the gate in
// double.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "aft/kernels/run.h"

namespace aft::kernels {

/// Uninitialised memory from an Exec.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Exec& exec, int64_t n) { grow(exec, n); }
  /// Ensures space for n elements. The contents are lost.
  void grow(const Exec& exec, int64_t n) {
    if (n <= size_) return;
    memory_.reset();
    memory_ = exec.allocate(static_cast<size_t>(n) * sizeof(T));
    size_ = n;
  }
  T* get() const { return static_cast<T*>(memory_.get()); }

 private:
  std::shared_ptr<void> memory_;
  int64_t size_ = 0;
};

/// Whether there are no outputs or no keys. If so, sets the results to 0.
template <class T>
bool nothing(const Problem<T>& p, T* y) {
  if (p.B * p.Tq * p.D > 0 && p.Tk > 0) return false;
  std::fill_n(y, p.B * p.Tq * p.D, T(0));
  return true;
}
template <class T>
bool nothing(const Problem<T>& p, const Gradients<T>& g) {
  if (p.B * p.Tq * p.D > 0 && p.Tk > 0) return false;
  if (g.dq) std::fill_n(g.dq, p.B * p.Tq * p.D, T(0));
  std::fill_n(g.dk, p.B * p.Tk * p.H, T(0));
  std::fill_n(g.dv, p.B * p.Tk * p.D, T(0));
  return true;
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace aft::kernels
