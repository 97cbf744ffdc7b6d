#include "cli/plot/scale.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

namespace aft::cli {

double percentile(std::vector<float>& values, double part) {
  if (values.empty()) return 0;
  const double at = part * static_cast<double>(values.size() - 1);
  const auto i = values.begin() + static_cast<int64_t>(at);
  std::nth_element(values.begin(), i, values.end());
  const double rest = at - std::floor(at), first = *i;
  if (rest == 0 || i + 1 == values.end()) return first;
  return first + rest * (*std::min_element(i + 1, values.end()) - first);
}

Scale make_scale(const std::vector<const std::vector<float>*>& values,
                 Colours colours, double low, double high) {
  std::vector<float> finite;
  for (const auto* each : values) {
    std::copy_if(each->begin(), each->end(), std::back_inserter(finite),
                 [](float x) { return std::isfinite(x); });
  }
  if (finite.empty()) finite.push_back(0);
  const auto [least, greatest] =
      std::minmax_element(finite.begin(), finite.end());
  const double first = *least, last = *greatest;
  Scale out{low, high};
  if (!(low < high)) {
    // Kernels with one tap are almost all zeros; counting them would put the
    // taps outside the scale.
    if (colours == Colours::kDiverging)
      finite.erase(std::remove(finite.begin(), finite.end(), 0.0F),
                   finite.end());
    out.low = percentile(finite, 0.005), out.high = percentile(finite, 0.995);
    if (!(out.low < out.high)) out.low = first, out.high = last;
    if (colours == Colours::kDiverging) {
      out.high = std::max(std::abs(out.low), std::abs(out.high));
      if (out.high == 0) out.high = 1;
      out.low = -out.high;
    } else if (out.low == out.high) {
      const double around = out.low == 0 ? 1 : std::abs(out.low) / 2;
      out.low -= around, out.high += around;
    }
  }
  out.below = first<out.low, out.above = last> out.high;
  return out;
}

std::vector<double> round_ticks(double low, double high) {
  // Too close to each other for steps in between.
  if (high - low < 1e-9 * std::max(std::abs(low), std::abs(high)))
    return {low, high};
  double step = std::pow(10, std::floor(std::log10((high - low) / 4)));
  for (const double factor : {2.0, 2.5, 2.0})
    if ((high - low) / step > 8) step *= factor;
  std::vector<double> out;
  const double first = std::ceil(low / step - 1e-9),
               last = std::floor(high / step + 1e-9);
  for (int i = 0; first + i <= last; ++i) out.push_back((first + i) * step);
  return out;
}

}  // namespace aft::cli
