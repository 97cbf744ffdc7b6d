#include "aft/data/data.h"

#include <unistd.h>

#include <numeric>
#include <utility>

#include "aft/base/random.h"

namespace aft::data {

double machine_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(sysconf(_SC_PAGESIZE));
}

int split_number(const std::string& name) {
  if (name == "train") return 0;
  if (name == "valid") return 1;
  if (name == "test") return 2;
  if (name == "all") return 3;
  throw DataError(
      "the split (--split) must be train, valid, test or all, got '" + name +
      "'");
}

uint64_t Order::random(int64_t example) const {
  return base::mix(seed_, static_cast<uint64_t>(example / count_));
}

int64_t Order::at(int64_t example) {
  if (const int64_t epoch = example / count_; epoch != epoch_) {
    epoch_ = epoch;
    uint64_t state = random(example);
    order_.resize(static_cast<size_t>(count_));
    std::iota(order_.begin(), order_.end(), int64_t{0});
    for (size_t i = order_.size() - 1; i > 0; --i) {
      state = base::mix(state, 1);
      std::swap(order_[i], order_[state % (i + 1)]);
    }
  }
  return order_[static_cast<size_t>(example % count_ / repeats_)];
}

}  // namespace aft::data
