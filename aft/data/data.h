// Shared by all data sets: the error type, a view of bytes, and the order of
// examples.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace aft::data {

struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reports how much of a long operation is done. May be empty.
using ProgressCallback = std::function<void(int64_t done, int64_t all)>;

/// Physical memory of this machine in bytes.
double machine_memory();

/// 0, 1, 2 or 3 for the split train, valid, test or all. Throws DataError for
/// other names.
int split_number(const std::string& name);

/// A view of bytes; does not own them.
struct Bytes {
  const uint8_t* data = nullptr;
  int64_t size = 0;
};

/// An infinite, shuffled order of `count` items. Each epoch visits all of them
/// once, in an order that depends only on the seed and the index of the epoch,
/// so at(i) always returns the same item. With `repeats`, each item comes that
/// many times in a row; an epoch still has `count` examples, so it visits only
/// part of the items.
class Order {
 public:
  /// count >= 1.
  Order(int64_t count, uint64_t seed, int64_t repeats = 1)
      : count_(count), repeats_(repeats), seed_(seed) {}
  /// The item of example i, in [0, count).
  int64_t at(int64_t example);
  /// A hash of the seed and the epoch of example i, to derive other choices
  /// from.
  uint64_t random(int64_t example) const;
  int64_t count() const { return count_; }

 private:
  int64_t count_, repeats_, epoch_ = -1;
  uint64_t seed_;
  std::vector<int64_t> order_;
};

}  // namespace aft::data
