// Line plots as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace aft::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< positive, ascending in x
};

struct Panel {
  std::string title, x_label, y_label;
  std::vector<Series> series;  ///< at most 8; the same order in each panel
  /// Two linear axes, x from 0, and no dots; otherwise two logarithmic ones
  /// with x ticks at the points.
  bool linear = false;
};

/// Panels side by side below one title, with one legend; each line is labelled
/// at its end too. A whole SVG file.
std::string plot(const std::string& title, const std::string& subtitle,
                 const std::vector<Panel>& panels);

}  // namespace aft::cli
