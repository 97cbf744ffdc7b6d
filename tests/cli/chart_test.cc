// Charts as SVG and as pixels, and the canvas.
#include "cli/plot/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "aft/base/escape.h"
#include "cli/plot/drawing.h"
#include "cli/plot/text.h"
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

Chart golden_chart() {
  return {"chart", "A & <b>", "below it", "What it & they show.",
          golden_panels()};
}

std::string golden_bars() {
  return bars("Speed & memory", {"AFT", "others", "paper"},
              {"aft-local", "a <rival>"}, {true, false},
              {{"steps/s", "relative to <b>", {{12.5, 10}, {3.25, 0}}},
               {"GB", "", {{1.5, 0}, {0, 2}}, 4}});
}

std::string golden(const std::string& name) {
  std::ifstream in(std::string(AFT_TEST_DIR) + "/golden/" + name);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(Charts, SvgMatchesTheGoldenFile) {
  EXPECT_EQ(plot(golden_chart()), golden("chart.svg"));
  EXPECT_EQ(golden_bars(), golden("bars.svg"));
}

Rgb rgb(const std::string& hex) {
  const auto part = [&](size_t i) {
    return static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16));
  };
  return {part(1), part(3), part(5)};
}

TEST(Charts, PixelsShowEverySeries) {
  const Chart chart = golden_chart();
  const io::Image image = plot_image(chart);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_GT(count(image, rgb(series_colour(i))), 300) << i;
  for (const PlottedPoint& p : plotted_points(chart))
    EXPECT_EQ(pixel(image, std::lround(2 * p.y), std::lround(2 * p.x - 1)),
              rgb(series_colour(p.series)))
        << p.panel << " " << p.series << " " << p.value_x;
  EXPECT_EQ(plotted_points(chart).size(), 54u);
}

TEST(Charts, UntitledOmitsTitleAndCaption) {
  Chart chart = golden_chart();
  chart.title = "secret", chart.caption = "hidden";
  const std::string svg = plot_untitled(chart);
  EXPECT_NE(svg.find("viewBox=\"0 34.0 "), std::string::npos);
  EXPECT_EQ(svg.find(">secret</text>"), std::string::npos);
  EXPECT_EQ(svg.find(">hidden</text>"), std::string::npos);
  EXPECT_NE(svg.find(">below it</text>"), std::string::npos);
  EXPECT_NE(plot(chart).find(">hidden</text>"), std::string::npos);
}

/// The elements of a kind: their attributes, and their text as "".
std::vector<std::map<std::string, std::string>> elements(
    const std::string& svg, const std::string& kind) {
  std::vector<std::map<std::string, std::string>> out;
  const std::regex element("<" + kind + " ([^>]*)>([^<]*)"),
      attribute("([a-z0-9-]+)=\"([^\"]*)\"");
  const std::sregex_iterator end;
  for (std::sregex_iterator e(svg.begin(), svg.end(), element); e != end; ++e) {
    const std::string inside = (*e)[1];
    out.push_back({{"", (*e)[2]}});
    for (std::sregex_iterator a(inside.begin(), inside.end(), attribute);
         a != end; ++a)
      out.back()[(*a)[1]] = (*a)[2];
  }
  return out;
}

struct Box {
  double left, top, right, bottom;
  std::string text;
};

/// The boxes of all texts if letters are 0.55 wide (bold: 0.6), a little more
/// than on average in Helvetica.
std::vector<Box> text_boxes(const std::string& svg) {
  std::vector<Box> out;
  for (const auto& t : elements(svg, "text")) {
    const double x = std::stod(t.at("x")), y = std::stod(t.at("y")),
                 size = std::stod(t.at("font-size")),
                 width = double(t.at("").size()) * size *
                         (t.count("font-weight") ? 0.6 : 0.55);
    const std::string anchor =
        t.count("text-anchor") ? t.at("text-anchor") : "start";
    const double from = anchor == "end"      ? -width
                        : anchor == "middle" ? -width / 2
                                             : 0;
    if (width == 0) continue;
    if (t.count("transform")) {  // upward
      out.push_back({x - 0.8 * size, y - from - width, x + 0.2 * size, y - from,
                     t.at("")});
    } else {
      out.push_back({x + from, y - 0.7 * size, x + from + width, y + 0.2 * size,
                     t.at("")});
    }
  }
  return out;
}

void expect_legible(const std::string& svg) {
  const auto root = elements(svg, "svg").at(0);
  const double width = std::stod(root.at("width")),
               height = std::stod(root.at("height"));
  const std::vector<Box> boxes = text_boxes(svg);
  EXPECT_GT(boxes.size(), 5u);
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Box& a = boxes[i];
    EXPECT_GE(a.left, 0) << a.text;
    EXPECT_GE(a.top, 0) << a.text;
    EXPECT_LE(a.right, width) << a.text;
    EXPECT_LE(a.bottom, height) << a.text;
    for (size_t j = 0; j < i; ++j) {
      const Box& b = boxes[j];
      EXPECT_FALSE(a.left < b.right && b.left < a.right && a.top < b.bottom &&
                   b.top < a.bottom)
          << a.text << " overlaps " << b.text;
    }
  }
}

/// Sixteen lines that end at almost the same value, a third of them early.
Panel crowded(bool linear, const std::string& prefix) {
  Panel out{prefix + " title", prefix + " x", prefix + " y", {}, linear};
  for (int i = 0; i < 16; ++i) {
    Series s{prefix + std::to_string(i), {}};
    for (int j = 1; j < (i % 3 == 0 ? 12 : 20); ++j)
      s.points.emplace_back(6400 * j, 2.31 + 1e-6 * i + 1e-3 / j);
    out.series.push_back(s);
  }
  return out;
}

TEST(Charts, TextsNeitherOverlapNorClip) {
  const std::string name = "runs/a-name-that-is-longer-than-many-others/",
                    words =
                        "This caption needs more than one line, since it "
                        "says much. ";
  for (const std::string& prefix :
       {std::string("r"), name, name + name + name}) {
    for (const bool linear : {true, false}) {
      for (const size_t panels : {1, 2}) {
        Chart chart{"chart",
                    "Title of " + prefix,
                    words + words,
                    words + words + prefix,
                    {}};
        chart.panels.assign(panels, crowded(linear, prefix));
        expect_legible(plot(chart));
        for (Panel& p : chart.panels) p.series.resize(1);
        expect_legible(plot(chart));
      }
    }
  }
  std::vector<std::string> names;
  BarPanel panel{"steps/s", "relative to " + name, {}, 4};
  for (int i = 0; i < 30; ++i) {
    names.push_back(name + name + std::to_string(i));
    panel.bars.push_back({1 + 1e-4 * i, 1 - 1e-4 * i});
  }
  expect_legible(bars("Systems on " + name + name + name + name,
                      {"AFT", "others", "paper"}, names,
                      std::vector<bool>(30, true), {panel, panel, panel}));
  expect_legible(bars(
      "Systems",
      {"AFT, measured", "others, measured", "in a paper, on other machines"},
      {"a", "b"}, {true, false}, {{"steps/s", "", {{1, 1}, {2, 2}}}}));
}

/// Shortening keeps the ends, which distinguish names, and valid UTF-8.
TEST(Charts, ShortensInTheMiddle) {
  EXPECT_EQ(shortened("short", 100, 12), "short");
  const std::string name = "runs/" + std::string(99, 'a') + "/7",
                    less = shortened(name, 100, 12);
  EXPECT_LE(text_bound(less, 12), 100);
  EXPECT_EQ(less.substr(0, 5), "runs/");
  EXPECT_EQ(less.substr(less.size() - 2), "/7");
  EXPECT_NE(less.find("..."), std::string::npos);
  std::string accents;
  for (int i = 0; i < 40; ++i) accents += "\xc3\xa9";
  for (int width = 20; width < 400; width += 7) {
    const std::string part = shortened(accents, width, 12);
    EXPECT_EQ(base::terminal_safe(part), part) << width;
  }
  EXPECT_EQ(shortened(name, 1, 12), "...");
}

TEST(Charts, BoundsHoldForTheCanvas) {
  for (int c = ' '; c <= '~'; ++c)
    EXPECT_LE(text_width(std::string(1, char(c)), 12),
              text_bound(std::string(1, char(c)), 12));
}

TEST(Charts, SpreadsLabels) {
  std::vector<double> close = {50, 51, 52, 90};
  spread(close, 10, 0, 100);
  EXPECT_EQ(close, (std::vector<double>{41, 51, 61, 90}));
  std::vector<double> low = {99, 99, 99};
  spread(low, 10, 0, 100);
  EXPECT_EQ(low, (std::vector<double>{80, 90, 100}));
}

TEST(Charts, AxesEndAtTheData) {
  for (const bool linear : {true, false}) {
    Panel panel{"", "step", "bits", {}, linear};
    panel.series = {{"a", {{10, 3}, {600, 2.2}, {1010, 2.1}}}};
    const Chart chart{"chart", "t", "", "", {panel}};
    const std::string svg = plot(chart);
    const PlottedPoint last = plotted_points(chart).back();
    double right = 0;
    for (const auto& line : elements(svg, "line"))
      if (line.at("y1") == line.at("y2") && line.at("stroke") == "#333")
        right = std::max(right, std::stod(line.at("x2")));
    EXPECT_NEAR(right, last.x, linear ? 0.1 : 12.1);
    // Ticks are round, and none is beyond the data.
    std::vector<std::string> ticks;
    for (const auto& text : elements(svg, "text"))
      if (text.count("text-anchor") && text.at("text-anchor") == "middle")
        ticks.push_back(text.at(""));
    if (!linear) continue;
    EXPECT_EQ(ticks, (std::vector<std::string>{"0", "200", "400", "600", "800",
                                               "1000", "step", "bits"}));
  }
}

TEST(Charts, TickLabelsAreExact) {
  for (const auto& [high, wanted] : std::vector<std::pair<double, std::string>>{
           {128000, "120000"}, {1.5e6, "1.4M"}, {0.0031, "0.0030"}, {7, "7"}}) {
    Panel panel{"", "", "", {{"a", {{high, high}}}}, true};
    std::string last;
    for (const auto& text :
         elements(plot({"chart", "", "", "", {panel}}), "text"))
      if (text.count("text-anchor") && text.at("text-anchor") == "middle" &&
          !text.at("").empty())
        last = text.at("");
    EXPECT_EQ(last, wanted);
  }
}

TEST(Charts, ASinglePointHasAMarker) {
  Panel panel{"", "step", "bits", {}, true};
  panel.series = {{"training", {{10, 3}, {1000, 2}}},
                  {"validation", {{1000, 2.5}}}};
  const Chart chart{"chart", "t", "", "", {panel}};
  const auto circles = elements(plot(chart), "circle");
  ASSERT_EQ(circles.size(), 1u);
  EXPECT_EQ(circles[0].at("fill"), series_colour(1));
  EXPECT_EQ(elements(plot_untitled(chart), "circle").size(), 1u);
  // More than the line of the legend and the label.
  panel.series[1].points.clear();
  EXPECT_GT(count(plot_image(chart), rgb(series_colour(1))),
            count(plot_image({"chart", "t", "", "", {panel}}),
                  rgb(series_colour(1))) +
                100);
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
