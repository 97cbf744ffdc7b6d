#include "cli/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "cli/table.h"

namespace aft::cli {
namespace {

// The colours of Okabe and Ito, which the colour-blind tell apart.
constexpr const char* kColours[] = {"#0072B2", "#009E73", "#D55E00", "#CC79A7",
                                    "#000000", "#E69F00", "#56B4E9", "#8A6D00"};
constexpr size_t kColourCount = sizeof(kColours) / sizeof(kColours[0]);

constexpr double kPanelWidth = 560, kHeight = 480;
constexpr double kLeft = 70, kRight = 92, kTop = 108, kBottom = 58;

std::string fixed(double x) {
  char text[32];
  snprintf(text, sizeof(text), "%.1f", x);
  return text;
}

/// 1024 as 1k (a length), 0.001 as 0.001.
std::string tick(double x) {
  char text[32];
  if (x >= 1024 && std::fmod(x, 1024) == 0) {
    snprintf(text, sizeof(text), "%.0fk", x / 1024);
  } else {
    snprintf(text, sizeof(text), "%g", x);
  }
  return text;
}

std::string text_at(double x, double y, const std::string& text,
                    const std::string& style) {
  return "<text x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" " + style + ">" +
         escaped(text) + "</text>\n";
}

std::string line(double x0, double y0, double x1, double y1,
                 const std::string& style) {
  return "<line x1=\"" + fixed(x0) + "\" y1=\"" + fixed(y0) + "\" x2=\"" +
         fixed(x1) + "\" y2=\"" + fixed(y1) + "\" " + style + "/>\n";
}

/// An axis from `low` to `high`, drawn from `from` to `to`.
struct Axis {
  double low, high, from, to;
  bool linear;
  double operator()(double x) const {
    const double part = linear ? (x - low) / (high - low)
                               : std::log(x / low) / std::log(high / low);
    return from + (to - from) * part;
  }
};

/// Four to ten round numbers that cover [low, high].
std::vector<double> round_ticks(double low, double high) {
  double step = std::pow(10, std::floor(std::log10((high - low) / 4)));
  for (const double factor : {2.0, 2.5, 2.0})
    if ((high - low) / step > 8) step *= factor;
  std::vector<double> out;
  for (double i = std::floor(low / step); i <= std::ceil(high / step); ++i)
    out.push_back(i * step);
  return out;
}

/// The second eight are dashed.
std::string dashes(size_t series) {
  return series < kColourCount ? "" : "stroke-dasharray=\"6 3\" ";
}

std::string curve(const Series& s, const Axis& x, const Axis& y, bool with_dots,
                  size_t series) {
  const std::string colour = kColours[series % kColourCount];
  std::string points, dots;
  for (const auto& [px, py] : s.points) {
    points += fixed(x(px)) + "," + fixed(y(py)) + " ";
    if (with_dots)
      dots += "<circle cx=\"" + fixed(x(px)) + "\" cy=\"" + fixed(y(py)) +
              "\" r=\"3.5\" fill=\"" + colour + "\"/>\n";
  }
  return "<polyline fill=\"none\" " + dashes(series) + "stroke=\"" + colour +
         "\" stroke-width=\"2\" points=\"" + points + "\"/>\n" + dots;
}

/// The names at the ends of the lines, moved apart where they would overlap.
std::string labels(const Panel& panel, const Axis& x, const Axis& y) {
  constexpr double kApart = 15;
  struct Label {
    double x, y;
    size_t series;
  };
  std::vector<Label> all;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    if (panel.series[i].points.empty()) continue;
    const auto [px, py] = panel.series[i].points.back();
    all.push_back({x(px) + 8, y(py) + 4, i});
  }
  std::sort(all.begin(), all.end(),
            [](const Label& a, const Label& b) { return a.y < b.y; });
  for (size_t i = 1; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (std::abs(all[i].x - all[j].x) < 60) {
        all[i].y = std::max(all[i].y, all[j].y + kApart);
      }
    }
  }
  std::string out;
  for (const Label& l : all) {
    out += text_at(l.x, l.y, panel.series[l.series].name,
                   std::string("font-size=\"12\" font-weight=\"bold\" "
                               "paint-order=\"stroke\" stroke=\"#fff\" "
                               "stroke-width=\"3\" fill=\"") +
                       kColours[l.series % kColourCount] + "\"");
  }
  return out;
}

std::string draw(const Panel& panel, double left) {
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = 0;
  std::set<double> x_ticks;
  for (const Series& s : panel.series) {
    for (const auto& [px, py] : s.points) {
      x0 = std::min(x0, px), x1 = std::max(x1, px);
      y0 = std::min(y0, py), y1 = std::max(y1, py);
      x_ticks.insert(px);
    }
  }
  if (x_ticks.empty()) return "";
  if (x0 == x1) x1 = 2 * x0;
  std::vector<double> y_ticks;
  if (panel.linear) {
    const auto rounded = round_ticks(0, x1);
    x_ticks = std::set<double>(rounded.begin(), rounded.end());
    x0 = 0, x1 = rounded.back();
    y_ticks = round_ticks(y0, y1 > y0 ? y1 : y0 + 1);
  } else {
    const double low = std::floor(std::log10(y0)),
                 high = std::max(std::ceil(std::log10(y1)), low + 1);
    for (double e = low; e <= high; ++e) y_ticks.push_back(std::pow(10, e));
  }
  const Axis x{x0, x1, left + kLeft + 12, left + kPanelWidth - kRight,
               panel.linear};
  const Axis y{y_ticks.front(), y_ticks.back(), kHeight - kBottom, kTop,
               panel.linear};
  const double right = x.to + 12;

  std::string out = text_at(left + kLeft, kTop - 14, panel.title,
                            "font-size=\"15\" font-weight=\"bold\"");
  for (const double t : y_ticks) {
    const double at = y(t);
    out += line(left + kLeft, at, right, at, "stroke=\"#d8d8d8\"");
    out += text_at(left + kLeft - 7, at + 4, tick(t),
                   "font-size=\"12\" text-anchor=\"end\"");
  }
  for (const double t : x_ticks) {
    out += line(x(t), y.from, x(t), y.from + 5, "stroke=\"#333\"");
    out += text_at(x(t), y.from + 20, tick(t),
                   "font-size=\"12\" text-anchor=\"middle\"");
  }
  out += line(left + kLeft, y.from, right, y.from, "stroke=\"#333\"");
  out += line(left + kLeft, y.from, left + kLeft, y.to, "stroke=\"#333\"");
  out += text_at((x.from + x.to) / 2, kHeight - 16, panel.x_label,
                 "font-size=\"13\" text-anchor=\"middle\"");
  const double middle = (y.from + y.to) / 2;
  out += text_at(left + 18, middle, panel.y_label,
                 "font-size=\"13\" text-anchor=\"middle\" transform=\"rotate("
                 "-90 " +
                     fixed(left + 18) + " " + fixed(middle) + ")\"");
  for (size_t i = 0; i < panel.series.size(); ++i) {
    if (panel.series[i].points.empty()) continue;
    out += curve(panel.series[i], x, y, !panel.linear, i);
  }
  return out + labels(panel, x, y);
}

/// The head of a file with its title.
std::string opening(const std::string& title, double width, double height) {
  const std::string size =
      "width=\"" + fixed(width) + "\" height=\"" + fixed(height) + "\"";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size +
         " viewBox=\"0 0 " + fixed(width) + " " + fixed(height) +
         "\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"#222\">\n"
         "<title>" +
         escaped(title) + "</title>\n<rect " + size + " fill=\"#fff\"/>\n" +
         text_at(20, 30, title, "font-size=\"19\" font-weight=\"bold\"");
}

std::string box(double x, double y, double width, double height,
                const std::string& colour) {
  return "<rect x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" width=\"" +
         fixed(width) + "\" height=\"" + fixed(height) + "\" fill=\"" + colour +
         "\"/>\n";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string plot(const std::string& title, const std::string& subtitle,
                 const std::vector<Panel>& panels) {
  std::string out =
      opening(title, kPanelWidth * static_cast<double>(panels.size()), kHeight);
  out += text_at(20, 50, subtitle, "font-size=\"13\" fill=\"#555\"");
  double at = 20;
  for (size_t i = 0; !panels.empty() && i < panels[0].series.size(); ++i) {
    const std::string& name = panels[0].series[i].name;
    out += line(at, 68, at + 22, 68,
                dashes(i) + "stroke-width=\"3\" stroke=\"" +
                    kColours[i % kColourCount] + "\"");
    out += text_at(at + 28, 72, name, "font-size=\"13\"");
    at += 52 + 7.5 * static_cast<double>(name.size());
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    out += draw(panels[i], kPanelWidth * static_cast<double>(i));
  }
  return out + "</svg>\n";
}

std::string bars(const std::string& title, const std::string& value,
                 const std::string& other,
                 const std::vector<std::string>& names,
                 const std::vector<bool>& strong,
                 const std::vector<BarPanel>& panels) {
  constexpr double kRow = 34, kPanel = 330, kBars = 230, kFirst = 112;
  constexpr const char *kStrong = "#D55E00", *kPlain = "#0072B2",
                       *kOther = "#9a9a9a";
  double names_width = 100;
  for (const std::string& name : names)
    names_width =
        std::max(names_width, 30 + 7.2 * static_cast<double>(name.size()));
  std::string out =
      opening(title, names_width + kPanel * static_cast<double>(panels.size()),
              kFirst + kRow * static_cast<double>(names.size()) + 16);
  out += box(20, 50, 22, 12, kPlain) + box(44, 50, 22, 12, kStrong) +
         text_at(74, 61, value, "font-size=\"13\"");
  if (!other.empty()) {
    const double at = 110 + 7 * static_cast<double>(value.size());
    out += box(at, 54, 22, 6, kOther) +
           text_at(at + 30, 61, other, "font-size=\"13\"");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    out +=
        text_at(names_width - 10, kFirst + kRow * static_cast<double>(i) + 18,
                names[i], "font-size=\"13\" text-anchor=\"end\"");
  }
  for (size_t p = 0; p < panels.size(); ++p) {
    const double left = names_width + kPanel * static_cast<double>(p);
    double most = 0;
    for (const Bar& b : panels[p].bars)
      most = std::max({most, b.value, b.other});
    out += text_at(left, kFirst - 16, panels[p].title,
                   "font-size=\"15\" font-weight=\"bold\"");
    for (size_t i = 0; i < panels[p].bars.size() && most > 0; ++i) {
      const double top = kFirst + kRow * static_cast<double>(i);
      const auto one = [&](double x, double y, double height,
                           const std::string& colour) {
        if (x <= 0) return;
        const double width = std::max(1.0, kBars * x / most);
        out += box(left, y, width, height, colour) +
               text_at(left + width + 5, y + height - 1, number(x),
                       "font-size=\"11\"");
      };
      const Bar& b = panels[p].bars[i];
      one(b.value, top + 2, 12, strong[i] ? kStrong : kPlain);
      one(b.other, top + 17, 8, kOther);
    }
    out += line(left, kFirst, left,
                kFirst + kRow * static_cast<double>(names.size()),
                "stroke=\"#333\"");
  }
  return out + "</svg>\n";
}

}  // namespace aft::cli
