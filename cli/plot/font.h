// The letters that Canvas draws: lines and quarters of ellipses, so that they
// are smooth in every size.
#pragma once

#include <vector>

#include "cli/figures/drawing.h"

namespace aft::cli {

inline constexpr double kCapital = 12;  ///< the height of a capital letter

struct Glyph {
  std::vector<Path> lines;  ///< y upward from the line it stands on
  double advance = 0;       ///< to the next letter
};

/// Of printable ASCII; other bytes give the question mark.
const Glyph& glyph(char c);

}  // namespace aft::cli
