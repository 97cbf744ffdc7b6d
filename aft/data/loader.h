// Prepares batches ahead of time in background threads.
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

namespace aft::data {

struct LabelledBatch {
  at::Tensor values;  ///< float [count, size]
  std::vector<int64_t> labels;
};

/// Loads examples from an infinite numbered sequence. Each example depends on
/// its number alone, so the result does not depend on thread scheduling.
class Loader {
 public:
  /// Writes `size` values and returns the label. Called from several threads
  /// concurrently.
  using Make = std::function<int64_t(int64_t example, float* to)>;
  /// threads >= 1. No example with number `end` or above is requested.
  Loader(int64_t size, Make make, int64_t threads, int64_t end = INT64_MAX);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns examples first .. first + count - 1 and starts on the following
  /// batches, assuming that the distance from the previous call's `first` to
  /// this one repeats. Rethrows an exception that `make` threw for one of these
  /// examples.
  LabelledBatch get(int64_t first, int64_t count);

 private:
  /// A batch in preparation.
  struct Batch {
    int64_t first, count;
    int64_t begun = 0, left;  // examples started; examples not yet finished
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
  int64_t last_ = -1,
          stride_ = 0;  // start of the last batch; distance to the next
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace aft::data
