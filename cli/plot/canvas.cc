// Renders drawings to pixels. The coverage of a pixel by a line is computed
// from the distance between the line and the centre of the pixel.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "cli/plot/drawing.h"
#include "cli/plot/font.h"

namespace aft::cli {
namespace {

constexpr double kUnit = 0.061;  ///< glyph unit as a fraction of the text size

Rgb parsed(const std::string& colour) {
  std::string digits = colour.substr(colour.empty() ? 0 : 1);
  if (digits.size() == 3)
    digits = {digits[0], digits[0], digits[1], digits[1], digits[2], digits[2]};
  const auto value = std::strtoul(digits.c_str(), nullptr, 16);
  return {static_cast<uint8_t>(value >> 16), static_cast<uint8_t>(value >> 8),
          static_cast<uint8_t>(value)};
}

/// x rounded down, clamped to [0, most]; NaN gives 0.
int64_t pixel(double x, int64_t most) {
  if (!(x > 0)) return 0;
  return static_cast<int64_t>(std::min(x, static_cast<double>(most)));
}

void blend(uint8_t* to, const Rgb& colour, double part) {
  for (size_t c = 0; c < 3; ++c) {
    to[c] = static_cast<uint8_t>(
        std::lround(to[c] + (colour[c] - to[c]) * std::clamp(part, 0.0, 1.0)));
  }
}

/// Distance from (x, y) to the line segment from a to b.
double distance(double x, double y, const std::pair<double, double>& a,
                const std::pair<double, double>& b) {
  const double dx = b.first - a.first, dy = b.second - a.second,
               square = dx * dx + dy * dy;
  const double along =
      square > 0 ? ((x - a.first) * dx + (y - a.second) * dy) / square : 0;
  const double t = std::clamp(along, 0.0, 1.0);
  return std::hypot(x - a.first - t * dx, y - a.second - t * dy);
}

/// Splits a line into dashes of length 6 with gaps of 3.
std::vector<Path> dashed(const Path& line) {
  constexpr double kOn = 6, kOff = 3;
  std::vector<Path> out;
  bool on = true;
  double left = kOn;
  if (!line.empty()) out.push_back({line[0]});
  for (size_t i = 1; i < line.size(); ++i) {
    auto [x, y] = line[i - 1];
    double rest = std::hypot(line[i].first - x, line[i].second - y);
    while (rest > 0) {
      const double step = std::min(rest, left), part = step / rest;
      x += (line[i].first - x) * part, y += (line[i].second - y) * part;
      rest -= step, left -= step;
      if (on) out.back().emplace_back(x, y);
      if (left > 0) continue;
      on = !on;
      left = on ? kOn : kOff;
      if (on) out.push_back({{x, y}});
    }
  }
  return out;
}

}  // namespace

Canvas::Canvas(double width, double height, double scale) : scale_(scale) {
  image_.height = std::lround(height * scale);
  image_.width = std::lround(width * scale);
  io::internal::check_size("a figure", image_.height, image_.width);
  image_.rgb.assign(static_cast<size_t>(3 * image_.height * image_.width), 255);
}

void Canvas::set(int64_t y, int64_t x, const Rgb& colour) {
  if (y < 0 || x < 0 || y >= image_.height || x >= image_.width) return;
  std::copy(colour.begin(), colour.end(),
            image_.rgb.begin() + 3 * (y * image_.width + x));
}

void Canvas::put(int64_t top, int64_t left, const io::Image& image) {
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x) {
      const uint8_t* from = &image.rgb[3 * (y * image.width + x)];
      set(top + y, left + x, {from[0], from[1], from[2]});
    }
  }
}

void Canvas::box(double x, double y, double width, double height,
                 const std::string& colour) {
  const Rgb rgb = parsed(colour);
  const double left = x * scale_, right = (x + width) * scale_,
               top = y * scale_, bottom = (y + height) * scale_;
  const int64_t x1 = pixel(std::ceil(right), image_.width),
                y1 = pixel(std::ceil(bottom), image_.height);
  for (int64_t j = pixel(top, image_.height); j < y1; ++j) {
    const double down =
        std::min(bottom, j + 1.0) - std::max(top, static_cast<double>(j));
    for (int64_t i = pixel(left, image_.width); i < x1; ++i) {
      const double across =
          std::min(right, i + 1.0) - std::max(left, static_cast<double>(i));
      blend(&image_.rgb[3 * (j * image_.width + i)], rgb, down * across);
    }
  }
}

void Canvas::stroke(const std::vector<Path>& lines, double width,
                    const std::string& colour) {
  const Rgb rgb = parsed(colour);
  const double radius = std::max(width * scale_, 1.0) / 2, reach = radius + 1;
  double x0 = 1e300, x1 = -1e300, y0 = 1e300, y1 = -1e300;
  std::vector<Path> scaled = lines;
  for (Path& line : scaled) {
    for (auto& [x, y] : line) {
      x *= scale_, y *= scale_;
      x0 = std::min(x0, x), x1 = std::max(x1, x);
      y0 = std::min(y0, y), y1 = std::max(y1, y);
    }
  }
  if (x0 > x1) return;
  // The pixels [first, last) of one axis that a line from `low` to `high` may
  // touch.
  struct Range {
    int64_t first, last;
  };
  const auto reached = [&](double low, double high, int64_t size) {
    return Range{pixel(low - reach, size), pixel(high + reach, size - 1) + 1};
  };
  const Range across = reached(x0, x1, image_.width),
              down = reached(y0, y1, image_.height);
  if (across.first >= across.last || down.first >= down.last) return;
  const int64_t stride = across.last - across.first;
  // Coverage of all lines together, so that crossings are not painted twice.
  std::vector<float> cover(stride * (down.last - down.first), 0);
  const auto cover_at = [&](int64_t y, int64_t x) -> float& {
    return cover[(y - down.first) * stride + x - across.first];
  };
  for (const Path& line : scaled) {
    for (size_t i = 0; i < line.size(); ++i) {
      if (i > 0 && i + 1 == line.size()) break;
      const auto &a = line[i], &b = line[std::min(i + 1, line.size() - 1)];
      const auto [left, right] = std::minmax(a.first, b.first);
      const auto [top, bottom] = std::minmax(a.second, b.second);
      const Range columns = reached(left, right, image_.width),
                  rows = reached(top, bottom, image_.height);
      for (int64_t y = rows.first; y < rows.last; ++y) {
        for (int64_t x = columns.first; x < columns.last; ++x) {
          const double part = radius + 0.5 - distance(x + 0.5, y + 0.5, a, b);
          cover_at(y, x) = std::max(cover_at(y, x), static_cast<float>(part));
        }
      }
    }
  }
  for (int64_t y = down.first; y < down.last; ++y) {
    for (int64_t x = across.first; x < across.last; ++x) {
      const float part = cover_at(y, x);
      if (part > 0) blend(&image_.rgb[3 * (y * image_.width + x)], rgb, part);
    }
  }
}

void Canvas::polyline(const Path& points, const Stroke& stroke) {
  this->stroke(stroke.dashed ? dashed(points) : std::vector<Path>{points},
               stroke.width, stroke.colour);
}

void Canvas::line(double x0, double y0, double x1, double y1,
                  const Stroke& stroke) {
  polyline({{x0, y0}, {x1, y1}}, stroke);
}

void Canvas::circle(double x, double y, double radius,
                    const std::string& colour) {
  stroke({{{x, y}}}, 2 * radius, colour);
}

void Canvas::text(double x, double y, const std::string& text,
                  const TextStyle& style) {
  const double unit = kUnit * style.size, width = text_width(text, style.size);
  double along = style.anchor == Anchor::kStart    ? 0
                 : style.anchor == Anchor::kMiddle ? -width / 2
                                                   : -width;
  std::vector<Path> lines;
  for (const char c : text) {
    const Glyph& letter = glyph(c);
    for (Path line : letter.lines) {
      for (auto& [px, py] : line) {
        const double right = along + px * unit, up = py * unit;
        px = style.upward ? x - up : x + right;
        py = style.upward ? y - right : y - up;
      }
      lines.push_back(std::move(line));
    }
    along += letter.advance * unit;
  }
  const double weight = style.size * (style.bold ? 0.125 : 0.085);
  if (style.halo) stroke(lines, weight + 3, "#fff");
  stroke(lines, weight, style.colour.empty() ? "#222" : style.colour);
}

double text_width(const std::string& text, double size) {
  double units = 0;
  for (const char c : text) units += glyph(c).advance;
  return units * kUnit * size;
}

}  // namespace aft::cli
