#include "cli/plot/colour_bar.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace aft::cli {
namespace {

constexpr int64_t kBar = 18;  // width without ticks
constexpr double kText = 15, kSmall = 13;
constexpr const char* kInk = "#333";

}  // namespace

std::string formatted(double x, int digits) {
  char text[40];
  snprintf(text, sizeof(text), "%.*g", digits, x);
  return text;
}

int64_t ColourBar::width() const {
  double texts = 0;
  for (const Tick& tick : ticks)
    texts = std::max(texts, text_width(tick.text, kSmall));
  return kBar + 9 + static_cast<int64_t>(std::ceil(texts)) +
         (label.empty() ? 0 : 24);
}

ColourBar make_bar(const std::vector<Scale>& scales, Colours colours,
                   const std::string& quantity, bool each) {
  ColourBar out;
  out.scale = scales[0], out.label = quantity;
  if (each) {
    for (const Scale& s : scales) {
      out.scale.below |= s.below, out.scale.above |= s.above;
    }
    out.label += out.label.empty() ? "scale per map" : " (scale per map)";
    const bool diverging = colours == Colours::kDiverging;
    out.ticks = {{0, diverging ? "-max" : "low"},
                 {1, diverging ? "max" : "high"}};
    if (diverging) out.ticks.push_back({0.5, "0"});
    return out;
  }
  const double low = out.scale.low, high = out.scale.high;
  const std::vector<double> ticks = round_ticks(low, high);
  const double step = ticks[1] - ticks[0],
               most = std::max(std::abs(low), std::abs(high));
  out.step = step / (high - low);
  const int digits =
      std::clamp(static_cast<int>(std::log10(most / step)) + 2, 3, 15);
  // The ends of a clipped scale are labelled; other ticks must not overlap.
  if (out.scale.below) out.ticks.push_back({0, "< " + formatted(low, digits)});
  if (out.scale.above) out.ticks.push_back({1, "> " + formatted(high, digits)});
  for (const double t : ticks) {
    const double part = out.scale.part(t);
    if (part < (out.scale.below ? 0.11 : -1e-9)) continue;
    if (part > (out.scale.above ? 0.89 : 1 + 1e-9)) continue;
    out.ticks.push_back({part, formatted(t, digits),
                         ticks.size() > 2 ? std::llround(t / step) : 0});
  }
  return out;
}

void draw_bar(Canvas& out, const ColourBar& bar, Colours colours, int64_t top,
              int64_t left, int64_t height) {
  for (int64_t y = 0; y < height; ++y) {
    const double part =
        1 - static_cast<double>(y) / static_cast<double>(height - 1);
    for (int64_t x = 0; x < kBar; ++x)
      out.set(top + y, left + x, colour(colours, part));
  }
  const auto tip = [&](bool upper) {
    for (int64_t i = 0; i < kBarTip; ++i) {
      const int64_t inset = (i + 1) * kBar / (2 * kBarTip + 2);
      for (int64_t x = inset; x < kBar - inset; ++x)
        out.set(upper ? top - 2 - i : top + height + 1 + i, left + x,
                colour(colours, upper ? 1 : 0));
    }
  };
  if (bar.scale.above) tip(true);
  if (bar.scale.below) tip(false);
  const auto every = static_cast<int64_t>(
      std::ceil(1.2 * kSmall / (bar.step * static_cast<double>(height))));
  double texts = 0;
  for (const ColourBar::Tick& tick : bar.ticks) {
    texts = std::max(texts, text_width(tick.text, kSmall));
    if (tick.number % every != 0) continue;
    const double x = static_cast<double>(left + kBar),
                 y = static_cast<double>(top) +
                     std::round((1 - tick.part) *
                                static_cast<double>(height - 1));
    out.box(x, y, 4, 1, kInk);
    out.text(x + 7, y + 0.5 + 0.37 * kSmall, tick.text, {kSmall});
  }
  TextStyle upward{kText, Anchor::kMiddle};
  upward.upward = true;
  out.text(static_cast<double>(left + kBar + 25) + texts,
           static_cast<double>(top) + static_cast<double>(height) / 2,
           bar.label, upward);
}

}  // namespace aft::cli
