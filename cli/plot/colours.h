// Perceptually uniform colour maps: equal steps in value are equal distances in
// the Oklab colour space (Ottosson 2020), which approximates perceived
// differences.
#pragma once

#include <array>
#include <cstdint>

namespace aft::cli {

enum class Colours {
  kSequential,  ///< dark blue to light yellow, with increasing lightness
  kDiverging,   ///< blue, white, red; lightness is symmetric about white
};

using Rgb = std::array<uint8_t, 3>;  ///< sRGB

/// The colour at the fraction `part` of a scale, from 0 (low) to 1 (high).
/// Values outside are clamped; NaN gives the low end.
Rgb colour(Colours colours, double part);

}  // namespace aft::cli
