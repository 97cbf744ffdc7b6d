#include "aft/tasks/memory_limit.h"

#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "aft/base/config.h"
#include "aft/io/safetensors.h"

namespace aft::tasks {
namespace {

thread_local MemoryLimit* limit = nullptr;

std::string gigabytes(double bytes) {
  return base::shown(std::round(bytes / 1e6) / 1e3) + " GB";
}

/// Wraps the CPU allocator and charges allocations to the limit.
class LimitedAllocator final : public c10::Allocator {
 public:
  explicit LimitedAllocator(c10::Allocator* next) : next_(next) {}
  // Which overload of allocate is virtual in LibTorch, and whether copy_data
  // is, depends on its version: hence no `override`.
  c10::DataPtr allocate(size_t bytes) const {
    if (limit) limit->take(static_cast<double>(bytes));
    try {
      return next_->allocate(bytes);
    } catch (const c10::Error&) {
      throw TooLarge("no memory for a tensor of " +
                     gigabytes(static_cast<double>(bytes)));
    }
  }
  c10::DataPtr allocate(size_t bytes) {
    return std::as_const(*this).allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const { return next_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
  }

 private:
  c10::Allocator* const next_;
};

}  // namespace

void install_memory_limit() {
  // Never uninstalled: tensors that it allocated may live until exit.
  static const bool installed = [] {
    c10::SetCPUAllocator(new LimitedAllocator(c10::GetCPUAllocator()));
    return true;
  }();
  (void)installed;
}

MemoryLimit::MemoryLimit(double bytes) : bytes_(bytes), before_(limit) {
  limit = this;
}

MemoryLimit::~MemoryLimit() { limit = before_; }

void MemoryLimit::take(double bytes) {
  if (used_ + bytes > bytes_)
    throw TooLarge("a tensor of " + gigabytes(bytes) + ", after " +
                   gigabytes(used_) + ", is above the limit of " +
                   gigabytes(bytes_));
  used_ += bytes;
}

namespace {

double bytes_of(const std::string& weights) {
  double bytes = 0;
  const io::SafeTensors file = io::SafeTensors::open(weights);
  for (const io::TensorView& x : file.tensors())
    bytes += static_cast<double>(x.bytes);
  return bytes;
}

}  // namespace

double memory_for(const std::string& weights) {
  // Initial weights are drawn, and some are computed (Performer's by QR),
  // before the file's weights replace them. Over all models this takes less
  // than 8 times the size of the weights (memory_test).
  constexpr double kFactor = 16, kConstant = 1 << 28;
  return kConstant + kFactor * bytes_of(weights);
}

void refuse_size(const std::string& weights, const std::string& what,
                 double limit) {
  if (weights.empty())
    throw base::ConfigError(what + " need more than the " + gigabytes(limit) +
                            " of memory that this machine has");
  throw io::Error(weights + ": has " + base::shown(bytes_of(weights)) +
                  " bytes of weights, but the sizes in the configuration need "
                  "more than " +
                  gigabytes(limit));
}

}  // namespace aft::tasks
