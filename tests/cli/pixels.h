// Access to pixels for tests of figures.
#pragma once

#include "aft/io/image.h"
#include "cli/plot/colours.h"

namespace aft::cli {

inline Rgb pixel(const io::Image& image, int64_t y, int64_t x) {
  const uint8_t* p = &image.rgb[3 * (y * image.width + x)];
  return {p[0], p[1], p[2]};
}

inline int64_t count(const io::Image& image, const Rgb& colour) {
  int64_t out = 0;
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t x = 0; x < image.width; ++x)
      out += pixel(image, y, x) == colour;
  return out;
}

}  // namespace aft::cli
