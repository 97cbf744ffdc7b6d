// Timing: medians of interleaved repetitions.
#pragma once

#include <functional>
#include <vector>

namespace aft::cli {

/// How often to repeat: `fixed` times or, if that is 0, until `seconds` have
/// passed, but 5 to 11 times (3 if one round takes longer than `seconds`).
struct Repeat {
  int fixed = 0;
  double seconds = 3;
};

double median(std::vector<double> x);

/// Median milliseconds of each function. The functions take turns, so that
/// other load on the machine affects all of them equally. A warm-up round comes
/// first.
std::vector<double> interleave(const std::vector<std::function<void()>>& f,
                               const Repeat& repeat);

}  // namespace aft::cli
