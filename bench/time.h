// Times: medians of interleaved repetitions.
#pragma once

#include <functional>
#include <vector>

namespace aft::cli {

/// How often to repeat: `fixed` times, or where that is 0 until `seconds` are
/// over, but 5 to 11 times (3 where one round takes longer than `seconds`).
struct Repeat {
  int fixed = 0;
  double seconds = 3;
};

double median(std::vector<double> x);

/// Median milliseconds of each function. They take turns, so that what the
/// machine does beside them hits all alike; one round before warms up.
std::vector<double> interleave(const std::vector<std::function<void()>>& f,
                               const Repeat& repeat);

}  // namespace aft::cli
