// Batches made ahead of time by threads of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace aft::tasks {

struct LabelledBatch {
  at::Tensor values;  ///< float [count, size]
  std::vector<int64_t> labels;
};

/// Examples in an endless numbered order; each depends on its number alone, so
/// it does not matter who makes it, or when.
class Loader {
 public:
  /// Fills `size` numbers and returns the label; is called from many threads at
  /// once.
  using Make = std::function<int64_t(int64_t example, float* to)>;
  /// threads >= 1. end: no example at or behind it is asked for.
  Loader(int64_t size, Make make, int64_t threads, int64_t end = INT64_MAX);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Examples first .. first + count - 1, and begins with those that come after
  /// them: as far from these as these are from the ones before. Rethrows what
  /// make threw for one of them.
  LabelledBatch get(int64_t first, int64_t count);

 private:
  /// Examples that are made together, and who waits for them.
  struct Batch {
    int64_t first, count;
    int64_t begun = 0, left;  // examples nobody has begun; not yet finished
    LabelledBatch result;
    std::exception_ptr error;
  };
  void work();
  void stop();
  void plan(int64_t first, int64_t count);

  const int64_t size_, end_;
  const Make make_;
  std::mutex mutex_;
  std::condition_variable wanted_, finished_;
  std::deque<std::shared_ptr<Batch>> batches_;  // in order of their examples
  int64_t last_ = -1, stride_ = 0;  // where the last began; to the next
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace aft::tasks
