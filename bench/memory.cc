// `aft-bench ops --memory`: no variant may keep a T x T matrix. At T = 32768 it
// would take 4.3 GB, a [T, d] tensor 8.4 MB.
#include "bench/ops.h"
#include "cli/measure/measure.h"

namespace aft::bench {

void bench_memory(const OpsOptions& options) {
  constexpr double kLimit = 40;
  const int64_t T = options.quick ? 4096 : 32768, d = 64;
  const double unit = sizeof(float) * static_cast<double>(T * d);
  const std::vector<Case> cases = options.matching(
      std::vector<Case>{simple_case(1, T, d), local_case(1, T, d, 32, 16),
                        full_case(1, T, d, 16, true),
                        conv1d_case(1, T, d, 8, 31)},
      [](const Case& c) { return c.name(); });
  Results results({"case", "peak_mb", "tensors", "limit", "within"}, 1);
  std::string over;
  {
    Progress progress(cases.size());
    for (const Case& c : cases) {
      progress.next(c.name());
      const auto peak = peak_bytes(c, "aft", Pass::kForwardBackward);
      if (!peak)
        throw std::runtime_error("ops: cannot measure the memory of " +
                                 c.name() +
                                 ": the subprocess failed (no /proc?)");
      const double tensors = *peak / unit;
      results.add({{"case", c.name()},
                   {"pass", pass_name(Pass::kForwardBackward)},
                   {"peak_mb", *peak / 1e6},
                   {"tensors", tensors},
                   {"limit", kLimit}},
                  {c.name(), number(*peak / 1e6), number(tensors),
                   number(kLimit), tensors <= kLimit ? "yes" : "NO"});
      if (tensors > kLimit)
        over += (over.empty() ? "" : ", ") + c.name() + " " + number(tensors);
    }
  }
  results.print(
      options.json, "",
      "forward + backward, peak above the inputs; a [T, d] tensor is " +
          number(unit / 1e6) + " MB, a T x T matrix is " +
          number(sizeof(float) * static_cast<double>(T * T) / unit) +
          " times as large\n\n");
  if (!over.empty())
    throw std::runtime_error("ops: expected at most " + number(kLimit) +
                             " tensors of [T, d], got " + over);
}

}  // namespace aft::bench
