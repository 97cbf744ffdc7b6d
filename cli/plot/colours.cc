#include "cli/plot/colours.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace aft::cli {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Lab {
  double l, a, b;
};

/// From lightness, chroma, and hue in degrees.
Lab lab(double lightness, double chroma, double hue) {
  return {lightness, chroma * std::cos(hue * kPi / 180),
          chroma * std::sin(hue * kPi / 180)};
}

Lab mix(const Lab& x, const Lab& y, double part) {
  return {x.l + (y.l - x.l) * part, x.a + (y.a - x.a) * part,
          x.b + (y.b - x.b) * part};
}

uint8_t encoded(double linear) {
  const double x = std::clamp(linear, 0.0, 1.0);
  const double y =
      x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
  return static_cast<uint8_t>(std::lround(255 * y));
}

/// The matrices of Ottosson's "A perceptual color space for image processing".
Rgb to_rgb(const Lab& c) {
  const double l = std::pow(c.l + 0.3963377774 * c.a + 0.2158037573 * c.b, 3),
               m = std::pow(c.l - 0.1055613458 * c.a - 0.0638541728 * c.b, 3),
               s = std::pow(c.l - 0.0894841775 * c.a - 1.2914855480 * c.b, 3);
  return {
      encoded(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
      encoded(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
      encoded(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s),
  };
}

/// The point at the fraction `part` of a Catmull-Rom spline through `points`.
Lab on_curve(const std::vector<Lab>& points, double part) {
  const auto last = static_cast<int>(points.size()) - 1;
  const int i = std::min(static_cast<int>(part * last), last - 1);
  const double t = part * last - i;
  const auto at = [&](int j) {
    if (j < 0) return mix(points[1], points[0], 2);
    if (j > last) return mix(points[last - 1], points[last], 2);
    return points[j];
  };
  const Lab p0 = at(i - 1), p1 = at(i), p2 = at(i + 1), p3 = at(i + 2);
  const auto one = [&](double a, double b, double c, double d) {
    return b +
           t / 2 *
               (c - a +
                t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
  };
  return {one(p0.l, p1.l, p2.l, p3.l), one(p0.a, p1.a, p2.a, p3.a),
          one(p0.b, p1.b, p2.b, p3.b)};
}

constexpr int kLast = 256;  // even, so that the middle is an entry
using Table = std::array<Rgb, kLast + 1>;

/// Samples the spline in steps of equal length.
Table equal_steps(const std::vector<Lab>& points) {
  constexpr int kFine = 20000;
  std::vector<double> length(kFine + 1, 0);
  Lab before = on_curve(points, 0);
  for (int i = 1; i <= kFine; ++i) {
    const Lab now = on_curve(points, static_cast<double>(i) / kFine);
    length[i] = length[i - 1] + std::hypot(now.l - before.l, now.a - before.a,
                                           now.b - before.b);
    before = now;
  }
  Table out;
  for (size_t i = 0; i < out.size(); ++i) {
    const double wanted = length.back() * static_cast<double>(i) / kLast;
    const auto found = std::lower_bound(length.begin(), length.end(), wanted);
    const double part =
        static_cast<double>(std::min<int64_t>(found - length.begin(), kFine));
    out[i] = to_rgb(on_curve(points, part / kFine));
  }
  return out;
}

/// From a dark colour to near white, more vivid halfway than a straight line.
std::vector<Lab> arm(double hue) {
  return {lab(0.40, 0.145, hue), lab(0.525, 0.131, hue), lab(0.653, 0.106, hue),
          lab(0.803, 0.062, hue), lab(0.97, 0, hue)};
}

Table make(Colours colours) {
  if (colours == Colours::kDiverging) {
    std::vector<Lab> points = arm(260);
    const std::vector<Lab> other = arm(27);
    points.insert(points.end(), other.rbegin() + 1, other.rend());
    return equal_steps(points);
  }
  return equal_steps({lab(0.24, 0.10, 305), lab(0.40, 0.125, 275),
                      lab(0.57, 0.088, 215), lab(0.74, 0.13, 152),
                      lab(0.94, 0.155, 106)});
}

}  // namespace

Rgb colour(Colours colours, double part) {
  static const std::array<Table, 2> tables = {make(Colours::kSequential),
                                              make(Colours::kDiverging)};
  const Table& table = tables[static_cast<size_t>(colours)];
  if (!(part > 0)) return table.front();
  return table[static_cast<size_t>(std::lround(std::min(part, 1.0) * kLast))];
}

}  // namespace aft::cli
