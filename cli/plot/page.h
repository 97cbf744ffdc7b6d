// Figures as PNG files, and as one page of HTML that needs nothing else: no
// network, no server, no file beside it.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "aft/io/image.h"
#include "cli/figures/chart.h"
#include "cli/figures/heatmap.h"

namespace aft::cli {

struct Picture {
  std::string name;  ///< of the file, without .png
  std::string title, caption;
  io::Image image;
};

struct Chart {
  std::string name;  ///< of the file, without .png
  std::string title, subtitle, caption;
  std::vector<Panel> panels;
};

using Figure = std::variant<Heatmaps, Chart, Picture>;

/// Lines at the top of the page: what, and its value.
using Details = std::vector<std::pair<std::string, std::string>>;

/// No map has more cells a side than this in the page; larger ones are averaged
/// down there, and the caption says so.
inline constexpr int64_t kMostCells = 512;

/// The page. Pictures are in it as PNG, charts as SVG; the values of cells and
/// points are shown where the mouse, a finger or the arrow keys point. All
/// texts are escaped; the same figures give the same bytes. Throws
/// std::invalid_argument where a name is empty, has other characters than
/// letters, digits, '.', '_' and '-', or is there twice; and as lay_out does.
std::string page(const std::string& title, const std::string& subtitle,
                 const Details& details, const std::vector<Figure>& figures);

/// Writes NAME.png of each figure and index.html into a directory, which it
/// makes where there is none. Throws as page does, before anything is written;
/// and io::Error.
void write_figures(const std::string& directory, const std::string& title,
                   const std::string& subtitle, const Details& details,
                   const std::vector<Figure>& figures);

}  // namespace aft::cli
