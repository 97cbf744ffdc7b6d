#include "cli/plot/page.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "aft/io/file.h"
#include "cli/plot/drawing.h"
#include "cli/plot/page_assets.h"
#include "cli/plot/text.h"

namespace aft::cli {
namespace {

using Json = nlohmann::json;

// Maps of at most this many cells are embedded as floats, larger ones as 16
// bits per value.
constexpr size_t kExactCells = 1024;
// Encoding in 16 bits: kSteps steps from the minimum to the maximum, and codes
// for values that are not finite.
constexpr uint16_t kSteps = 65532, kMinusInf = 65533, kInf = 65534,
                   kNan = 65535;

std::string base64(const std::string& bytes) {
  constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      const bool there = i + j < bytes.size();
      bits = bits << 8 | (there ? static_cast<uint8_t>(bytes[i + j]) : 0);
    }
    const size_t digits = std::min<size_t>(bytes.size() - i, 3) + 1;
    for (size_t j = 0; j < 4; ++j)
      out += j < digits ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

/// Appends an integer, low byte first.
template <typename Bits>
void append(Bits bits, std::string& out) {
  for (size_t i = 0; i < sizeof(Bits); ++i)
    out += static_cast<char>(bits >> (8 * i) & 255);
}

/// Adds the values of a map and their encoding.
void add_values(const std::vector<float>& values, Json& out) {
  std::string bytes;
  if (values.size() <= kExactCells) {
    for (const float x : values) {
      uint32_t bits = 0;
      std::memcpy(&bits, &x, sizeof(bits));
      append(bits, bytes);
    }
    out["bits"] = 32;
  } else {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const float x : values) {
      if (!std::isfinite(x)) continue;
      low = std::min<double>(low, x), high = std::max<double>(high, x);
    }
    if (low > high) low = high = 0;
    for (const float x : values) {
      const double part = low < high ? (x - low) / (high - low) : 0;
      append(std::isnan(x) ? kNan
             : std::isinf(x)
                 ? (x > 0 ? kInf : kMinusInf)
                 : static_cast<uint16_t>(std::lround(part * kSteps)),
             bytes);
    }
    out["bits"] = 16, out["range"] = {low, high};
  }
  out["values"] = base64(bytes);
}

/// Embeds data for the script of the page, with '<' escaped so that the data
/// cannot end the script element.
std::string embedded(const Json& data) {
  std::string out = "<script type=\"application/json\">";
  for (const char c :
       data.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    out += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return out + "</script>";
}

std::string image_tag(const io::Image& image, const std::string& about) {
  return "<img src=\"data:image/png;base64," +
         base64(io::encode_png(image, about)) + "\" width=\"" +
         std::to_string(image.width) + "\" height=\"" +
         std::to_string(image.height) + "\" alt=\"" + escaped(about) + "\">";
}

std::string live(const std::string& inside, const Json& data,
                 const std::string& about) {
  return "<div class=\"plate live\" tabindex=\"0\" role=\"group\" "
         "aria-label=\"" +
         escaped(about) + "; use the arrow keys to read values\">\n" + inside +
         "\n" + embedded(data) + "\n</div>";
}

/// The image with its title above and its caption below, as a PNG file; the
/// page shows both as text.
std::string captioned_png(const io::Image& image, const std::string& name,
                          const std::string& title,
                          const std::string& caption) {
  constexpr int64_t kLeast = 480, kMargin = 14, kTitle = 34, kLine = 21;
  constexpr double kTitleText = 19, kText = 15;
  const int64_t width = std::max(image.width, kLeast);
  const double inner = static_cast<double>(width - 2 * kMargin);
  const std::vector<std::string> lines = wrapped(caption, inner, kText);
  Canvas out(static_cast<double>(width),
             static_cast<double>(kTitle + image.height + kMargin +
                                 kLine * static_cast<int64_t>(lines.size())));
  out.text(kMargin, kTitle - 8, shortened(title, inner, kTitleText, true),
           {kTitleText, Anchor::kStart, /*bold=*/true});
  out.put(kTitle, 0, image);
  double y = static_cast<double>(kTitle + image.height + 15);
  for (const std::string& line : lines) {
    out.text(kMargin, y, line, {kText});
    y += kLine;
  }
  return io::encode_png(out.image(), name + ".png");
}

std::string squared(int64_t n) {
  return std::to_string(n) + " x " + std::to_string(n);
}

/// A figure ready for the page and for its file.
struct Ready {
  std::string name, title, caption, png, html;
};

Ready ready(const Heatmaps& f) {
  const RenderedHeatmaps rendered = render(f);
  Ready out{f.name, f.title, f.caption, {}, {}};
  Json data{{"quantity", f.quantity},
            {"y", f.y_name},
            {"x", f.x_name},
            {"columns", f.column_names.size()},
            {"size", {rendered.image.height, rendered.image.width}},
            {"maps", Json::array()}};
  int64_t most = 1;
  for (size_t i = 0; i < f.maps.size(); ++i) {
    const Map& m = f.maps[i];
    if (m.values.empty()) {
      data["maps"].push_back(nullptr);
      continue;
    }
    const Place& p = rendered.places[i];
    const int64_t longer = std::max(m.height, m.width),
                  block = (longer + kMostCells - 1) / kMostCells;
    most = std::max(most, block);
    const Map small = averaged(m, block);
    Json map{{"name", m.name},
             {"place", {p.top, p.left, p.height, p.width}},
             {"cells", {small.height, small.width}},
             {"whole", {m.height, m.width}},
             {"first", {m.y0, m.x0}},
             {"block", block}};
    add_values(small.values, map);
    data["maps"].push_back(std::move(map));
  }
  if (rendered.averaged > 1)
    out.caption += " Each drawn cell is the mean of up to " +
                   squared(rendered.averaged) + " values.";
  if (most > 1)
    out.caption += " The values shown on the page are means of up to " +
                   squared(most) + ".";
  const std::string about = f.title + ": heat maps, " +
                            std::to_string(f.row_names.size()) + " x " +
                            std::to_string(f.column_names.size());
  out.png = captioned_png(rendered.image, f.name, f.title, out.caption);
  out.html = live(image_tag(rendered.image, about), data, f.title);
  return out;
}

Ready ready(const Chart& c) {
  Ready out{c.name, c.title, c.caption, {}, {}};
  out.png = io::encode_png(plot_image(c), c.name + ".png");
  Json data{{"panels", Json::array()},
            {"colours", Json::array()},
            {"points", Json::array()}};
  size_t most = 0;
  for (const Panel& p : c.panels) {
    Json names = Json::array();
    for (const Series& s : p.series) names.push_back(s.name);
    most = std::max(most, p.series.size());
    data["panels"].push_back(
        {{"x", p.x_label}, {"y", p.y_label}, {"series", names}});
  }
  for (size_t i = 0; i < most; ++i) data["colours"].push_back(series_colour(i));
  for (const PlottedPoint& p : plotted_points(c)) {
    data["points"].push_back({p.panel, p.series, std::round(10 * p.x) / 10,
                              std::round(10 * p.y) / 10, p.value_x, p.value_y});
  }
  out.html = live(plot_untitled(c), data, c.title);
  return out;
}

Ready ready(const ImageFigure& p) {
  Ready out{p.name, p.title, p.caption, {}, {}};
  out.png = captioned_png(p.image, p.name, p.title, p.caption);
  out.html = "<div class=\"plate\">" + image_tag(p.image, p.title) + "</div>";
  return out;
}

std::vector<Ready> all_ready(const std::vector<Figure>& figures) {
  std::vector<Ready> out;
  std::set<std::string> names;
  for (const Figure& f : figures) {
    const std::string& name = std::visit(
        [](const auto& x) -> const std::string& { return x.name; }, f);
    const bool plain = !name.empty() && name[0] != '.' &&
                       name.find_first_not_of(
                           "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstu"
                           "vwxyz0123456789._-") == std::string::npos;
    if (!plain || !names.insert(name).second)
      throw std::invalid_argument(
          "a figure must have a unique name of letters, digits, '.', '_' and "
          "'-', got '" +
          name + "'");
  }
  out.reserve(figures.size());
  for (const Figure& f : figures)
    out.push_back(std::visit([](const auto& x) { return ready(x); }, f));
  return out;
}

std::string make_page(const std::string& title, const std::string& subtitle,
                      const Details& details,
                      const std::vector<Ready>& figures) {
  // The policy blocks all external resources, whatever the texts contain.
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
      "'none'; img-src data:; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n<title>" +
      escaped(title) + "</title>\n<style>" + kPageStyle +
      "</style>\n</head>\n<body>\n<main>\n<header>\n<h1>" + escaped(title) +
      "</h1>\n";
  if (!subtitle.empty())
    out += "<p class=\"subtitle\">" + escaped(subtitle) + "</p>\n";
  if (!details.empty()) {
    out += "<dl>\n";
    for (const auto& [key, value] : details)
      out += "<dt>" + escaped(key) + "</dt><dd>" + escaped(value) + "</dd>\n";
    out += "</dl>\n";
  }
  out += "</header>\n<nav aria-label=\"Figures\">\n<ol>\n";
  for (const Ready& f : figures)
    out += "<li><a href=\"#" + f.name + "\">" +
           escaped(f.title.empty() ? f.name : f.title) + "</a></li>\n";
  out += "</ol>\n</nav>\n";
  for (size_t i = 0; i < figures.size(); ++i) {
    const Ready& f = figures[i];
    out += "<section id=\"" + f.name + "\">\n<h2>" + escaped(f.title) +
           "</h2>\n<figure>\n" + f.html + "\n<figcaption><b>Figure " +
           std::to_string(i + 1) + ".</b> " + escaped(f.caption) +
           "</figcaption>\n</figure>\n</section>\n";
  }
  return out +
         "</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script>" +
         kPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace

std::string page(const std::string& title, const std::string& subtitle,
                 const Details& details, const std::vector<Figure>& figures) {
  return make_page(title, subtitle, details, all_ready(figures));
}

void write_figures(const std::string& directory, const std::string& title,
                   const std::string& subtitle, const Details& details,
                   const std::vector<Figure>& figures) {
  const std::vector<Ready> all = all_ready(figures);
  io::make_directories(directory);
  for (const Ready& f : all)
    io::write_file(directory + "/" + f.name + ".png", f.png);
  io::write_file(directory + "/index.html",
                 make_page(title, subtitle, details, all));
}

}  // namespace aft::cli
