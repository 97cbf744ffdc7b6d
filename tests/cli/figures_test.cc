// Colours, scales and heat maps.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "cli/plot/heatmap.h"
#include "cli/plot/scale.h"
#include "tests/cli/pixels.h"

namespace aft::cli {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInf = std::numeric_limits<float>::infinity();
constexpr Colours kAll[] = {Colours::kSequential, Colours::kDiverging};

io::Image flat(int64_t height, int64_t width, const Rgb& colour) {
  io::Image out{height, width, {}};
  for (int64_t i = 0; i < height * width; ++i)
    out.rgb.insert(out.rgb.end(), colour.begin(), colour.end());
  return out;
}

// ---- Colours ----------------------------------------------------------------

/// Converts from sRGB by the inverse matrices.
std::array<double, 3> oklab(const Rgb& rgb) {
  double c[3];
  for (size_t i = 0; i < 3; ++i) {
    const double x = rgb[i] / 255.0;
    c[i] = x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  }
  const auto cone = [&](double r, double g, double b) {
    return std::cbrt(r * c[0] + g * c[1] + b * c[2]);
  };
  const double l = cone(0.4122214708, 0.5363325363, 0.0514459929),
               m = cone(0.2119034982, 0.6806995451, 0.1073969566),
               s = cone(0.0883024619, 0.2817188376, 0.6299787005);
  return {0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
          1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
          0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
}

TEST(Colours, StepsArePerceptuallyEqual) {
  constexpr int kSteps = 16;  // large steps, since 8 bits are coarse
  for (const Colours colours : kAll) {
    std::vector<double> steps;
    double sum = 0;
    for (int i = 0; i < kSteps; ++i) {
      const auto a = oklab(colour(colours, double(i) / kSteps)),
                 b = oklab(colour(colours, double(i + 1) / kSteps));
      steps.push_back(std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]));
      sum += steps.back();
    }
    EXPECT_GT(sum, 0.75);
    for (const double step : steps)
      EXPECT_NEAR(step, sum / kSteps, 0.1 * sum / kSteps);
  }
}

TEST(Colours, NoneIsClippedToTheGamut) {
  for (const Colours colours : kAll) {
    for (int i = 0; i <= 256; ++i) {
      for (const uint8_t channel : colour(colours, i / 256.0)) {
        EXPECT_GT(channel, 0) << i;
        EXPECT_LT(channel, 255) << i;
      }
    }
  }
}

TEST(Colours, LightnessIncreases) {
  const auto at = [](double part) {
    return colour(Colours::kSequential, part);
  };
  std::set<Rgb> all;
  for (int i = 0; i <= 256; ++i) all.insert(at(i / 256.0));
  EXPECT_GT(all.size(), 200u);
  for (int i = 0; i < 100; ++i)
    EXPECT_LT(oklab(at(i / 100.0))[0], oklab(at((i + 1) / 100.0))[0]);
  // The hue changes too.
  const auto low = oklab(at(0)), high = oklab(at(1));
  EXPECT_LT(low[2], -0.05);
  EXPECT_GT(high[2], 0.05);
}

TEST(Colours, DivergingIsSymmetric) {
  const auto at = [](double part) { return colour(Colours::kDiverging, part); };
  for (int i = 0; i <= 50; ++i)
    EXPECT_NEAR(oklab(at(i / 100.0))[0], oklab(at(1 - i / 100.0))[0], 0.01);
  const auto middle = oklab(at(0.5));
  EXPECT_GT(middle[0], 0.95);
  EXPECT_LT(std::hypot(middle[1], middle[2]), 0.02);
  EXPECT_GT(at(0)[2], at(0)[0] + 60);
  EXPECT_GT(at(1)[0], at(1)[2] + 60);
}

TEST(Colours, ValuesOutsideAreClamped) {
  for (const Colours colours : kAll) {
    EXPECT_EQ(colour(colours, -1e300), colour(colours, 0));
    EXPECT_EQ(colour(colours, 1e300), colour(colours, 1));
    EXPECT_EQ(colour(colours, std::nan("")), colour(colours, 0));
  }
}

// ---- Scales -----------------------------------------------------------------

Scale scale_of(const std::vector<float>& values, Colours colours,
               double low = 0, double high = 0) {
  return make_scale({&values}, colours, low, high);
}

void expect_scale(const Scale& s, double low, double high, bool below,
                  bool above) {
  EXPECT_DOUBLE_EQ(s.low, low);
  EXPECT_DOUBLE_EQ(s.high, high);
  EXPECT_EQ(s.below, below);
  EXPECT_EQ(s.above, above);
}

TEST(Scale, Percentiles) {
  std::vector<float> values;
  for (int i = 0; i <= 200; ++i) values.push_back(float((i * 37) % 201));
  EXPECT_EQ(percentile(values, 0), 0);
  EXPECT_EQ(percentile(values, 1), 200);
  EXPECT_DOUBLE_EQ(percentile(values, 0.005), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 0.4125), 82.5);
  std::vector<float> none;
  EXPECT_EQ(percentile(none, 0.5), 0);
}

TEST(Scale, FromTheValues) {
  std::vector<float> values;
  for (int i = 1; i <= 201; ++i) values.push_back(float(i));
  values.insert(values.begin(), {kNan, kInf, -kInf});
  expect_scale(scale_of(values, Colours::kSequential), 2, 200, true, true);
  expect_scale(scale_of(values, Colours::kDiverging), -200, 200, false, true);
  expect_scale(scale_of(values, Colours::kSequential, 0, 500), 0, 500, false,
               false);
  // A single outlier sets the scale.
  std::vector<float> peak(1000, 0);
  peak[3] = 5;
  expect_scale(scale_of(peak, Colours::kSequential), 0, 5, false, false);
  expect_scale(scale_of(peak, Colours::kDiverging), -5, 5, false, false);
}

// Kernels of 11 x 11 with one tap each: 0 is white on any scale, so only the
// taps determine it.
TEST(Scale, IgnoresZerosIfDiverging) {
  std::vector<float> values(201 * 121, 0.0F);
  for (size_t i = 0; i < 201; ++i)
    values[121 * i + i % 121] = 0.01F * float(i + 1);
  const Scale s = scale_of(values, Colours::kDiverging);
  size_t beyond = 0;
  for (const float x : values) beyond += x < s.low || x > s.high;
  EXPECT_LE(beyond, 2u);
  EXPECT_NEAR(s.high, 2, 0.02);
  EXPECT_EQ(s.low, -s.high);
}

TEST(Scale, IsNeverEmpty) {
  expect_scale(scale_of({}, Colours::kSequential), -1, 1, false, false);
  expect_scale(scale_of({kNan, kInf}, Colours::kDiverging), -1, 1, false,
               false);
  expect_scale(scale_of({4, 4}, Colours::kSequential), 2, 6, false, false);
  expect_scale(scale_of({0}, Colours::kDiverging), -1, 1, false, false);
  const float most = std::numeric_limits<float>::max();
  const Scale wide = scale_of({-most, most}, Colours::kSequential);
  EXPECT_NEAR(wide.part(0), 0.5, 1e-9);
}

TEST(Scale, RoundTicks) {
  const auto ticks = round_ticks(-0.93, 1.21);
  ASSERT_EQ(ticks.size(), 4u);
  for (size_t i = 0; i < ticks.size(); ++i)
    EXPECT_NEAR(ticks[i], -0.5 + 0.5 * double(i), 1e-12);
  EXPECT_EQ(round_ticks(0, 12), (std::vector<double>{0, 2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(round_ticks(1, std::nextafter(1, 2)).size(), 2u);
  for (double high = 1.001; high < 3; high *= 1.01) {
    const auto some = round_ticks(1, high);
    EXPECT_GE(some.size(), 3u) << high;
    EXPECT_LE(some.size(), 9u) << high;
    EXPECT_GE(some.front(), 1 - 1e-9);
    EXPECT_LE(some.back(), high + 1e-9);
  }
}

// ---- Heat maps --------------------------------------------------------------

Heatmaps figure(size_t rows, size_t columns, int64_t height, int64_t width) {
  Heatmaps out;
  out.name = "maps", out.quantity = "w";
  for (size_t r = 0; r < rows; ++r)
    out.row_names.push_back("layer " + std::to_string(r + 1));
  for (size_t c = 0; c < columns; ++c)
    out.column_names.push_back("head " + std::to_string(c + 1));
  float next = 0;
  for (size_t i = 0; i < rows * columns; ++i) {
    Map map{height, width, {}, 0, 0, "map"};
    for (int64_t j = 0; j < height * width; ++j)
      map.values.push_back(next = std::fmod(next * 7 + 13, 101.0F));
    out.maps.push_back(map);
  }
  return out;
}

void expect_inside(const RenderedHeatmaps& rendered) {
  std::vector<int> taken(size_t(rendered.image.height * rendered.image.width),
                         0);
  for (const Place& p : rendered.places) {
    ASSERT_GE(p.top, 0);
    ASSERT_GE(p.left, 0);
    ASSERT_LE(p.top + p.height, rendered.image.height);
    ASSERT_LE(p.left + p.width, rendered.image.width);
    for (int64_t y = p.top; y < p.top + p.height; ++y)
      for (int64_t x = p.left; x < p.left + p.width; ++x)
        ASSERT_EQ(taken[size_t(y * rendered.image.width + x)]++, 0);
  }
}

void expect_cells(const Heatmaps& f, int64_t height, int64_t width) {
  const RenderedHeatmaps rendered = render(f);
  EXPECT_EQ(rendered.averaged, 1);
  expect_inside(rendered);
  for (size_t i = 0; i < f.maps.size(); ++i) {
    const Place& p = rendered.places[i];
    ASSERT_EQ(p.height % height, 0);
    ASSERT_EQ(p.width % width, 0);
    for (int64_t y = 0; y < p.height; ++y) {
      for (int64_t x = 0; x < p.width; ++x) {
        const int64_t cell =
            y * height / p.height * width + x * width / p.width;
        ASSERT_EQ(pixel(rendered.image, p.top + y, p.left + x),
                  colour(f.colours, f.maps[i].values[size_t(cell)] / 100.0));
      }
    }
  }
}

TEST(Heatmaps, EveryCellHasItsColour) {
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{
           {5, 7}, {9, 9}, {1, 60}, {60, 1}, {1, 1}}) {
    Heatmaps f = figure(2, 3, height, width);
    f.low = 0, f.high = 100;
    for (const Colours colours : kAll) {
      f.colours = colours;
      expect_cells(f, height, width);
    }
  }
  // Cells are square.
  const Place p = render(figure(2, 3, 5, 7)).places[0];
  EXPECT_EQ(p.height / 5, p.width / 7);
}

TEST(Heatmaps, Sizes) {
  for (const auto& [rows, columns, height, width] :
       std::vector<std::tuple<size_t, size_t, int64_t, int64_t>>{
           {12, 16, 11, 11},
           {4, 6, 14, 14},
           {2, 6, 197, 197},
           {3, 4, 27, 27}}) {
    const RenderedHeatmaps rendered =
        render(figure(rows, columns, height, width));
    EXPECT_GT(rendered.image.width, 900);
    EXPECT_LE(rendered.image.width, 1575);
    EXPECT_EQ(rendered.averaged, 1);
    expect_inside(rendered);
  }
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 60}, {60, 1}, {2, 3}, {3000, 5}, {2000, 2000}}) {
    const RenderedHeatmaps rendered = render(figure(2, 2, height, width));
    expect_inside(rendered);
    EXPECT_LE(rendered.image.width, 1575);
    for (const Place& p : rendered.places) {
      EXPECT_GE(std::min(p.height, p.width), 1);
      EXPECT_GE(std::max(p.height, p.width), 12);
    }
  }
  Heatmaps given = figure(1, 2, 9, 9);
  given.side = 50;
  EXPECT_EQ(render(given).places[1].width, 45);
  // Very many maps: a wider figure rather than invisible maps.
  const RenderedHeatmaps many = render(figure(3, 200, 11, 11));
  EXPECT_GE(many.places[0].width, 22);
  expect_inside(many);
}

TEST(Heatmaps, ImageAndEmptyPlaces) {
  constexpr Rgb mark = {200, 77, 30};  // occurs in no scale and no text
  Heatmaps f = figure(2, 2, 4, 4);
  f.maps[3] = {};
  f.image = flat(8, 8, mark);
  const RenderedHeatmaps rendered = render(f);
  expect_inside(rendered);
  EXPECT_EQ(rendered.places[3].width, 0);
  EXPECT_EQ(count(rendered.image, mark), 280 * 280);
  f.image = flat(900, 300, mark);
  EXPECT_GT(count(render(f).image, mark), 270 * 90);
}

TEST(Heatmaps, LargeMapsAreAveraged) {
  Heatmaps f = figure(1, 1, 100, 90);
  f.side = 30, f.low = 0, f.high = 100;
  const RenderedHeatmaps rendered = render(f);
  EXPECT_EQ(rendered.averaged, 4);
  EXPECT_EQ(rendered.places[0].height, 25);
  EXPECT_EQ(rendered.places[0].width, 23);

  const Map small =
      averaged({2, 3, {1, 2, kNan, 3, kInf, kNan}, -1, 5, "m"}, 2);
  EXPECT_EQ(small.height, 1);
  EXPECT_EQ(small.width, 2);
  EXPECT_EQ(small.values[0], 2);  // of 1, 2 and 3
  EXPECT_TRUE(std::isnan(small.values[1]));
  EXPECT_EQ(small.y0, -1);
  EXPECT_EQ(small.x0, 5);
}

TEST(Heatmaps, NonFiniteCellsAreGrey) {
  for (const bool each : {false, true}) {
    Heatmaps f = figure(1, 1, 2, 2);
    f.each = each;
    f.maps[0].values = {kNan, kInf, -kInf, 3};
    const RenderedHeatmaps rendered = render(f);
    const Place& p = rendered.places[0];
    std::set<Rgb> seen;
    for (int64_t y = 0; y < p.height; ++y)
      for (int64_t x = 0; x < p.width; ++x)
        if (y < p.height / 2 || x < p.width / 2)
          seen.insert(pixel(rendered.image, p.top + y, p.left + x));
    EXPECT_EQ(seen.size(), 2u);  // hatched
    for (const Rgb& c : seen) EXPECT_TRUE(c[0] == c[1] && c[1] == c[2]);
    EXPECT_EQ(pixel(rendered.image, p.top + p.height - 1, p.left + p.width - 1),
              colour(Colours::kSequential, 0.5));
  }
}

TEST(Heatmaps, SeparateScales) {
  Heatmaps f = figure(1, 2, 1, 2);
  f.maps[0].values = {0, 1}, f.maps[1].values = {0, 1000};
  f.each = true;
  const RenderedHeatmaps rendered = render(f);
  for (const Place& p : rendered.places)
    EXPECT_EQ(pixel(rendered.image, p.top, p.left + p.width - 1),
              colour(f.colours, 1));
  f.each = false;
  const RenderedHeatmaps shared = render(f);
  const Place& first = shared.places[0];
  EXPECT_EQ(pixel(shared.image, first.top, first.left + first.width - 1),
            colour(f.colours, 0.001));
}

/// Nothing reaches the edge of the image, whatever the length of the names.
TEST(Heatmaps, TextsAreNotClipped) {
  for (const char* name : {"", "h", "a name of medium length",
                           "a name that is longer than a map and its bar"}) {
    for (const int64_t side : {1, 3, 40}) {
      for (const size_t columns : {1, 5, 40}) {
        Heatmaps f = figure(2, columns, side, side);
        for (auto* names : {&f.row_names, &f.column_names})
          for (std::string& n : *names) n = name;
        for (Map& m : f.maps) m.name = name;
        f.quantity = name;
        for (const bool each : {false, true}) {
          f.each = each;
          const io::Image image = render(f).image;
          const auto at_edge = [&](int64_t y, int64_t x) {
            return std::min({y, x, image.height - 1 - y, image.width - 1 - x}) <
                   4;
          };
          int64_t inked = 0;
          for (int64_t y = 0; y < image.height; ++y)
            for (int64_t x = 0; x < image.width; ++x)
              inked +=
                  at_edge(y, x) && pixel(image, y, x) != Rgb{255, 255, 255};
          EXPECT_EQ(inked, 0) << name << " " << side << " " << columns;
        }
      }
    }
  }
}

TEST(Heatmaps, Deterministic) {
  const Heatmaps f = figure(3, 3, 9, 9);
  EXPECT_EQ(render(f).image.rgb, render(f).image.rgb);
}

TEST(Heatmaps, BadInput) {
  Heatmaps f = figure(2, 2, 3, 3);
  f.maps.pop_back();
  EXPECT_THROW(render(f), std::invalid_argument);
  EXPECT_THROW(render(Heatmaps{}), std::invalid_argument);
  f = figure(1, 1, 3, 3), f.maps[0].values.pop_back();
  EXPECT_THROW(render(f), std::invalid_argument);
  f = figure(1, 1, 3, 3), f.low = 1;
  EXPECT_THROW(render(f), std::invalid_argument);
  f.low = 0, f.high = std::nan("");
  EXPECT_THROW(render(f), std::invalid_argument);
  f.high = 0, f.image = {4, 4, {1, 2, 3}};
  EXPECT_THROW(render(f), std::exception);
  f.image = {}, f.side = 100000;
  EXPECT_THROW(render(f), std::runtime_error);
}

}  // namespace
}  // namespace aft::cli
