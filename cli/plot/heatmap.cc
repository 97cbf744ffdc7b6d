#include "cli/plot/heatmap.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "cli/plot/colour_bar.h"
#include "cli/plot/drawing.h"
#include "cli/plot/scale.h"

namespace aft::cli {
namespace {

constexpr int64_t kWidth = 1260;     // of a sheet, about
constexpr int64_t kHeight = 1600;    // of one whose cells can be seen at less
constexpr int64_t kMargin = 14;      // around it
constexpr int64_t kImageSide = 280;  // the longer side of the image
constexpr int64_t kLeastSide = 24, kMostSide = 360, kOnlySide = 640;
constexpr int64_t kThinnest = 12;  // a map, in pixels
constexpr double kText = 15, kSmall = 13, kTiny = 11.5;
constexpr const char* kEdge = "#8a8a8a";

TextStyle style(double size, Anchor anchor) {
  TextStyle out;
  out.size = size, out.anchor = anchor;
  return out;
}

std::string formatted(double x, int digits) {
  char text[40];
  snprintf(text, sizeof(text), "%.*g", digits, x);
  return text;
}

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
        std::to_string(f.column_names.size()) + " maps, one at least, got " +
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
    throw std::invalid_argument(where + "the scale must rise, got " +
                                formatted(f.low, 6) + " to " +
                                formatted(f.high, 6));
}

/// How a map is drawn: cells averaged, and the pixels of each.
struct Cells {
  int64_t block = 1, height = 0, width = 0;
};

Cells cells(const Map& map, int64_t side) {
  const int64_t longer = std::max(map.height, map.width);
  if (map.values.empty()) return {};
  Cells out;
  out.block = (longer + side - 1) / side;
  const auto blocks = [&](int64_t n) {
    return (n + out.block - 1) / out.block;
  };
  out.height = out.width = std::max<int64_t>(1, side / blocks(longer));
  // A map of few rows would be a hairline.
  out.height = std::max(out.height, kThinnest / blocks(map.height));
  out.width = std::max(out.width, kThinnest / blocks(map.width));
  return out;
}

Place place_of(const Map& map, int64_t side) {
  const Cells c = cells(map, side);
  const auto blocks = [&](int64_t n) { return (n + c.block - 1) / c.block; };
  return {0, 0, blocks(map.height) * c.height, blocks(map.width) * c.width};
}

/// Thin, and outside of the place.
void draw_edge(Canvas& out, const Place& p) {
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

/// The image in its size: small ones with large pixels.
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

/// Where everything is.
struct Layout {
  int64_t height = 0, width = 0, top = 0;
  int64_t image_left = 0, bar_left = 0, bar_height = 0;
  std::vector<int64_t> row_top, row_height, column_left, column_width;
  std::vector<Place> places;
  double column_text = kText;  ///< the size of the names of columns
  bool upward = false;         ///< these
  bool named = false;  ///< each map by its own name: rows and columns have none
};

Layout arrange(const Heatmaps& f, const io::Image& image, const ColourBar& bar,
               int64_t side) {
  const size_t rows = f.row_names.size(), columns = f.column_names.size();
  const int64_t gap = side > 40 ? 10 : 5;
  Layout out;
  out.named = empty(f.row_names) && empty(f.column_names);
  out.row_height.assign(rows, 0), out.column_width.assign(columns, 0);
  for (size_t i = 0; i < f.maps.size(); ++i) {
    out.places.push_back(place_of(f.maps[i], side));
    int64_t &height = out.row_height[i / columns],
            &width = out.column_width[i % columns];
    height = std::max(height, out.places[i].height);
    width = std::max(width, out.places[i].width);
    if (out.named) width = std::max(width, widest({f.maps[i].name}, kSmall));
  }
  // Names that are too wide are smaller; where that does not do, upward.
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
  // Room for the upper end of the bar.
  if (bar.scale.above) out.top = std::max(out.top, kMargin + kBarTip);
  y = out.top - name;
  for (size_t r = 0; r < rows; ++r) {
    y += name;
    out.row_top.push_back(y);
    y += out.row_height[r] + gap;
  }
  const int64_t grid = y - gap - out.top;
  // As long as the name beside it, at least.
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

/// So that the sheet is about kWidth wide, and not too large altogether, nor
/// much taller than a screen where its cells do not need it. A little wider
/// where that spares the cells from being averaged.
Layout arrange_by_width(const Heatmaps& f, const io::Image& image,
                        const ColourBar& bar, int64_t& side) {
  const auto fits = [](const Layout& at, int64_t width) {
    return at.width <= width && at.height * at.width <= io::kMaxPixels / 4;
  };
  int64_t longest = 1;
  for (const Map& m : f.maps) longest = std::max({longest, m.height, m.width});
  side = f.maps.size() == 1 ? kOnlySide : kMostSide;
  Layout out = arrange(f, image, bar, side);
  const auto tall = [&] {
    return out.height > kHeight && side > std::max<int64_t>(100, 3 * longest);
  };
  while (side > kLeastSide && (!fits(out, kWidth) || tall())) {
    side -= side > 100 ? 4 : 1;
    out = arrange(f, image, bar, side);
  }
  if (side >= longest) return out;
  Layout wider = arrange(f, image, bar, longest);
  if (!fits(wider, kWidth * 5 / 4)) return out;
  side = longest;
  return wider;
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

HeatmapSheet lay_out(const Heatmaps& f) {
  check(f);
  std::vector<const std::vector<float>*> all;
  for (const Map& m : f.maps) all.push_back(&m.values);
  std::vector<Scale> scales;
  if (f.each && !(f.low < f.high)) {
    for (const auto* values : all)
      scales.push_back(make_scale({values}, f.colours, f.low, f.high));
  } else {
    scales.assign(all.size(), make_scale(all, f.colours, f.low, f.high));
  }
  const ColourBar bar =
      make_bar(scales, f.colours, f.quantity, f.each && !(f.low < f.high));
  const io::Image image = enlarged(f.image);
  int64_t side = f.side;
  const Layout at = side > 0 ? arrange(f, image, bar, side)
                             : arrange_by_width(f, image, bar, side);
  if (at.height * at.width > io::kMaxPixels)
    throw std::runtime_error(
        "figure " + f.name + ": " + std::to_string(at.height) + " x " +
        std::to_string(at.width) + " pixels are too many: expected " +
        std::to_string(io::kMaxPixels) + " at most");

  Canvas out(static_cast<double>(at.width), static_cast<double>(at.height));
  HeatmapSheet sheet;
  out.put(at.top, at.image_left, image);
  if (image.width > 0)
    draw_edge(out, {at.top, at.image_left, image.height, image.width});
  for (size_t r = 0; r < f.row_names.size(); ++r) {
    out.text(static_cast<double>(at.column_left[0]) - 8,
             static_cast<double>(at.row_top[r]) +
                 static_cast<double>(at.row_height[r]) / 2 + 0.37 * kText,
             f.row_names[r], style(kText, Anchor::kEnd));
  }
  for (size_t c = 0; c < f.column_names.size(); ++c) {
    TextStyle name =
        style(at.column_text, at.upward ? Anchor::kStart : Anchor::kMiddle);
    name.upward = at.upward;
    out.text(static_cast<double>(at.column_left[c]) +
                 static_cast<double>(at.column_width[c]) / 2 +
                 (at.upward ? 0.37 * kText : 0),
             static_cast<double>(at.top) - 8, f.column_names[c], name);
  }
  for (size_t i = 0; i < f.maps.size(); ++i) {
    const Place& p = at.places[i];
    if (p.width == 0) continue;
    const Cells c = cells(f.maps[i], side);
    draw_edge(out, p);
    draw_map(out, f.maps[i], p, c, scales[i], f.colours);
    if (at.named)
      out.text(static_cast<double>(p.left) + static_cast<double>(p.width) / 2,
               static_cast<double>(p.top) - 7, f.maps[i].name,
               style(kSmall, Anchor::kMiddle));
    sheet.averaged = std::max(sheet.averaged, c.block);
  }
  draw_bar(out, bar, f.colours, at.top, at.bar_left, at.bar_height);
  sheet.image = out.image(), sheet.places = at.places;
  return sheet;
}

io::Image draw(const Heatmaps& figure) { return lay_out(figure).image; }

}  // namespace aft::cli
