#include "cli/plot/heatmap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "cli/plot/colour_bar.h"
#include "cli/plot/drawing.h"
#include "cli/plot/scale.h"

namespace aft::cli {
namespace {

// All in pixels.
constexpr int64_t kWidth = 1260;     // of the figure, approximately
constexpr int64_t kHeight = 1600;    // at most, if cells stay visible
constexpr int64_t kMargin = 14;      // around the figure
constexpr int64_t kImageSide = 280;  // the longer side of the image
constexpr int64_t kLeastSide = 24, kMostSide = 360, kOnlySide = 640;  // of maps
constexpr int64_t kThinnest = 12;  // the shorter side of a map, at least
constexpr double kText = 15, kSmall = 13, kTiny = 11.5;
constexpr const char* kEdge = "#8a8a8a";

bool empty(const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.empty(); });
}

int64_t widest(const std::vector<std::string>& names, double size) {
  double out = 0;
  for (const std::string& name : names)
    out = std::max(out, text_width(name, size));
  return static_cast<int64_t>(std::ceil(out));
}

void check(const Heatmaps& f) {
  const size_t places = f.row_names.size() * f.column_names.size();
  const std::string where = "figure " + f.name + ": ";
  if (f.maps.empty() || f.maps.size() != places)
    throw std::invalid_argument(
        where + "expected " + std::to_string(f.row_names.size()) + " x " +
        std::to_string(f.column_names.size()) + " maps and at least one, got " +
        std::to_string(f.maps.size()));
  for (const Map& m : f.maps) {
    if (m.height < 0 || m.width < 0 ||
        m.values.size() != static_cast<size_t>(m.height * m.width))
      throw std::invalid_argument(where + "a map of " +
                                  std::to_string(m.height) + " x " +
                                  std::to_string(m.width) + " has " +
                                  std::to_string(m.values.size()) + " values");
  }
  if (f.image.height != 0 || f.image.width != 0)
    io::internal::check_image(where + "the image", f.image);
  if (!std::isfinite(f.high - f.low) || f.high < f.low)
    throw std::invalid_argument(where + "the scale must not descend, got " +
                                formatted(f.low, 6) + " to " +
                                formatted(f.high, 6));
}

/// How a map is drawn: block x block values per cell, in rows x columns cells
/// of height x width pixels.
struct Cells {
  int64_t block = 1, rows = 0, columns = 0, height = 0, width = 0;
};

Cells cells(const Map& map, int64_t side) {
  if (map.values.empty()) return {};
  const int64_t longer = std::max(map.height, map.width);
  const auto ratio_up = [](int64_t n, int64_t by) { return (n + by - 1) / by; };
  Cells out;
  out.block = ratio_up(longer, side);
  out.rows = ratio_up(map.height, out.block);
  out.columns = ratio_up(map.width, out.block);
  const int64_t square =
      std::max<int64_t>(1, side / std::max(out.rows, out.columns));
  // A map with few rows or columns would be too thin to see.
  out.height = std::max(square, kThinnest / out.rows);
  out.width = std::max(square, kThinnest / out.columns);
  return out;
}

/// Draws a thin border outside of the place.
void draw_border(Canvas& out, const Place& p) {
  const double x = static_cast<double>(p.left) - 1,
               y = static_cast<double>(p.top) - 1,
               width = static_cast<double>(p.width) + 2,
               height = static_cast<double>(p.height) + 2;
  out.box(x, y, width, 1, kEdge);
  out.box(x, y + height - 1, width, 1, kEdge);
  out.box(x, y + 1, 1, height - 2, kEdge);
  out.box(x + width - 1, y + 1, 1, height - 2, kEdge);
}

void draw_map(Canvas& out, const Map& map, const Place& p, const Cells& c,
              const Scale& scale, Colours colours) {
  const Map small = averaged(map, c.block);
  for (int64_t y = 0; y < p.height; ++y) {
    const float* row = &small.values[(y / c.height) * small.width];
    for (int64_t x = 0; x < p.width; ++x) {
      const float value = row[x / c.width];
      const bool hatch = (x + y) % 6 < 2;
      out.set(p.top + y, p.left + x,
              std::isfinite(value) ? colour(colours, scale.part(value))
              : hatch              ? Rgb{176, 176, 176}
                                   : Rgb{222, 222, 222});
    }
  }
}

/// The image at the size it is drawn; small images keep square pixels.
io::Image enlarged(const io::Image& image) {
  const int64_t longer = std::max(image.height, image.width);
  if (longer == 0) return {};
  const int64_t times = kImageSide / longer;
  if (times == 0)
    return io::resize(image,
                      std::max<int64_t>(1, image.height * kImageSide / longer),
                      std::max<int64_t>(1, image.width * kImageSide / longer));
  io::Image out{image.height * times, image.width * times, {}};
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x) {
      const auto from =
          image.rgb.begin() + 3 * (y / times * image.width + x / times);
      out.rgb.insert(out.rgb.end(), from, from + 3);
    }
  }
  return out;
}

/// The position of everything in the figure.
struct FigureLayout {
  int64_t side = 0;  ///< Heatmaps::side
  int64_t height = 0, width = 0, top = 0;
  int64_t image_left = 0, bar_left = 0, bar_height = 0;
  std::vector<int64_t> row_top, row_height, column_left, column_width;
  std::vector<Cells> cells;
  std::vector<Place> places;
  double column_text = kText;  ///< text size of the column names
  bool upward = false;         ///< column names are rotated
  bool named = false;  ///< rows and columns are unnamed: maps show their names
};

FigureLayout arrange(const Heatmaps& f, const io::Image& image,
                     const ColourBar& bar, int64_t side) {
  const size_t rows = f.row_names.size(), columns = f.column_names.size();
  const int64_t gap = side > 40 ? 10 : 5;
  FigureLayout out;
  out.side = side;
  out.named = empty(f.row_names) && empty(f.column_names);
  out.row_height.assign(rows, 0), out.column_width.assign(columns, 0);
  for (size_t i = 0; i < f.maps.size(); ++i) {
    const Cells c = cells(f.maps[i], side);
    out.cells.push_back(c);
    out.places.push_back({0, 0, c.rows * c.height, c.columns * c.width});
    int64_t &height = out.row_height[i / columns],
            &width = out.column_width[i % columns];
    height = std::max(height, out.places[i].height);
    width = std::max(width, out.places[i].width);
    if (out.named) width = std::max(width, widest({f.maps[i].name}, kSmall));
  }
  // Column names that are too wide are drawn smaller, or else rotated.
  const auto too_wide = [&](double size) {
    for (size_t c = 0; c < columns; ++c)
      if (widest({f.column_names[c]}, size) > out.column_width[c] + gap - 2)
        return true;
    return false;
  };
  for (const double size : {kText, kSmall, kTiny}) {
    out.column_text = size;
    if (!too_wide(size)) break;
  }
  out.upward = too_wide(out.column_text);
  if (out.upward) out.column_text = kText;

  int64_t x = kMargin;
  out.image_left = x;
  if (image.width > 0) x += image.width + 20;
  if (!empty(f.row_names)) x += widest(f.row_names, kText) + 8;
  for (size_t c = 0; c < columns; ++c) {
    out.column_left.push_back(x);
    x += out.column_width[c] + gap;
  }
  out.bar_left = x - gap + 18;
  out.width = out.bar_left + bar.width() + kMargin;

  int64_t y = kMargin;
  if (!empty(f.column_names))
    y += out.upward ? widest(f.column_names, kText) + 8 : 22;
  const int64_t name =
      out.named && !(f.maps.size() == 1 && f.maps[0].name.empty()) ? 20 : 0;
  out.top = y + name;
  // Leave space for the upper tip of the bar.
  if (bar.scale.above) out.top = std::max(out.top, kMargin + kBarTip);
  y = out.top - name;
  for (size_t r = 0; r < rows; ++r) {
    y += name;
    out.row_top.push_back(y);
    y += out.row_height[r] + gap;
  }
  const int64_t grid = y - gap - out.top;
  // At least as long as its label.
  out.bar_height = std::max(
      {std::min<int64_t>(grid, 320), int64_t{120}, widest({bar.label}, kText)});
  out.height = out.top + kMargin +
               std::max({grid, image.height,
                         out.bar_height + (bar.scale.below ? kBarTip : 0) + 5});
  for (size_t i = 0; i < out.places.size(); ++i) {
    Place& p = out.places[i];
    if (p.width == 0) continue;
    p.top =
        out.row_top[i / columns] + (out.row_height[i / columns] - p.height) / 2;
    p.left = out.column_left[i % columns] +
             (out.column_width[i % columns] - p.width) / 2;
  }
  return out;
}

/// Chooses the side of the maps so that the figure is about kWidth wide, at
/// most a quarter of the maximum size and, while cells stay visible, at most
/// kHeight tall. A figure may be somewhat wider if that avoids averaging cells.
FigureLayout arrange_by_width(const Heatmaps& f, const io::Image& image,
                              const ColourBar& bar) {
  const auto fits = [](const FigureLayout& at, int64_t width) {
    return at.width <= width && at.height * at.width <= io::kMaxPixels / 4;
  };
  int64_t longest = 1;
  for (const Map& m : f.maps) longest = std::max({longest, m.height, m.width});
  int64_t side = f.maps.size() == 1 ? kOnlySide : kMostSide;
  FigureLayout out = arrange(f, image, bar, side);
  const auto too_tall = [&] {
    return out.height > kHeight && side > std::max<int64_t>(100, 3 * longest);
  };
  while (side > kLeastSide && (!fits(out, kWidth) || too_tall())) {
    side -= side > 100 ? 4 : 1;
    out = arrange(f, image, bar, side);
  }
  if (side >= longest) return out;
  FigureLayout wider = arrange(f, image, bar, longest);
  return fits(wider, kWidth * 5 / 4) ? wider : out;
}

}  // namespace

Map averaged(const Map& map, int64_t block) {
  if (block <= 1) return map;
  Map out = map;
  out.height = (map.height + block - 1) / block;
  out.width = (map.width + block - 1) / block;
  out.values.clear();
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x) {
      double sum = 0, count = 0;
      for (int64_t j = y * block; j < std::min((y + 1) * block, map.height);
           ++j) {
        for (int64_t i = x * block; i < std::min((x + 1) * block, map.width);
             ++i) {
          const float value = map.values[j * map.width + i];
          if (std::isfinite(value)) sum += value, ++count;
        }
      }
      out.values.push_back(count > 0 ? static_cast<float>(sum / count)
                                     : std::numeric_limits<float>::quiet_NaN());
    }
  }
  return out;
}

RenderedHeatmaps render(const Heatmaps& f) {
  check(f);
  const bool each = f.each && !(f.low < f.high);
  std::vector<const std::vector<float>*> all;
  for (const Map& m : f.maps) all.push_back(&m.values);
  std::vector<Scale> scales;
  if (each) {
    for (const auto* values : all)
      scales.push_back(make_scale({values}, f.colours, f.low, f.high));
  } else {
    scales.assign(all.size(), make_scale(all, f.colours, f.low, f.high));
  }
  const ColourBar bar = make_bar(scales, f.colours, f.quantity, each);
  const io::Image image = enlarged(f.image);
  const FigureLayout at = f.side > 0 ? arrange(f, image, bar, f.side)
                                     : arrange_by_width(f, image, bar);
  if (at.height * at.width > io::kMaxPixels)
    throw std::runtime_error("figure " + f.name + ": expected at most " +
                             std::to_string(io::kMaxPixels) + " pixels, got " +
                             std::to_string(at.height) + " x " +
                             std::to_string(at.width));

  Canvas out(static_cast<double>(at.width), static_cast<double>(at.height));
  RenderedHeatmaps rendered;
  out.put(at.top, at.image_left, image);
  if (image.width > 0)
    draw_border(out, {at.top, at.image_left, image.height, image.width});
  const auto middle = [](int64_t first, int64_t length) {
    return static_cast<double>(first) + static_cast<double>(length) / 2;
  };
  for (size_t r = 0; r < f.row_names.size(); ++r) {
    out.text(static_cast<double>(at.column_left[0]) - 8,
             middle(at.row_top[r], at.row_height[r]) + 0.37 * kText,
             f.row_names[r], {kText, Anchor::kEnd});
  }
  TextStyle column{at.column_text,
                   at.upward ? Anchor::kStart : Anchor::kMiddle};
  column.upward = at.upward;
  for (size_t c = 0; c < f.column_names.size(); ++c) {
    out.text(middle(at.column_left[c], at.column_width[c]) +
                 (at.upward ? 0.37 * kText : 0),
             static_cast<double>(at.top) - 8, f.column_names[c], column);
  }
  for (size_t i = 0; i < f.maps.size(); ++i) {
    const Place& p = at.places[i];
    if (p.width == 0) continue;
    draw_border(out, p);
    draw_map(out, f.maps[i], p, at.cells[i], scales[i], f.colours);
    if (at.named)
      out.text(middle(p.left, p.width), static_cast<double>(p.top) - 7,
               f.maps[i].name, {kSmall, Anchor::kMiddle});
    rendered.averaged = std::max(rendered.averaged, at.cells[i].block);
  }
  draw_bar(out, bar, f.colours, at.top, at.bar_left, at.bar_height);
  rendered.image = out.image(), rendered.places = at.places;
  return rendered;
}

}  // namespace aft::cli
