// Charts as SVG and as pixels: lines, and bars.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aft/io/image.h"

namespace aft::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< positive, ascending in x
};

struct Panel {
  std::string title, x_label, y_label;
  std::vector<Series> series;  ///< at most 16; the same order in each panel
  /// Two linear axes, x from 0, and no dots; otherwise two logarithmic ones
  /// with x ticks at the points.
  bool linear = false;
};

/// Panels side by side below one title, with one legend; each line is labelled
/// at its end too. A whole SVG file.
std::string plot(const std::string& title, const std::string& subtitle,
                 const std::vector<Panel>& panels);

/// The same for a page that shows the title itself.
std::string plot_untitled(const std::string& title, const std::string& subtitle,
                          const std::vector<Panel>& panels);

/// The same as pixels, two for each of the SVG. Throws io::Error where there
/// are no panels or too many.
io::Image plot_image(const std::string& title, const std::string& subtitle,
                     const std::vector<Panel>& panels);

/// Where plot draws a point.
struct PlottedPoint {
  size_t panel, series;
  double x, y;              ///< in the SVG
  double value_x, value_y;  ///< what it stands for
};

/// All points, in the order of the panels and the series.
std::vector<PlottedPoint> plotted_points(const std::vector<Panel>& panels);

/// The colour of a series, #rrggbb. The first eight differ; the second eight
/// are those again, in dashed lines.
std::string series_colour(size_t series);

struct Bar {
  double value = 0;  ///< 0: none
  double other = 0;  ///< to compare with, drawn thin below it; 0: none
};

struct BarPanel {
  std::string title;
  std::vector<Bar> bars;  ///< one for each name
};

/// Horizontal bars, a row for each name, panels side by side. `value` and
/// `other` say in a legend what the two bars of a row are; rows that are
/// `strong` have a colour of their own. A whole SVG file.
std::string bars(const std::string& title, const std::string& value,
                 const std::string& other,
                 const std::vector<std::string>& names,
                 const std::vector<bool>& strong,
                 const std::vector<BarPanel>& panels);

}  // namespace aft::cli
