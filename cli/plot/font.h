// The font of Canvas. Glyphs consist of lines and quarter ellipses, so they are
// smooth at every size.
#pragma once

#include <vector>

#include "cli/plot/drawing.h"

namespace aft::cli {

struct Glyph {
  std::vector<Path> lines;  ///< y grows upward from the baseline
  double advance = 0;       ///< distance to the next glyph
};

/// Returns the glyph of a printable ASCII character, and the question mark for
/// every other byte.
const Glyph& glyph(char c);

}  // namespace aft::cli
