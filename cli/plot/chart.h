// Line charts and bar charts, as SVG or as pixels.
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
  /// true: linear axes, x starting at 0, no markers. false: logarithmic axes
  /// with x ticks at the points.
  bool linear = false;
};

/// Renders panels side by side below one title, with one legend, as a complete
/// SVG file. Each line is also labelled at its end.
std::string plot(const std::string& title, const std::string& subtitle,
                 const std::vector<Panel>& panels);

/// Like plot(), without the visible title, for a page that shows it elsewhere.
std::string plot_untitled(const std::string& title, const std::string& subtitle,
                          const std::vector<Panel>& panels);

/// Like plot(), as an image with two pixels per SVG unit. Throws io::Error if
/// there are no panels or too many.
io::Image plot_image(const std::string& title, const std::string& subtitle,
                     const std::vector<Panel>& panels);

/// The position of a point drawn by plot().
struct PlottedPoint {
  size_t panel, series;
  double x, y;              ///< SVG coordinates
  double value_x, value_y;  ///< data values
};

/// All points, ordered by panel, then by series.
std::vector<PlottedPoint> plotted_points(const std::vector<Panel>& panels);

/// The colour of a series, #rrggbb. The first eight are distinct; the second
/// eight repeat them with dashed lines.
std::string series_colour(size_t series);

struct Bar {
  double value = 0;  ///< 0: none
  double other = 0;  ///< for comparison, drawn thin below `value`; 0: none
};

struct BarPanel {
  std::string title;
  std::vector<Bar> bars;  ///< one per name
};

/// Renders horizontal bars, one row per name, with panels side by side, as a
/// complete SVG file. `value` and `other` are the legend entries for the two
/// bars of a row. Rows marked `strong` get a different colour.
std::string bars(const std::string& title, const std::string& value,
                 const std::string& other,
                 const std::vector<std::string>& names,
                 const std::vector<bool>& strong,
                 const std::vector<BarPanel>& panels);

}  // namespace aft::cli
