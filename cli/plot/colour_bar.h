// The colour bar beside heat maps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/plot/drawing.h"
#include "cli/plot/scale.h"

namespace aft::cli {

inline constexpr int64_t kBarTip = 10;  ///< height of the tip at a clipped end

/// The scale, ticks and label of a colour bar.
struct ColourBar {
  Scale scale;
  struct Tick {
    double part;  ///< position as a fraction of the bar, from the bottom
    std::string text;
    int64_t number = 0;  ///< distance from 0 in steps; if space is short, only
                         ///< multiples of some n > 1 are drawn
  };
  std::vector<Tick> ticks;
  double step = 2;  ///< distance between ticks as a fraction of the bar
  std::string label;

  /// The width in pixels, including the text.
  int64_t width() const;
};

/// Makes the bar for maps with these scales. `each`: every map has a separate
/// scale, and the bar is only labelled low and high. An end that clips values
/// has a tip and, unless `each`, a '<' or '>' in its label.
ColourBar make_bar(const std::vector<Scale>& scales, Colours colours,
                   const std::string& quantity, bool each);

/// Formats x with `digits` significant digits.
std::string formatted(double x, int digits);

/// `height` excludes the tips.
void draw_bar(Canvas& out, const ColourBar& bar, Colours colours, int64_t top,
              int64_t left, int64_t height);

}  // namespace aft::cli
