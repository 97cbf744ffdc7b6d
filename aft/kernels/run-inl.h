// What the run_*.cc share: buffers from Exec, and the gate in double.
#pragma once

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
  /// At least n numbers; what was in it is lost.
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

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace aft::kernels
