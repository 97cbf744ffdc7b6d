// Charts as SVG and as pixels, and the canvas.
#include "cli/plot/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/plot/drawing.h"
#include "tests/cli/pixels.h"

namespace aft::cli {
namespace {

// ---- Charts -----------------------------------------------------------------

// Lines on both kinds of axes, dashed ones, names that need escaping, an empty
// series and a single point.
std::vector<Panel> golden_panels() {
  Panel logarithmic{"time <of a step>", "T", "seconds", {}, false};
  for (int i = 0; i < 10; ++i) {
    Series s{"series " + std::to_string(i) + (i == 3 ? " & \"more\"" : ""), {}};
    for (int j = 0; j < 5; ++j)
      s.points.emplace_back(256 << j, 1e-3 * (i + 1) * (1 << j));
    logarithmic.series.push_back(s);
  }
  Panel linear{"", "step", "bits", {}, true};
  linear.series = {{"training", {{10, 4.5}, {20, 3.25}, {30, 3}}},
                   {"none", {}},
                   {"validation", {{30, 3.5}}}};
  return {logarithmic, linear};
}

std::string golden_bars() {
  return bars(
      "Speed & memory", "measured", "paper", {"aft-local", "a <rival>"},
      {true, false},
      {{"steps/s", {{12.5, 10}, {3.25, 0}}}, {"GB", {{1.5, 0}, {0, 2}}}});
}

std::string golden(const std::string& name) {
  std::ifstream in(std::string(AFT_TEST_DIR) + "/golden/" + name);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(Charts, SvgMatchesTheGoldenFile) {
  EXPECT_EQ(plot("A & <b>", "below it", golden_panels()), golden("chart.svg"));
  EXPECT_EQ(golden_bars(), golden("bars.svg"));
}

Rgb rgb(const std::string& hex) {
  const auto part = [&](size_t i) {
    return static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16));
  };
  return {part(1), part(3), part(5)};
}

TEST(Charts, PixelsShowEverySeries) {
  const auto panels = golden_panels();
  const io::Image image = plot_image("A & <b>", "below it", panels);
  EXPECT_EQ(image.width, 2 * 2 * 560);
  EXPECT_EQ(image.height, 2 * 480);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_GT(count(image, rgb(series_colour(i))), 300) << i;
  for (const PlottedPoint& p : plotted_points(panels))
    EXPECT_EQ(pixel(image, std::lround(2 * p.y), std::lround(2 * p.x - 1)),
              rgb(series_colour(p.series)))
        << p.panel << " " << p.series << " " << p.value_x;
  EXPECT_EQ(plotted_points(panels).size(), 54u);
}

TEST(Charts, UntitledOmitsTheTitle) {
  const std::string svg = plot_untitled("secret", "sub", golden_panels());
  EXPECT_NE(svg.find("viewBox=\"0 34.0 1120.0 446.0\""), std::string::npos);
  EXPECT_EQ(svg.find(">secret</text>"), std::string::npos);
  EXPECT_NE(svg.find(">sub</text>"), std::string::npos);
}

// ---- The canvas -------------------------------------------------------------

TEST(Canvas, GlyphsAreDistinct) {
  std::set<std::vector<uint8_t>> seen;
  for (int c = ' '; c <= '~'; ++c) {
    Canvas canvas(40, 40);
    canvas.text(10, 28, std::string(1, char(c)), {});
    seen.insert(canvas.image().rgb);
  }
  EXPECT_EQ(seen.size(), 95u);
  Canvas other(60, 40), question(60, 40);
  other.text(5, 28, "\xc3\xa9\x01", {});
  question.text(5, 28, "???", {});
  EXPECT_EQ(other.image().rgb, question.image().rgb);
}

TEST(Canvas, ClipsToTheImage) {
  Canvas canvas(20, 10, 2);
  const std::vector<uint8_t> white = canvas.image().rgb;
  canvas.line(-50, -50, -10, -60, {"#000"});
  canvas.circle(100, 5, 3, "#000");
  canvas.box(30, -20, 5, 5, "#000");
  canvas.text(200, 5, "text", {});
  canvas.set(-1, 0, {});
  canvas.put(9, 100, {1, 1, {0, 0, 0}});
  EXPECT_EQ(canvas.image().rgb, white);
  canvas.line(-1e6, 5, 1e6, 5, {"#000"});
  EXPECT_EQ(count(canvas.image(), {0, 0, 0}), 40 * 2);
  EXPECT_THROW(Canvas(0, 10), std::exception);
  EXPECT_THROW(Canvas(1e5, 1e5), std::exception);
}

}  // namespace
}  // namespace aft::cli
