// Figures as PNG files and as one self-contained HTML page, which needs no
// network, server or other files.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "aft/io/image.h"
#include "cli/plot/chart.h"
#include "cli/plot/heatmap.h"

namespace aft::cli {

/// An image to show as it is. All figures need a caption that says what they
/// show.
struct ImageFigure {
  std::string name;  ///< file name without .png
  std::string title, caption;
  io::Image image;
};

using Figure = std::variant<Heatmaps, Chart, ImageFigure>;

/// Name-value pairs listed at the top of the page.
using Details = std::vector<std::pair<std::string, std::string>>;

/// The most cells per side of a map in the page. Larger maps are averaged down,
/// and the caption says so.
inline constexpr int64_t kMostCells = 512;

/// Returns the HTML page. Images are embedded as PNG, charts as SVG. Mouse,
/// touch or the arrow keys select a cell or point and show its value. All text
/// is escaped. The output is deterministic. Throws std::invalid_argument if a
/// figure's name is empty, is not unique or contains characters other than
/// letters, digits, '.', '_' and '-'; also throws what render throws.
std::string page(const std::string& title, const std::string& subtitle,
                 const Details& details, const std::vector<Figure>& figures);

/// Writes NAME.png for each figure, with its title and caption, and index.html,
/// to a directory, which is created with its parents if it does not exist.
/// Throws what page throws, before anything is written, and io::Error.
void write_figures(const std::string& directory, const std::string& title,
                   const std::string& subtitle, const Details& details,
                   const std::vector<Figure>& figures);

}  // namespace aft::cli
