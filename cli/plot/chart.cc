#include "cli/plot/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "cli/plot/drawing.h"
#include "cli/plot/scale.h"
#include "cli/plot/text.h"

namespace aft::cli {
namespace {

// The palette of Okabe and Ito, chosen for colour-blind readers.
constexpr const char* kColours[] = {"#0072B2", "#009E73", "#D55E00", "#CC79A7",
                                    "#000000", "#E69F00", "#56B4E9", "#8A6D00"};
constexpr size_t kColourCount = sizeof(kColours) / sizeof(kColours[0]);

// All in drawing units.
constexpr double kPlotWidth = 398, kPlotHeight = 314;  // between the axes
constexpr double kMargin = 20;
constexpr double kHeading = 34;       // height of the title
constexpr double kLegendEntry = 28;   // from its left to its name
constexpr double kBelow = 58;         // from the x axis to the end of a panel
constexpr double kWidestLabel = 190;  // at the end of a line
constexpr double kText = 13, kSmall = 12, kLine = 18;
constexpr double kPixels = 2;  // per drawing unit

const TextStyle kTitle{19, Anchor::kStart, /*bold=*/true},
    kPanelTitle{15, Anchor::kStart, /*bold=*/true};

std::string formatted(const char* format, int digits, double x) {
  char text[64];
  snprintf(text, sizeof(text), format, digits, x);
  return text;
}

/// Formats round ticks with as many decimals as they all need.
std::vector<std::string> linear_labels(const std::vector<double>& ticks) {
  double most = 0;
  for (const double t : ticks) most = std::max(most, std::abs(t));
  const char* unit = most >= 1e9 ? "G" : most >= 1e6 ? "M" : "";
  const double by = most >= 1e9 ? 1e9 : most >= 1e6 ? 1e6 : 1;
  const double apart = ticks.size() > 1 ? ticks[1] - ticks[0] : most;
  int decimals = 0;
  const auto rounded = [&](double t) {
    const double scale = std::pow(10, decimals);
    return std::abs(std::round(t / by * scale) / scale * by - t) <
           1e-3 * std::abs(apart);
  };
  while (decimals < 15 && !std::all_of(ticks.begin(), ticks.end(), rounded))
    ++decimals;
  std::vector<std::string> out;
  for (const double t : ticks)
    out.push_back(t == 0        ? "0"
                  : most < 1e-4 ? formatted("%.*g", 4, t)
                                : formatted("%.*f", decimals, t / by) + unit);
  return out;
}

/// Formats lengths and powers of ten. Multiples of 1024 get a "k".
std::string logarithmic_label(double x) {
  if (x >= 1024 && std::fmod(x, 1024) == 0)
    return formatted("%.*fk", 0, x / 1024);
  return formatted("%.*g", 6, x);
}

/// An axis from `low` to `high`, drawn from `from` to `to`.
struct Axis {
  struct Tick {
    double value;
    std::string label;
  };
  double low = 0, high = 1, from = 0, to = 1;
  bool linear = true;
  std::vector<Tick> ticks;

  double operator()(double x) const {
    const double part = linear ? (x - low) / (high - low)
                               : std::log(x / low) / std::log(high / low);
    return from + (to - from) * part;
  }
  void set_ticks(const std::vector<double>& values) {
    const std::vector<std::string> labels = linear_labels(values);
    for (size_t i = 0; i < values.size(); ++i)
      ticks.push_back(
          {values[i], linear ? labels[i] : logarithmic_label(values[i])});
  }
  double widest_label() const {
    double out = 0;
    for (const Tick& t : ticks)
      out = std::max(out, text_bound(t.label, kSmall));
    return out;
  }
};

/// The x axis of points from `low` to `high`; its drawn ends are relative to
/// the y axis.
Axis x_axis(const Panel& panel, double low, double high) {
  Axis out;
  out.linear = panel.linear;
  if (panel.linear) {
    out.low = 0, out.high = high, out.to = kPlotWidth;
    out.set_ticks(round_ticks(0, high));
    return out;
  }
  const bool one = low == high;
  out.low = one ? low / 2 : low, out.high = one ? 2 * high : high;
  out.from = 12, out.to = kPlotWidth - 12;  // leave space for the markers
  std::set<double> values;
  for (const Series& s : panel.series)
    for (const auto& point : s.points) values.insert(point.first);
  double free = -kPlotWidth;  // labels that would overlap are left out
  for (const double x : values) {
    const std::string label = logarithmic_label(x);
    const double half = text_bound(label, kSmall) / 2;
    if (out(x) - half < free) continue;
    free = out(x) + half + 4;
    out.ticks.push_back({x, label});
  }
  return out;
}

/// The y axis of points from `low` to `high`, with some space around them.
Axis y_axis(const Panel& panel, double low, double high) {
  Axis out;
  out.linear = panel.linear;
  if (panel.linear) {
    const double space = high > low ? 0.04 * (high - low)
                         : high > 0 ? 0.05 * high
                                    : 1;
    out.low = std::max(low - space, 0.0), out.high = high + space;
    out.set_ticks(round_ticks(out.low, out.high));
    return out;
  }
  const double space = high > low ? std::pow(high / low, 0.04) : 2;
  out.low = low / space, out.high = high * space;
  std::vector<double> decades, parts;
  for (double d = std::floor(std::log10(out.low)); d <= std::log10(out.high);
       ++d)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double x = factor * std::pow(10, d);
      if (x < out.low || x > out.high) continue;
      parts.push_back(x);
      if (factor == 1) decades.push_back(x);
    }
  out.set_ticks(decades.size() >= 3 ? decades
                : parts.size() >= 2 ? parts
                                    : round_ticks(out.low, out.high));
  return out;
}

/// The name at the end of a line, in the margin at the right of the panel.
struct EndLabel {
  size_t series;
  std::string text;
  double x, y;          ///< of the text, vertically its middle
  double end_x, end_y;  ///< of the line
};

/// The position of everything in a panel.
struct PanelLayout {
  double left, width;
  Axis x, y;  ///< without ticks: the panel has no points
  std::vector<EndLabel> labels;
};

struct Layout {
  double width = 0, height = 0;
  std::vector<std::string> subtitle, caption;  ///< lines
  struct Entry {
    double x, y;
    std::string name;
  };
  std::vector<Entry> legend;
  double caption_top = 0;
  std::vector<PanelLayout> panels;
};

/// Arranges the panel without its vertical position.
PanelLayout arrange(const Panel& panel, double left) {
  PanelLayout out{left, kPlotWidth + 2 * kMargin, {}, {}, {}};
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = 0;
  double label_width = 0;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    const Series& s = panel.series[i];
    for (const auto& [px, py] : s.points) {
      x0 = std::min(x0, px), x1 = std::max(x1, px);
      y0 = std::min(y0, py), y1 = std::max(y1, py);
    }
    if (s.points.empty()) continue;
    out.labels.push_back(
        {i, shortened(s.name, kWidestLabel, kSmall, true), 0, 0, 0, 0});
    label_width =
        std::max(label_width, text_bound(out.labels.back().text, kSmall, true));
  }
  if (out.labels.empty()) return out;
  out.x = x_axis(panel, x0, x1), out.y = y_axis(panel, y0, y1);
  // From left to right: the label of the y axis, its ticks, the plot, the names
  // of the series.
  const double origin = left + 28 + out.y.widest_label() + 7;
  out.x.from += origin, out.x.to += origin;
  out.width = origin + kPlotWidth + 18 + label_width + kMargin - left;
  for (EndLabel& l : out.labels) l.x = origin + kPlotWidth + 18;
  return out;
}

/// Sets the vertical positions of a panel.
void place(const Panel& panel, double top, PanelLayout& out) {
  out.y.from = top + kPlotHeight, out.y.to = top;
  for (EndLabel& l : out.labels) {
    const auto& [px, py] = panel.series[l.series].points.back();
    l.end_x = out.x(px), l.end_y = out.y(py);
  }
  std::sort(
      out.labels.begin(), out.labels.end(),
      [](const EndLabel& a, const EndLabel& b) { return a.end_y < b.end_y; });
  std::vector<double> positions;
  for (const EndLabel& l : out.labels) positions.push_back(l.end_y);
  spread(positions, 15, top, out.y.from);
  for (size_t i = 0; i < positions.size(); ++i) out.labels[i].y = positions[i];
}

Layout arrange(const Chart& chart) {
  Layout out;
  for (const Panel& p : chart.panels) {
    out.panels.push_back(arrange(p, out.width));
    out.width += out.panels.back().width;
  }
  const double inner = out.width - 2 * kMargin;
  out.subtitle = wrapped(chart.subtitle, inner, kText);
  out.caption = wrapped(chart.caption, inner, kText);
  const auto height = [](const std::vector<std::string>& lines) {
    return kLine * static_cast<double>(lines.size());
  };
  // The legend has columns of equal width.
  double column = 0;
  if (!chart.panels.empty())
    for (const Series& s : chart.panels[0].series) {
      out.legend.push_back(
          {0, 0, shortened(s.name, inner - kLegendEntry, kText)});
      column = std::max(
          column, kLegendEntry + text_bound(out.legend.back().name, kText));
    }
  double x = kMargin, y = 50 + height(out.subtitle);
  for (Layout::Entry& e : out.legend) {
    if (x > kMargin && x + column > out.width - kMargin)
      x = kMargin, y += kLine;
    e.x = x, e.y = y;
    x += column + 24;
  }
  const double top = y + 40;
  for (size_t i = 0; i < chart.panels.size(); ++i)
    place(chart.panels[i], top, out.panels[i]);
  out.caption_top = top + kPlotHeight + kBelow;
  out.height =
      out.caption_top + (out.caption.empty() ? 0 : height(out.caption) + 12);
  return out;
}

void draw_curve(Drawing& out, const Series& s, const PanelLayout& at,
                bool with_dots, size_t series) {
  const std::string colour = series_colour(series);
  Path points;
  for (const auto& [px, py] : s.points) points.emplace_back(at.x(px), at.y(py));
  out.polyline(points, {colour, 2, series >= kColourCount});
  if (!with_dots) return;
  for (const auto& [px, py] : points) out.circle(px, py, 3.5, colour);
}

void draw_panel(Drawing& out, const Panel& panel, const PanelLayout& at) {
  if (at.labels.empty()) return;
  const double bottom = at.y.from, right = at.labels[0].x - 18,
               left = right - kPlotWidth, middle = (left + right) / 2;
  out.text(left, at.y.to - 14, shortened(panel.title, kPlotWidth, 15, true),
           kPanelTitle);
  for (const Axis::Tick& t : at.y.ticks) {
    const double y = at.y(t.value);
    out.line(left, y, right, y, {"#d8d8d8"});
    out.text(left - 7, y + 4, t.label, {kSmall, Anchor::kEnd});
  }
  for (const Axis::Tick& t : at.x.ticks) {
    const double x = at.x(t.value);
    out.line(x, bottom, x, bottom + 5, {"#333"});
    out.text(x, bottom + 20, t.label, {kSmall, Anchor::kMiddle});
  }
  out.line(left, bottom, right, bottom, {"#333"});
  out.line(left, bottom, left, at.y.to, {"#333"});
  out.text(middle, bottom + 42, shortened(panel.x_label, kPlotWidth, kText),
           {kText, Anchor::kMiddle});
  TextStyle upward{kText, Anchor::kMiddle};
  upward.upward = true;
  out.text(at.left + 20, (bottom + at.y.to) / 2,
           shortened(panel.y_label, kPlotHeight, kText), upward);
  // From the ends of lines to labels that are not beside them.
  constexpr const char* kLeader = "#b8b8b8";
  for (const EndLabel& l : at.labels) {
    if (std::abs(l.y - l.end_y) <= 2 && l.end_x >= right - 12) continue;
    out.line(l.end_x + 4, l.end_y, right + 4, l.end_y, {kLeader});
    out.line(right + 4, l.end_y, l.x - 3, l.y, {kLeader});
  }
  for (size_t i = 0; i < panel.series.size(); ++i) {
    const Series& s = panel.series[i];
    if (!s.points.empty())
      draw_curve(out, s, at, !panel.linear || s.points.size() == 1, i);
  }
  for (const EndLabel& l : at.labels)
    out.text(l.x, l.y + 4, l.text,
             {kSmall, Anchor::kStart, true, series_colour(l.series)});
}

/// Draws everything but the title and the caption.
void draw_panels(Drawing& out, const Chart& chart, const Layout& at) {
  double y = 50;
  for (const std::string& line : at.subtitle) {
    out.text(kMargin, y, line, {kText, Anchor::kStart, false, "#555"});
    y += kLine;
  }
  for (size_t i = 0; i < at.legend.size(); ++i) {
    const Layout::Entry& e = at.legend[i];
    out.line(e.x, e.y, e.x + 22, e.y, {series_colour(i), 3, i >= kColourCount});
    out.text(e.x + kLegendEntry, e.y + 4, e.name, {});
  }
  for (size_t i = 0; i < chart.panels.size(); ++i)
    draw_panel(out, chart.panels[i], at.panels[i]);
}

void draw_plot(Drawing& out, const Chart& chart, const Layout& at) {
  const double inner = at.width - 2 * kMargin;
  out.text(kMargin, 30, shortened(chart.title, inner, kTitle.size, true),
           kTitle);
  draw_panels(out, chart, at);
  double y = at.caption_top + 14;
  for (const std::string& line : at.caption) {
    out.text(kMargin, y, line, {});
    y += kLine;
  }
}

}  // namespace

std::string plot(const Chart& chart) {
  const Layout at = arrange(chart);
  Svg out(chart.title, at.width, at.height);
  draw_plot(out, chart, at);
  return out.str();
}

std::string plot_untitled(const Chart& chart) {
  const Layout at = arrange(chart);
  Svg out(chart.title, at.width, at.caption_top, kHeading);
  draw_panels(out, chart, at);
  return out.str();
}

io::Image plot_image(const Chart& chart) {
  const Layout at = arrange(chart);
  Canvas out(at.width, at.height, kPixels);
  draw_plot(out, chart, at);
  return out.image();
}

std::vector<PlottedPoint> plotted_points(const Chart& chart) {
  const Layout at = arrange(chart);
  std::vector<PlottedPoint> out;
  for (size_t p = 0; p < chart.panels.size(); ++p) {
    const std::vector<Series>& series = chart.panels[p].series;
    for (size_t s = 0; s < series.size(); ++s)
      for (const auto& [x, y] : series[s].points)
        out.push_back({p, s, at.panels[p].x(x), at.panels[p].y(y), x, y});
  }
  return out;
}

std::string series_colour(size_t series) {
  return kColours[series % kColourCount];
}

}  // namespace aft::cli
