// `aft bench ops --memory`: no variant may hold anything of T x T. At T = 32768
// one such matrix is 4.3 GB, a tensor of [T, d] 8.4 MB.
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/cases.h"
#include "bench/ops.h"
#include "bench/peak.h"
#include "cli/table.h"

namespace aft::cli {

void bench_memory(const BenchOptions& options) {
  constexpr double kLimit = 40;
  const int64_t T = options.quick ? 4096 : 32768, d = 64;
  const double unit = sizeof(float) * static_cast<double>(T * d);
  std::vector<Case> cases;
  std::string names;
  for (const Case& c :
       {simple_case(1, T, d), local_case(1, T, d, 32, 16),
        full_case(1, T, d, 16, true), conv1d_case(1, T, d, 8, 31)}) {
    names += (names.empty() ? "" : ", ") + c.name();
    if (options.matches(c.name())) cases.push_back(c);
  }
  if (cases.empty()) options.nothing_matches(names);

  auto json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows;
  std::string over;
  {
    Progress progress(cases.size());
    for (const Case& c : cases) {
      progress.next(c.name());
      const auto peak = peak_bytes(c, "aft", Pass::kForwardBackward);
      if (!peak) {
        throw std::runtime_error("bench ops: the memory of " + c.name() +
                                 " could not be measured: the process for it "
                                 "failed (is there a /proc?)");
      }
      const double tensors = *peak / unit;
      json.push_back({{"case", c.name()},
                      {"pass", pass_name(Pass::kForwardBackward)},
                      {"peak_mb", *peak / 1e6},
                      {"tensors", tensors},
                      {"limit", kLimit}});
      rows.push_back({c.name(), number(*peak / 1e6), number(tensors),
                      number(kLimit), tensors <= kLimit ? "yes" : "NO"});
      if (tensors > kLimit) {
        over += (over.empty() ? "" : ", ") + c.name() + " " + number(tensors);
      }
    }
  }
  if (options.json) {
    std::cout << json.dump(2) << '\n';
  } else {
    std::cout << "forward + backward, peak above the inputs; a tensor of [T, "
                 "d] is "
              << number(unit / 1e6) << " MB, a T x T would be "
              << number(sizeof(float) * static_cast<double>(T * T) / unit)
              << " of them\n\n"
              << table({"case", "peak_mb", "tensors", "limit", "within"}, rows,
                       1);
  }
  if (!over.empty()) {
    throw std::runtime_error("bench ops: expected at most " + number(kLimit) +
                             " tensors of [T, d], got " + over);
  }
}

}  // namespace aft::cli
