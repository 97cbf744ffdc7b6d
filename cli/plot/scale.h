// Scales for colour bars and axes: percentiles and round tick values.
#pragma once

#include <vector>

#include "cli/plot/colours.h"

namespace aft::cli {

/// Maps values to fractions of the colour range: low to 0, high to 1.
struct Scale {
  double low = 0, high = 1;
  bool below = false, above = false;  ///< whether values lie beyond an end
  double part(double x) const { return (x - low) / (high - low); }
};

/// The quantile at the fraction `part`, linearly interpolated; 0 if there are
/// no values. Values must not be NaN. Reorders `values`.
double percentile(std::vector<float>& values, double part);

/// Chooses a scale for the finite values. If low < high, the scale is
/// [low, high]. Otherwise it spans the 0.5th to the 99.5th percentile, or the
/// minimum to the maximum if these percentiles are equal. For kDiverging the
/// scale is symmetric about 0, and the percentiles ignore zeros. The scale is
/// never empty: a single value gets a range around it.
Scale make_scale(const std::vector<const std::vector<float>*>& values,
                 Colours colours, double low, double high);

/// Three to nine round numbers in [low, high], where low < high; low and high
/// themselves if they are too close to each other for that.
std::vector<double> round_ticks(double low, double high);

}  // namespace aft::cli
