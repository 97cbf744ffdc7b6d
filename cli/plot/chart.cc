#include "cli/plot/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "cli/plot/drawing.h"
#include "cli/plot/scale.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

// The palette of Okabe and Ito, chosen for colour-blind readers.
constexpr const char* kColours[] = {"#0072B2", "#009E73", "#D55E00", "#CC79A7",
                                    "#000000", "#E69F00", "#56B4E9", "#8A6D00"};
constexpr size_t kColourCount = sizeof(kColours) / sizeof(kColours[0]);

constexpr double kPanelWidth = 560, kHeight = 480;
constexpr double kLeft = 70, kRight = 92, kTop = 108, kBottom = 58;
constexpr double kHeading = 34;  // height of the title
constexpr double kPixels = 2;    // per drawing unit

const TextStyle kTitle{19, Anchor::kStart, /*bold=*/true},
    kPanelTitle{15, Anchor::kStart, /*bold=*/true};

/// Formats an axis tick. Multiples of 1024, which are lengths, get a "k".
std::string tick(double x) {
  char text[32];
  if (x >= 1024 && std::fmod(x, 1024) == 0) {
    snprintf(text, sizeof(text), "%.0fk", x / 1024);
  } else {
    snprintf(text, sizeof(text), "%g", x);
  }
  return text;
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

struct Frame {
  Axis x, y;
  std::set<double> x_ticks;  ///< empty: no points
  std::vector<double> y_ticks;
};

Frame frame(const Panel& panel, double left) {
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = 0;
  Frame out{};
  for (const Series& s : panel.series) {
    for (const auto& [px, py] : s.points) {
      x0 = std::min(x0, px), x1 = std::max(x1, px);
      y0 = std::min(y0, py), y1 = std::max(y1, py);
      out.x_ticks.insert(px);
    }
  }
  if (out.x_ticks.empty()) return out;
  if (x0 == x1) x1 = 2 * x0;
  if (panel.linear) {
    const auto rounded = round_ticks(0, x1);
    out.x_ticks = std::set<double>(rounded.begin(), rounded.end());
    x0 = 0, x1 = rounded.back();
    out.y_ticks = round_ticks(y0, y1 > y0 ? y1 : y0 + 1);
  } else {
    const double low = std::floor(std::log10(y0)),
                 high = std::max(std::ceil(std::log10(y1)), low + 1);
    for (int i = 0; low + i <= high; ++i)
      out.y_ticks.push_back(std::pow(10, low + i));
  }
  out.x = {x0, x1, left + kLeft + 12, left + kPanelWidth - kRight,
           panel.linear};
  out.y = {out.y_ticks.front(), out.y_ticks.back(), kHeight - kBottom, kTop,
           panel.linear};
  return out;
}

void draw_curve(Drawing& out, const Series& s, const Frame& at, bool with_dots,
                size_t series) {
  const std::string colour = series_colour(series);
  Path points;
  for (const auto& [px, py] : s.points) points.emplace_back(at.x(px), at.y(py));
  out.polyline(points, {colour, 2, series >= kColourCount});
  if (!with_dots) return;
  for (const auto& [px, py] : points) out.circle(px, py, 3.5, colour);
}

/// Labels the ends of the lines. Labels that would overlap are moved apart.
void draw_labels(Drawing& out, const Panel& panel, const Frame& at) {
  constexpr double kApart = 15;
  struct Label {
    double x, y;
    size_t series;
  };
  std::vector<Label> all;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    if (panel.series[i].points.empty()) continue;
    const auto [px, py] = panel.series[i].points.back();
    all.push_back({at.x(px) + 8, at.y(py) + 4, i});
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
  for (const Label& l : all) {
    out.text(l.x, l.y, panel.series[l.series].name,
             {12, Anchor::kStart, true, series_colour(l.series), true});
  }
}

void draw_panel(Drawing& out, const Panel& panel, double left) {
  const Frame at = frame(panel, left);
  if (at.x_ticks.empty()) return;
  const double right = at.x.to + 12;

  out.text(left + kLeft, kTop - 14, panel.title, kPanelTitle);
  for (const double t : at.y_ticks) {
    const double y = at.y(t);
    out.line(left + kLeft, y, right, y, {"#d8d8d8"});
    out.text(left + kLeft - 7, y + 4, tick(t), {12, Anchor::kEnd});
  }
  for (const double t : at.x_ticks) {
    out.line(at.x(t), at.y.from, at.x(t), at.y.from + 5, {"#333"});
    out.text(at.x(t), at.y.from + 20, tick(t), {12, Anchor::kMiddle});
  }
  out.line(left + kLeft, at.y.from, right, at.y.from, {"#333"});
  out.line(left + kLeft, at.y.from, left + kLeft, at.y.to, {"#333"});
  out.text((at.x.from + at.x.to) / 2, kHeight - 16, panel.x_label,
           {13, Anchor::kMiddle});
  TextStyle upward{13, Anchor::kMiddle};
  upward.upward = true;
  out.text(left + 18, (at.y.from + at.y.to) / 2, panel.y_label, upward);
  for (size_t i = 0; i < panel.series.size(); ++i) {
    if (panel.series[i].points.empty()) continue;
    draw_curve(out, panel.series[i], at, !panel.linear, i);
  }
  draw_labels(out, panel, at);
}

double plot_width(const std::vector<Panel>& panels) {
  return kPanelWidth * static_cast<double>(panels.size());
}

void draw_plot(Drawing& out, const std::string& title,
               const std::string& subtitle, const std::vector<Panel>& panels) {
  out.text(20, 30, title, kTitle);
  out.text(20, 50, subtitle, {13, Anchor::kStart, false, "#555"});
  double at = 20;
  for (size_t i = 0; !panels.empty() && i < panels[0].series.size(); ++i) {
    const std::string& name = panels[0].series[i].name;
    out.line(at, 68, at + 22, 68, {series_colour(i), 3, i >= kColourCount});
    out.text(at + 28, 72, name, {});
    at += 52 + 7.5 * static_cast<double>(name.size());
  }
  for (size_t i = 0; i < panels.size(); ++i)
    draw_panel(out, panels[i], kPanelWidth * static_cast<double>(i));
}

}  // namespace

std::string plot(const std::string& title, const std::string& subtitle,
                 const std::vector<Panel>& panels) {
  Svg out(title, plot_width(panels), kHeight);
  draw_plot(out, title, subtitle, panels);
  return out.str();
}

std::string plot_untitled(const std::string& title, const std::string& subtitle,
                          const std::vector<Panel>& panels) {
  Svg out(title, plot_width(panels), kHeight, kHeading);
  draw_plot(out, "", subtitle, panels);
  return out.str();
}

io::Image plot_image(const std::string& title, const std::string& subtitle,
                     const std::vector<Panel>& panels) {
  Canvas out(plot_width(panels), kHeight, kPixels);
  draw_plot(out, title, subtitle, panels);
  return out.image();
}

std::vector<PlottedPoint> plotted_points(const std::vector<Panel>& panels) {
  std::vector<PlottedPoint> out;
  for (size_t p = 0; p < panels.size(); ++p) {
    const Frame at = frame(panels[p], kPanelWidth * static_cast<double>(p));
    for (size_t s = 0; s < panels[p].series.size(); ++s)
      for (const auto& [x, y] : panels[p].series[s].points)
        out.push_back({p, s, at.x(x), at.y(y), x, y});
  }
  return out;
}

std::string series_colour(size_t series) {
  return kColours[series % kColourCount];
}

std::string bars(const std::string& title, const std::string& value,
                 const std::string& other,
                 const std::vector<std::string>& names,
                 const std::vector<bool>& strong,
                 const std::vector<BarPanel>& panels) {
  constexpr double kRow = 34, kPanel = 330, kBars = 230, kFirst = 112;
  constexpr const char *kStrong = "#D55E00", *kPlain = "#0072B2",
                       *kOther = "#9a9a9a";
  const auto row = [&](size_t i) {
    return kFirst + kRow * static_cast<double>(i);
  };
  double name_width = 100;
  for (const std::string& name : names)
    name_width =
        std::max(name_width, 30 + 7.2 * static_cast<double>(name.size()));
  Svg out(title, name_width + kPanel * static_cast<double>(panels.size()),
          row(names.size()) + 16);
  out.text(20, 30, title, kTitle);
  out.box(20, 50, 22, 12, kPlain);
  out.box(44, 50, 22, 12, kStrong);
  out.text(74, 61, value, {});
  if (!other.empty()) {
    const double at = 110 + 7 * static_cast<double>(value.size());
    out.box(at, 54, 22, 6, kOther);
    out.text(at + 30, 61, other, {});
  }
  for (size_t i = 0; i < names.size(); ++i)
    out.text(name_width - 10, row(i) + 18, names[i], {13, Anchor::kEnd});
  for (size_t p = 0; p < panels.size(); ++p) {
    const double left = name_width + kPanel * static_cast<double>(p);
    double most = 0;
    for (const Bar& b : panels[p].bars)
      most = std::max({most, b.value, b.other});
    out.text(left, kFirst - 16, panels[p].title, kPanelTitle);
    for (size_t i = 0; i < panels[p].bars.size() && most > 0; ++i) {
      const auto draw_bar = [&](double x, double y, double height,
                                const std::string& colour) {
        if (x <= 0) return;
        const double width = std::max(1.0, kBars * x / most);
        out.box(left, y, width, height, colour);
        out.text(left + width + 5, y + height - 1, number(x), {11});
      };
      const Bar& b = panels[p].bars[i];
      draw_bar(b.value, row(i) + 2, 12, strong[i] ? kStrong : kPlain);
      draw_bar(b.other, row(i) + 17, 8, kOther);
    }
    out.line(left, kFirst, left, row(names.size()), {"#333"});
  }
  return out.str();
}

}  // namespace aft::cli
