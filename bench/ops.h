// `aft bench ops`: its options and its three measurements.
#pragma once

#include <string>

#include "bench/time.h"

namespace aft::cli {

struct BenchOptions {
  bool json = false, memory = false, scaling = false, quick = false;
  std::string filter;  ///< substring of the row name; empty: all rows
  std::string plot;    ///< SVG file for `scaling`
  int repeat = 0;      ///< 0: as Repeat chooses
  int threads = 0;     ///< 0: as main.cc chose

  Repeat repetitions() const;
  bool matches(const std::string& name) const;
  /// Throws the error for a filter without matches; `names` lists the rows.
  [[noreturn]] void nothing_matches(const std::string& names) const;
};

/// Each operator against its rivals and the machine's bound.
void bench_speed(const BenchOptions& options);

/// Measures the memory of forward + backward at T = 32768, d = 64, in units of
/// one [T, d] tensor. Prints the table, then throws if an operator needs more
/// than 40.
void bench_memory(const BenchOptions& options);

/// Time and memory against T, for each operator and for attention.
void bench_scaling(const BenchOptions& options);

}  // namespace aft::cli
