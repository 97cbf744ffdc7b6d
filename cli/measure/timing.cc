#include "cli/measure/timing.h"

#include <algorithm>
#include <chrono>

namespace aft::cli {
namespace {

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  const std::chrono::duration<double> d =
      std::chrono::steady_clock::now() - start;
  return d.count();
}

}  // namespace

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t n = x.size();
  return n % 2 == 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

std::vector<double> interleave(const std::vector<std::function<void()>>& f,
                               const Repeat& repeat) {
  double round = 0;
  for (const auto& g : f) round += seconds_of(g);
  const int least = round > repeat.seconds ? 3 : 5, most = 11;
  std::vector<std::vector<double>> times(f.size());
  double spent = 0;
  for (int n = 0;
       repeat.fixed > 0 ? n < repeat.fixed
                        : n < least || (n < most && spent < repeat.seconds);
       ++n) {
    for (size_t i = 0; i < f.size(); ++i) {
      times[i].push_back(seconds_of(f[i]));
      spent += times[i].back();
    }
  }
  std::vector<double> out;
  for (const auto& t : times) out.push_back(1e3 * median(t));
  return out;
}

}  // namespace aft::cli
