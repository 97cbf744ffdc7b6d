// What data sets share: their errors, bytes, and the order of examples.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace aft::tasks {

struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Bytes that lie in someone else's memory.
struct Bytes {
  const uint8_t* data = nullptr;
  int64_t size = 0;
};

/// An endless order of `count` things, all of them once an epoch, each epoch
/// shuffled anew by the seed and its number: example i is the same whenever it
/// is asked for. With `repeats`, each comes that many times in a row, and an
/// epoch, still of `count` examples, ends before it has had them all.
class Order {
 public:
  /// count >= 1.
  Order(int64_t count, uint64_t seed, int64_t repeats = 1)
      : count_(count), repeats_(repeats), seed_(seed) {}
  /// Which thing example i is, in [0, count).
  int64_t at(int64_t example);
  /// A number of the epoch of example i, for what else it chooses.
  uint64_t random(int64_t example) const;
  int64_t count() const { return count_; }

 private:
  int64_t count_, repeats_, epoch_ = -1;
  uint64_t seed_;
  std::vector<int64_t> order_;
};

}  // namespace aft::tasks
