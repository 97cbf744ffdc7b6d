// Limits the memory that creating a model may use, since the sizes in a
// configuration are untrusted.
#pragma once

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include "aft/data/data.h"

namespace aft::tasks {

/// Thrown by an allocation beyond the limit or the memory of the system.
struct TooLarge : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Replaces LibTorch's CPU allocator by one that observes MemoryLimit and
/// throws TooLarge if the system has no more memory. Without it, MemoryLimit
/// and within_memory() limit nothing. The library never calls this; a program
/// that loads untrusted configurations calls it at its start.
void install_memory_limit();

/// While it exists, CPU tensors that this thread allocates may take `bytes` in
/// total, counting tensors that have been freed. The allocation that exceeds
/// the limit throws TooLarge. If several are nested, only the innermost
/// applies.
class MemoryLimit {
 public:
  explicit MemoryLimit(double bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  double used() const { return used_; }
  /// Called by the allocator.
  void take(double bytes);

 private:
  const double bytes_;
  double used_ = 0;
  MemoryLimit* const before_;
};

/// While it exists, measures the memory that CPU tensors of this thread take at
/// a time, without those that existed before. The allocation that exceeds
/// `bytes` throws TooLarge. Not nested. Needs install_memory_limit().
class MemoryPeak {
 public:
  struct Count {
    const double limit;
    std::atomic<int64_t> now{0}, most{0};
  };
  explicit MemoryPeak(double bytes);
  ~MemoryPeak();
  MemoryPeak(const MemoryPeak&) = delete;
  MemoryPeak& operator=(const MemoryPeak&) = delete;
  double most() const { return static_cast<double>(count_->most); }

 private:
  const std::shared_ptr<Count> count_;  // shared with tensors that live longer
};

/// "1.25 GB", with about three digits.
std::string gigabytes(double bytes);

/// The memory that creating the model of a safetensors file may use, derived
/// from the size of its weights. Throws io::Error.
double memory_for(const std::string& weights);
[[noreturn]] void refuse_size(const std::string& weights,
                              const std::string& what, double limit);

/// Calls make(), which creates a model or its state, and limits its memory to
/// that of the machine. Throws ConfigError, which names `what`, if it needs
/// more. With `weights`, a safetensors file, the limit is what such weights
/// need, and the error is an io::Error that names the file.
template <class Make>
auto within_memory(const Make& make, const std::string& weights = "",
                   const std::string& what = "the sizes in model.*")
    -> decltype(make()) {
  const double limit =
      weights.empty() ? data::machine_memory() : memory_for(weights);
  const MemoryLimit guard(limit);
  try {
    return make();
  } catch (const TooLarge&) {
    refuse_size(weights, what, limit);
  }
}

}  // namespace aft::tasks
