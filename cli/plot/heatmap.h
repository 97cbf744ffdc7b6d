// Heat maps arranged in rows and columns, with a colour bar, as one image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/io/image.h"
#include "cli/plot/colours.h"

namespace aft::cli {

struct Map {
  int64_t height = 0, width = 0;
  std::vector<float> values;  ///< row-major; NaN: no value
  /// The coordinates of the first row and column in tooltips, for example -5
  /// for relative offsets.
  int64_t y0 = 0, x0 = 0;
  std::string name;  ///< "layer 3, head 7"
};

struct Heatmaps {
  std::string name;  ///< file name without .png
  std::string title, caption;
  std::string quantity;  ///< shown at the bar and in tooltips: "exp(w) - 1"
  std::string y_name = "y", x_name = "x";
  std::vector<std::string> row_names, column_names;
  /// Row-major, row_names.size() x column_names.size(). An empty map leaves its
  /// place blank.
  std::vector<Map> maps;
  Colours colours = Colours::kSequential;
  /// The values at the ends of the colour scale. If equal, the 0.5th and 99.5th
  /// percentiles of the values are used; for kDiverging the scale is symmetric
  /// about 0.
  double low = 0, high = 0;
  bool each = false;  ///< each map has a separate scale; the bar says so
  /// The longer side of a map in pixels. 0: chosen so that the figure is about
  /// 1200 pixels wide and, as long as cells stay visible, at most about 1600
  /// tall. A cell is a whole number of pixels; a map with more cells than
  /// pixels is averaged down.
  int64_t side = 0;
  io::Image image;  ///< if not empty, drawn enlarged to the left of the maps
};

/// The position of a map in the image, in pixels; all 0 for an empty map.
struct Place {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

struct RenderedHeatmaps {
  io::Image image;
  std::vector<Place> places;  ///< one per map
  /// A drawn cell is the mean of at most averaged x averaged values.
  int64_t averaged = 1;
};

/// Draws the figure. NaN and infinite cells are hatched in grey. Throws
/// std::invalid_argument if the number of maps or values does not match, or if
/// the scale is not finite or low > high; io::Error if `image` is invalid;
/// std::runtime_error if the image would exceed io::kMaxPixels.
RenderedHeatmaps render(const Heatmaps& figure);

/// Averages the finite values in blocks of `block` x `block`; blocks at the
/// right and bottom edges may be smaller. A block without finite values gives
/// NaN. y0 and x0 are unchanged.
Map averaged(const Map& map, int64_t block);

}  // namespace aft::cli
