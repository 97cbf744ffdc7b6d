// `aft-bench ops`: its options and its three measurements.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace aft::bench {

struct OpsOptions : Options {
  bool memory = false, scaling = false;
  std::string filter;  ///< substring of the name of a case; empty: all
  std::string isa;     ///< "avx2", or empty: all instructions

  /// The elements of `all` whose name(element) contains the filter. Throws
  /// UsageError if there is none.
  template <class T, class Name>
  std::vector<T> matching(const std::vector<T>& all, const Name& name) const {
    std::vector<T> out;
    std::string names;
    for (const T& x : all) {
      names += (names.empty() ? "" : ", ") + name(x);
      if (name(x).find(filter) != std::string::npos) out.push_back(x);
    }
    if (out.empty())
      throw UsageError("ops: --filter must be part of one of " + names +
                       ", got '" + filter + "'");
    return out;
  }
};

/// Each operator next to its rivals and the machine's bound.
void bench_speed(const OpsOptions& options);

/// Measures the memory of forward + backward at T = 32768, d = 64, in units of
/// one [T, d] tensor. Prints the table, then throws if an operator needs more
/// than 40.
void bench_memory(const OpsOptions& options);

/// Time and memory as functions of T, for each operator and for attention.
void bench_scaling(const OpsOptions& options);

}  // namespace aft::bench
