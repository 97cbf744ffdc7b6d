// Bar charts.
#include <algorithm>

#include "cli/plot/chart.h"
#include "cli/plot/drawing.h"
#include "cli/plot/text.h"
#include "cli/table.h"

namespace aft::cli {

std::string bars(const std::string& title, const BarLegend& legend,
                 const std::vector<std::string>& names,
                 const std::vector<bool>& strong,
                 const std::vector<BarPanel>& panels) {
  constexpr double kRow = 34, kPanel = 330, kBars = 230, kFirst = 126,
                   kWidestName = 300, kText = 13, kTitle = 15, kSmall = 12;
  constexpr const char *kStrong = "#D55E00", *kPlain = "#0072B2",
                       *kOther = "#9a9a9a";
  const auto row = [&](size_t i) {
    return kFirst + kRow * static_cast<double>(i);
  };
  double left = 100;
  std::vector<std::string> labels;
  for (const std::string& name : names) {
    labels.push_back(shortened(name, kWidestName, kText));
    left = std::max(left, 30 + text_bound(labels.back(), kText));
  }
  bool others = false;
  for (const BarPanel& p : panels)
    for (const Bar& b : p.bars) others = others || b.other > 0;
  struct Entry {
    std::string text, colour;
    double height;
  };
  std::vector<Entry> entries;
  const auto strong_count = std::count(strong.begin(), strong.end(), true);
  if (strong_count > 0) entries.push_back({legend.strong, kStrong, 12});
  if (strong_count < static_cast<int64_t>(strong.size()))
    entries.push_back({legend.plain, kPlain, 12});
  if (others) entries.push_back({legend.other, kOther, 6});
  const auto entry_width = [&](const Entry& e) {
    return 54 + text_bound(e.text, kText);
  };
  double legend_width = 20;
  for (const Entry& e : entries) legend_width += entry_width(e);

  const double width = std::max(
      legend_width, left + kPanel * static_cast<double>(panels.size()));
  Svg out(title, width, row(names.size()) + 16);
  out.text(20, 30, shortened(title, width - 40, 19, true),
           {19, Anchor::kStart, /*bold=*/true});
  double at = 20;
  for (const Entry& e : entries) {
    out.box(at, 56 - e.height / 2, 22, e.height, e.colour);
    out.text(at + 30, 61, e.text, {});
    at += entry_width(e);
  }
  for (size_t i = 0; i < names.size(); ++i)
    out.text(left - 10, row(i) + 18, labels[i], {kText, Anchor::kEnd});
  for (const BarPanel& panel : panels) {
    double most = 0;
    for (const Bar& b : panel.bars) most = std::max({most, b.value, b.other});
    out.text(left, kFirst - 26,
             shortened(panel.title, kPanel - 20, kTitle, true),
             {kTitle, Anchor::kStart, /*bold=*/true});
    out.text(left, kFirst - 9, shortened(panel.subtitle, kPanel - 20, kSmall),
             {kSmall, Anchor::kStart, false, "#555"});
    for (size_t i = 0; i < panel.bars.size() && most > 0; ++i) {
      const auto draw_bar = [&](double x, double y, double height,
                                const std::string& colour) {
        if (x <= 0) return;
        const double length = std::max(1.0, kBars * x / most);
        out.box(left, y, length, height, colour);
        out.text(left + length + 5, y + height - 1, number(x, panel.digits),
                 {11});
      };
      const Bar& b = panel.bars[i];
      draw_bar(b.value, row(i) + 2, 12, strong[i] ? kStrong : kPlain);
      draw_bar(b.other, row(i) + 17, 8, kOther);
    }
    out.line(left, kFirst, left, row(names.size()), {"#333"});
    left += kPanel;
  }
  return out.str();
}

}  // namespace aft::cli
