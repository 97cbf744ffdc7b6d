// Line charts and bar charts, as SVG or as pixels.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aft/io/image.h"

namespace aft::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>>
      points;  ///< positive (y also 0 if linear), ascending in x
};

struct Panel {
  std::string title, x_label, y_label;
  std::vector<Series> series;  ///< at most 16; the same order in each panel
  /// true: linear axes, x starting at 0, a marker only for a series of one
  /// point. false: logarithmic axes with x ticks at the points.
  bool linear = false;
};

struct Chart {
  std::string name;  ///< file name without .png, for page.h
  std::string title, subtitle, caption;
  std::vector<Panel> panels;
};

/// Renders panels side by side below one title, with one legend, as a complete
/// SVG file. The end of each line is also labelled, at the right of the panel.
/// Axes end at the data, and ticks have round values. Texts that are too long
/// are shortened or wrapped.
std::string plot(const Chart& chart);

/// Like plot(), without the visible title and caption, for a page that shows
/// them elsewhere.
std::string plot_untitled(const Chart& chart);

/// Like plot(), as an image with two pixels per SVG unit. Throws io::Error if
/// there are no panels or too many.
io::Image plot_image(const Chart& chart);

/// The position of a point drawn by all of these.
struct PlottedPoint {
  size_t panel, series;
  double x, y;              ///< SVG coordinates
  double value_x, value_y;  ///< data values
};

/// All points, ordered by panel, then by series.
std::vector<PlottedPoint> plotted_points(const Chart& chart);

/// The colour of a series, #rrggbb. The first eight are distinct; the second
/// eight repeat them with dashed lines.
std::string series_colour(size_t series);

struct Bar {
  double value = 0;  ///< 0: none
  double other = 0;  ///< for comparison, drawn thin below `value`; 0: none
};

struct BarPanel {
  std::string title, subtitle;
  std::vector<Bar> bars;  ///< one per name
  int digits = 3;         ///< of the values, as in number()
};

/// What the colours of bars mean: `value` of rows that are marked strong and of
/// the others, and `other`. Only the entries that occur are shown.
struct BarLegend {
  std::string strong, plain, other;
};

/// Renders horizontal bars, one row per name, with panels side by side, as a
/// complete SVG file. Texts that are too long are shortened.
std::string bars(const std::string& title, const BarLegend& legend,
                 const std::vector<std::string>& names,
                 const std::vector<bool>& strong,
                 const std::vector<BarPanel>& panels);

}  // namespace aft::cli
