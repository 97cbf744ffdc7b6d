// Colours for numbers: scales whose steps look equally large, as they are equal
// in the Oklab space (Ottosson 2020), where distance is what the eye sees.
#pragma once

#include <array>
#include <cstdint>

namespace aft::cli {

enum class Colours {
  kSequential,  ///< dark blue to light yellow, ever lighter
  kDiverging,   ///< blue, white, red: equally dark at equal distance from white
};

using Rgb = std::array<uint8_t, 3>;  ///< sRGB

/// The colour at `part` of a scale, 0 its low end and 1 its high one; what is
/// outside, or NaN, is the nearest end, the low one.
Rgb colour(Colours colours, double part);

}  // namespace aft::cli
