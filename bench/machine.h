// What this machine can do at best, measured in the same run as what it is
// compared with: no operator can be faster than its work over these.
#pragma once

#include "cli/bench_cases.h"

namespace aft::cli {

/// Per second, all threads together.
struct Machine {
  double bytes;  ///< read plus written by a copy of arrays larger than caches
  double flops;  ///< of fused multiply-adds (or multiply and add) on registers
  double exps;   ///< of our exp kernel on an array in the first-level cache
};

/// With the threads that ATen has now; the best of a few runs, about a second.
/// quick: a tenth of that, and less exact.
Machine measure_machine(bool quick);

/// max(bytes / bandwidth, flops / peak, exps / rate).
double bound_ms(const Machine& machine, const Work& work);

/// One line.
std::string describe(const Machine& machine);

}  // namespace aft::cli
