#include "aft/tasks/memory_limit.h"

#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "aft/base/config.h"
#include "aft/io/safetensors.h"

namespace aft::tasks {
namespace {

thread_local MemoryLimit* limit = nullptr;
thread_local std::shared_ptr<MemoryPeak::Count> peak;

/// The allocations that a MemoryPeak counts until they are freed.
class CountedMemory {
 public:
  void add(void* at, size_t size) {
    const auto bytes = static_cast<int64_t>(size);
    const int64_t now = peak->now += bytes;
    if (now > peak->most) peak->most = now;
    const std::lock_guard<std::mutex> lock(mutex_);
    all_[at] = {bytes, peak};
    any_ = true;
  }
  void remove(void* at) {
    if (!any_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find(at);
    if (found == all_.end()) return;
    found->second.second->now -= found->second.first;
    all_.erase(found);
    any_ = !all_.empty();
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::unordered_map<void*,
                     std::pair<int64_t, std::shared_ptr<MemoryPeak::Count>>>
      all_;
};

// Never destroyed: tensors may be freed at exit.
CountedMemory& counted_memory() {
  static auto* const all = new CountedMemory;
  return *all;
}

c10::DeleterFnPtr free_memory = nullptr;  // of the wrapped allocator

void remove_and_free(void* at) {
  counted_memory().remove(at);
  free_memory(at);
}

/// Wraps the CPU allocator and charges allocations to the limit.
class LimitedAllocator final : public c10::Allocator {
 public:
  explicit LimitedAllocator(c10::Allocator* next) : next_(next) {
    free_memory = next->raw_deleter();
  }
  // Which overload of allocate is virtual in LibTorch, and whether copy_data
  // is, depends on its version: hence no `override`.
  c10::DataPtr allocate(size_t bytes) const {
    if (limit) limit->take(static_cast<double>(bytes));
    if (peak && static_cast<double>(peak->now) + static_cast<double>(bytes) >
                    peak->limit)
      throw TooLarge("a tensor of " + gigabytes(static_cast<double>(bytes)) +
                     " is above the limit of " + gigabytes(peak->limit));
    try {
      c10::DataPtr memory = next_->allocate(bytes);
      if (peak && memory.get() == memory.get_context() &&
          memory.compare_exchange_deleter(free_memory, remove_and_free))
        counted_memory().add(memory.get(), bytes);
      return memory;
    } catch (const c10::Error&) {
      throw TooLarge("no memory for a tensor of " +
                     gigabytes(static_cast<double>(bytes)));
    }
  }
  c10::DataPtr allocate(size_t bytes) {
    return std::as_const(*this).allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const { return remove_and_free; }
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

MemoryPeak::MemoryPeak(double bytes) : count_(new Count{bytes}) {
  peak = count_;
}

MemoryPeak::~MemoryPeak() { peak = nullptr; }

std::string gigabytes(double bytes) {
  const double unit = bytes >= 1e11 ? 1e9 : bytes >= 1e10 ? 1e8 : 1e6;
  return base::shown(std::round(bytes / unit) * (unit / 1e9)) + " GB";
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
