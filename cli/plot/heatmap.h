// Heat maps in rows and columns, as a figure of a paper has them: one sheet
// with a colour bar.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/io/image.h"
#include "cli/figures/colours.h"

namespace aft::cli {

struct Map {
  int64_t height = 0, width = 0;
  std::vector<float> values;  ///< row by row; NaN: nothing there
  /// What hover calls the first row and column: -5 for relative offsets.
  int64_t y0 = 0, x0 = 0;
  std::string name;  ///< "layer 3, head 7"
};

struct Heatmaps {
  std::string name;  ///< of the file, without .png
  std::string title, caption;
  std::string quantity;  ///< beside the colour bar and in hover: "exp(w) - 1"
  std::string y_name = "y", x_name = "x";
  std::vector<std::string> row_names, column_names;
  /// Row by row, row_names.size() x column_names.size(); an empty map leaves
  /// its place free.
  std::vector<Map> maps;
  Colours colours = Colours::kSequential;
  /// What the ends of the colours stand for. Equal: the 0.5th and the 99.5th
  /// percentile of the numbers; of kDiverging symmetric about 0.
  double low = 0, high = 0;
  bool each = false;  ///< every map has a scale of its own; the bar says so
  /// Pixels of the longer side of a map; 0: so that the sheet is about 1200
  /// pixels wide, and at most about 1600 tall where cells stay visible. A cell
  /// has a whole number of pixels; a map with more cells than pixels is
  /// averaged down.
  int64_t side = 0;
  io::Image picture;  ///< to the left of the maps, larger, where not empty
};

/// Where a map is in its sheet, in pixels; all 0 for an empty map.
struct Place {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

struct HeatmapSheet {
  io::Image image;
  std::vector<Place> places;  ///< one for each map
  int64_t averaged =
      1;  ///< a drawn cell is the mean of so many squared, at most
};

/// Cells that are NaN or infinite are hatched in grey. Throws
/// std::invalid_argument where the numbers of maps or values do not fit, or the
/// scale is not finite or falls; io::Error for a picture that is none;
/// std::runtime_error where the sheet would have more than io::kMaxPixels.
HeatmapSheet lay_out(const Heatmaps& figure);

/// The picture of lay_out.
io::Image draw(const Heatmaps& figure);

/// Means of the finite values in blocks of `block` x `block`, smaller ones at
/// the right and at the bottom; NaN where none is finite. y0 and x0 stay.
Map averaged(const Map& map, int64_t block);

}  // namespace aft::cli
