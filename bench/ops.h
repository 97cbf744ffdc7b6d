// `aft bench ops`: its options, and the three things it can measure.
#pragma once

#include <string>

#include "cli/bench_time.h"

namespace aft::cli {

struct BenchOptions {
  bool json = false, memory = false, scaling = false, quick = false;
  std::string filter;  ///< part of the name of a row; empty: all
  std::string plot;    ///< SVG file for `scaling`
  int repeat = 0;      ///< 0: as Repeat chooses
  int threads = 0;     ///< 0: as main.cc chose

  Repeat repetitions() const;
  bool matches(const std::string& name) const;
  /// The error for a filter that leaves nothing; `names` are what there is.
  [[noreturn]] void nothing_matches(const std::string& names) const;
};

/// Each operator against its rivals and the machine's bound.
void bench_speed(const BenchOptions& options);

/// T = 32768, d = 64: how many tensors of [T, d] forward + backward needs.
/// Throws, after the table, where one needs more than 40.
void bench_memory(const BenchOptions& options);

/// Time and memory against T, for each operator and for attention.
void bench_scaling(const BenchOptions& options);

}  // namespace aft::cli
