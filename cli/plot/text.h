// Layout of text in figures: widths, shortening, line breaks, and labels that
// must not overlap.
#pragma once

#include <string>
#include <vector>

namespace aft::cli {

/// An upper bound of the width of `text` in the fonts that show SVG files,
/// which are not known here, and in the font of Canvas. A byte that is not
/// ASCII counts as a wide letter.
double text_bound(const std::string& text, double size, bool bold = false);

/// `text` if its text_bound() is at most `width`; otherwise with "..." in place
/// of its middle, since both ends of long names distinguish them.
std::string shortened(const std::string& text, double width, double size,
                      bool bold = false);

/// Breaks `text` at blanks into lines of at most `width`. Longer words are
/// shortened. No lines if the text is empty.
std::vector<std::string> wrapped(const std::string& text, double width,
                                 double size);

/// Moves positions, which must ascend, as little as possible (by least squares)
/// so that they are at least `apart` from each other and lie in [low, high],
/// which must be long enough.
void spread(std::vector<double>& positions, double apart, double low,
            double high);

}  // namespace aft::cli
