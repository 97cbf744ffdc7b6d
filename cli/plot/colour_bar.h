// The bar beside heat maps that says what their colours stand for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/figures/drawing.h"
#include "cli/figures/scale.h"

namespace aft::cli {

inline constexpr int64_t kBarTip = 10;  ///< the height of an end that was cut

/// What stands on it and beside it.
struct ColourBar {
  Scale scale;
  struct Tick {
    double part;  ///< of the bar, from below
    std::string text;
    int64_t number = 0;  ///< so many steps from 0; where room is short, only
                         ///< multiples of two or more are drawn
  };
  std::vector<Tick> ticks;
  double step = 2;  ///< from one to the next, as a part
  std::string label;

  /// In pixels, with the texts.
  int64_t width() const;
};

/// For maps with these scales. `each`: they differ, and the bar only says low
/// and high. An end beyond which there are values has a tip and a '<' or '>'.
ColourBar make_bar(const std::vector<Scale>& scales, Colours colours,
                   const std::string& quantity, bool each);

/// `height` is that of the bar alone; tips come on top of it.
void draw_bar(Canvas& out, const ColourBar& bar, Colours colours, int64_t top,
              int64_t left, int64_t height);

}  // namespace aft::cli
