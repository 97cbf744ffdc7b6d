// How much memory a model may ask for, known before it gets it: the sizes in a
// configuration are numbers that anybody can write.
#pragma once

#include <stdexcept>
#include <string>

namespace aft::tasks {

/// Bytes of memory that this machine has.
double machine_memory();

/// A tensor beyond the limit.
struct TooLarge : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// While it lives, the tensors that this thread makes on the CPU may take
/// `bytes` in all, those that are gone again too; the one beyond throws
/// TooLarge and gets nothing. Of several the last one counts.
class MemoryLimit {
 public:
  explicit MemoryLimit(double bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  double used() const { return used_; }
  /// The allocator's.
  void take(double bytes);

 private:
  const double bytes_;
  double used_ = 0;
  MemoryLimit* const before_;
};

/// What the model of a safetensors file may take while it is made, from the
/// bytes of its weights. Throws io::Error.
double memory_for(const std::string& weights);
[[noreturn]] void refuse_size(const std::string& weights,
                              const std::string& what, double limit);

/// make(), which makes a model or its state, where that takes no more memory
/// than the machine has. Throws ConfigError otherwise, which says that `what`
/// asks for more.
/// With a safetensors file of its weights: where it takes no more than such
/// weights need. Throws io::Error, which names the file, otherwise.
template <class Make>
auto within_memory(const Make& make, const std::string& weights = "",
                   const std::string& what = "the sizes in model.*")
    -> decltype(make()) {
  const double limit = weights.empty() ? machine_memory() : memory_for(weights);
  const MemoryLimit guard(limit);
  try {
    return make();
  } catch (const TooLarge&) {
    refuse_size(weights, what, limit);
  }
}

}  // namespace aft::tasks
