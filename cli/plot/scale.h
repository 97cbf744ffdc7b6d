// From numbers to a scale: percentiles, and round numbers for its ticks.
#pragma once

#include <vector>

#include "cli/figures/colours.h"

namespace aft::cli {

/// What a part of the colours stands for: 0 is low, 1 is high.
struct Scale {
  double low = 0, high = 1;
  bool below = false, above = false;  ///< whether values are beyond an end
  double part(double x) const { return (x - low) / (high - low); }
};

/// The value that `part` of the sorted values are below, between two of them as
/// a straight line; none may be NaN. Changes the order. 0 where there is none.
double percentile(std::vector<float>& values, double part);

/// For all values that are finite. low < high: that; otherwise from the 0.5th
/// percentile to the 99.5th, or from the least to the greatest where these are
/// equal; of kDiverging symmetric about 0, and the percentiles are those of
/// what is not 0. Never empty: a single value has a scale around it.
Scale make_scale(const std::vector<const std::vector<float>*>& values,
                 Colours colours, double low, double high);

/// Four to ten round numbers that cover [low, high], low < high.
std::vector<double> round_ticks(double low, double high);

}  // namespace aft::cli
