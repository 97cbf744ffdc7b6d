// The peak rates of this machine, measured in the same run as the operators. No
// operator can be faster than its work divided by these rates.
#pragma once

#include "cli/measure/cases.h"

namespace aft::bench {

using cli::Work;

/// Rates per second, summed over all threads.
struct Machine {
  double bytes = 0;  ///< read plus written when copying arrays beyond caches
  double flops = 0;  ///< fused multiply-adds (or multiply and add) in registers
  double exps = 0;   ///< aft's exp kernel on an array in the L1 cache
};

/// Measures with ATen's current number of threads, taking the best of a few
/// runs. Takes about a second. quick: a tenth of that, but less accurate.
Machine measure_machine(bool quick);

/// Lower bound on the time: max(bytes / bandwidth, flops / peak, exps / rate).
double bound_ms(const Machine& machine, const Work& work);
/// The same if the three did not overlap: their sum.
double sum_ms(const Machine& machine, const Work& work);

/// The widest instructions in use, for example "AVX2" or "AVX-512".
std::string isa_name();

/// Restarts the program, with the same arguments, such that no library uses
/// instructions beyond AVX2: aft's kernels, ATen, oneDNN and OpenBLAS. Returns
/// if it has been restarted. Throws std::runtime_error if the processor has no
/// AVX2.
void limit_to_avx2();

/// Describes the machine and the libraries in one line.
std::string describe(const Machine& machine);

}  // namespace aft::bench
