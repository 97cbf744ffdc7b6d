// The page of figures: its contents, and escaping.
#include "cli/plot/page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aft/io/safetensors.h"
#include "tests/cli/pixels.h"

namespace aft::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInf = std::numeric_limits<float>::infinity();

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string decode(const std::string& text) {
  const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 255);
  }
  return out;
}

/// The parts of `text` between `first` and `last`, in order.
std::vector<std::string> between(const std::string& text,
                                 const std::string& first,
                                 const std::string& last) {
  std::vector<std::string> out;
  for (size_t at = text.find(first); at != std::string::npos;
       at = text.find(first, at)) {
    at += first.size();
    out.push_back(text.substr(at, text.find(last, at) - at));
  }
  return out;
}

Json data_of(const std::string& page, size_t figure = 0) {
  return Json::parse(
      between(page, "<script type=\"application/json\">", "</script>")
          .at(figure));
}

/// Decodes values like the script of the page.
std::vector<double> values_of(const Json& map) {
  const std::string bytes = decode(map["values"]);
  std::vector<double> out;
  if (map["bits"] == 32) {
    for (size_t i = 0; i + 3 < bytes.size(); i += 4) {
      float x = 0;
      std::memcpy(&x, &bytes[i], 4);
      out.push_back(x);
    }
    return out;
  }
  const double low = map["range"][0], high = map["range"][1];
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int code = static_cast<uint8_t>(bytes[i]) |
                     static_cast<uint8_t>(bytes[i + 1]) << 8;
    out.push_back(code == 65535   ? kNan
                  : code == 65534 ? kInf
                  : code == 65533 ? -kInf
                                  : low + code * (high - low) / 65532);
  }
  return out;
}

Heatmaps heatmaps(int64_t height, int64_t width) {
  Heatmaps out;
  out.name = "biases", out.title = "Biases", out.caption = "What they are.";
  out.quantity = "exp(w)", out.y_name = "dy", out.x_name = "dx";
  out.row_names = {"layer 1"}, out.column_names = {"head 1"};
  Map map{height, width, {}, -2, 3, "layer 1, head 1"};
  for (int64_t i = 0; i < height * width; ++i)
    map.values.push_back(std::sin(static_cast<float>(i)));
  out.maps = {map};
  return out;
}

Chart chart() {
  return {"curves",
          "Curves",
          "of one run",
          "The loss.",
          {{"loss", "step", "bits", {{"training", {{1, 3}, {2, 2.5}}}}, true}}};
}

ImageFigure image_figure() {
  return {"sample", "Sample", "Drawn.", {1, 2, {255, 0, 0, 0, 0, 255}}};
}

TEST(Page, HasAllFigures) {
  const std::vector<Figure> figures = {heatmaps(5, 7), chart(), image_figure()};
  const Details details = {{"task", "image"}, {"parameters", "12"}};
  const std::string html = page("a model", "below", details, figures);
  EXPECT_EQ(page("a model", "below", details, figures), html);
  const auto images = between(html, "data:image/png;base64,", "\"");
  ASSERT_EQ(images.size(), 2u);  // the chart is SVG
  EXPECT_EQ(decode(images[0]),
            io::encode_png(render(heatmaps(5, 7)).image, ""));
  EXPECT_EQ(decode(images[1]), io::encode_png(image_figure().image, ""));
  EXPECT_EQ(between(html, "<svg", ">").size(), 1u);
  for (const char* text :
       {"<h1>a model</h1>", "below", "<dt>task</dt><dd>image</dd>",
        "<a href=\"#biases\">Biases</a>", "<section id=\"curves\">",
        "Figure 3.</b> Drawn."})
    EXPECT_NE(html.find(text), std::string::npos) << text;
  // The page loads no external resources.
  for (const char* text :
       {"src=\"http", "href=\"http", "url(", "@import", "fetch(", "XMLHttp"})
    EXPECT_EQ(html.find(text), std::string::npos) << text;
}

TEST(Page, Values) {
  Heatmaps f = heatmaps(5, 7);
  f.maps[0].values[4] = kNan, f.maps[0].values[5] = -kInf;
  const Json data = data_of(page("", "", {}, {f}));
  const Json map = data["maps"][0];
  EXPECT_EQ(map["cells"], Json({5, 7}));
  EXPECT_EQ(map["first"], Json({-2, 3}));
  EXPECT_EQ(data["quantity"], "exp(w)");
  const RenderedHeatmaps rendered = render(f);
  const Place& p = rendered.places[0];
  EXPECT_EQ(map["place"], Json({p.top, p.left, p.height, p.width}));
  EXPECT_EQ(data["size"], Json({rendered.image.height, rendered.image.width}));
  const auto values = values_of(map);
  ASSERT_EQ(values.size(), 35u);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i == 4) {
      EXPECT_TRUE(std::isnan(values[i]));
    } else {
      EXPECT_EQ(values[i], f.maps[0].values[i]);
    }
  }
}

TEST(Page, ManyValues) {
  Heatmaps f = heatmaps(60, 50);
  auto& given = f.maps[0].values;
  given[0] = kNan, given[1] = kInf, given[2] = -kInf, given[3] = 500;
  const Json map = data_of(page("", "", {}, {f}))["maps"][0];
  EXPECT_EQ(map["bits"], 16);
  const auto values = values_of(map);
  ASSERT_EQ(values.size(), given.size());
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], kInf);
  EXPECT_EQ(values[2], -kInf);
  for (size_t i = 3; i < values.size(); ++i)
    EXPECT_NEAR(values[i], given[i], 501.0 / 65532 / 2 * 1.001);
  // All values equal, and none finite.
  given.assign(given.size(), 7);
  EXPECT_EQ(values_of(data_of(page("", "", {}, {f}))["maps"][0])[9], 7);
  given.assign(given.size(), kNan);
  EXPECT_TRUE(
      std::isnan(values_of(data_of(page("", "", {}, {f}))["maps"][0])[9]));
}

TEST(Page, LargeMapsAreAveraged) {
  const std::string html = page("", "", {}, {heatmaps(1200, 1030)});
  const Json map = data_of(html)["maps"][0];
  EXPECT_EQ(map["block"], 3);
  EXPECT_EQ(map["cells"], Json({400, 344}));
  EXPECT_EQ(map["whole"], Json({1200, 1030}));
  EXPECT_EQ(values_of(map).size(), 400u * 344);
  EXPECT_NE(html.find("means of up to 3 x 3"), std::string::npos);
}

TEST(Page, PointsOfCharts) {
  const Json data = data_of(page("", "", {}, {chart()}));
  ASSERT_EQ(data["points"].size(), 2u);
  EXPECT_EQ(data["points"][1][4], 2);
  EXPECT_EQ(data["points"][1][5], 2.5);
  EXPECT_EQ(data["panels"][0]["series"][0], "training");
}

TEST(Page, EscapesTexts) {
  const std::string bad =
      "</script><script>alert(1)</script>\"><img src=x onerror=alert(1)>"
      "<!-- & '\x01\xff";
  Heatmaps f = heatmaps(2, 2);
  f.title = f.caption = f.quantity = f.y_name = f.x_name = bad;
  f.row_names = f.column_names = {bad}, f.maps[0].name = bad;
  Chart c = chart();
  c.title = c.subtitle = c.caption = bad;
  c.panels[0].title = c.panels[0].x_label = c.panels[0].series[0].name = bad;
  ImageFigure p = image_figure();
  p.title = p.caption = bad;
  const std::string good = page("", "", {{"", ""}},
                                {heatmaps(2, 2), chart(), image_figure()}),
                    html = page(bad, bad, {{bad, bad}}, {f, c, p});
  EXPECT_NE(html.find("\\xff"), std::string::npos);
  for (const char* tag : {"<script", "</script>", "<img", "<section", "<svg"})
    EXPECT_EQ(between(html, tag, ">").size(), between(good, tag, ">").size())
        << tag;
  EXPECT_EQ(html.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(html.find("<!--"), std::string::npos);
  EXPECT_EQ(data_of(html)["maps"][0]["name"].get<std::string>().substr(0, 9),
            "</script>");
}

TEST(Page, BadFigureNames) {
  for (const char* name : {"", ".", "../x", "a/b", "a b", "a\"b", ".hidden"}) {
    ImageFigure p = image_figure();
    p.name = name;
    EXPECT_THROW(page("", "", {}, {p}), std::invalid_argument) << name;
  }
  EXPECT_THROW(page("", "", {}, {image_figure(), image_figure()}),
               std::invalid_argument);
}

TEST(Page, Files) {
  const fs::path root = fs::temp_directory_path() /
                        ("aft_page_test." + std::to_string(::getpid()));
  fs::remove_all(root);
  const std::vector<Figure> figures = {heatmaps(5, 7), chart(), image_figure()};
  const std::string out = (root / "new/plots").string();
  write_figures(out, "t", "s", {}, figures);
  EXPECT_EQ(read(out + "/index.html"), page("t", "s", {}, figures));
  // The files also have the title, above, and the caption, below.
  const io::Image inner = render(heatmaps(5, 7)).image,
                  outer = io::read_image(out + "/biases.png");
  EXPECT_EQ(outer.width, std::max<int64_t>(inner.width, 480));
  constexpr int64_t kTitle = 34;
  ASSERT_GT(outer.height, kTitle + inner.height + 15);
  for (int64_t y = 0; y < inner.height; ++y)
    for (int64_t x = 0; x < inner.width; ++x)
      ASSERT_EQ(pixel(outer, y + kTitle, x), pixel(inner, y, x));
  const auto is_blank = [&](int64_t from, int64_t to) {
    for (int64_t y = from; y < to; ++y)
      for (int64_t x = 0; x < outer.width; ++x)
        if (pixel(outer, y, x) != Rgb{255, 255, 255}) return false;
    return true;
  };
  EXPECT_FALSE(is_blank(0, kTitle));
  EXPECT_FALSE(is_blank(kTitle + inner.height, outer.height));
  EXPECT_GT(io::read_image(out + "/sample.png").height, kTitle + 1);
  EXPECT_EQ(io::read_image(out + "/curves.png").rgb, plot_image(chart()).rgb);
  EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), 4);
  EXPECT_THROW(write_figures(out + "/index.html/x", "", "", {}, figures),
               io::Error);
  fs::remove_all(root);
}

}  // namespace
}  // namespace aft::cli
