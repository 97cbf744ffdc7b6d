// What the targets for images share: an error, or an image of the size that
// it says, which is the same after it is written as PNG and read again.
#pragma once

#include "aft/io/image.h"
#include "aft/io/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace aft::fuzz {

inline void check_image(const uint8_t* data, size_t size) {
  const std::string name = "image";
  try {
    const io::Image image = io::decode_image(data, size, name);
    expect(image.height >= 1 && image.width >= 1 &&
               image.height * image.width <= io::kMaxPixels,
           "a size that is out of bounds");
    expect(
        image.rgb.size() == static_cast<size_t>(image.height * image.width * 3),
        "another number of bytes than pixels");
    const std::string png = io::encode_png(image, name);
    const io::Image again = io::decode_image(
        reinterpret_cast<const uint8_t*>(png.data()), png.size(), name);
    expect(again.height == image.height && again.width == image.width &&
               again.rgb == image.rgb,
           "another image after writing");
    // Far from square is where a change of size is at its limits.
    if (image.height * image.width <= 4096)
      expect(io::cover(image, 5, 3).rgb.size() == 45, "another size");
  } catch (const io::Error& e) {
    const std::string text = e.what();
    if (text.compare(0, 6, "cover:") == 0 || text.compare(0, 7, "resize:") == 0)
      return;  // these know no name
    expect_message(text, name + ": ");
  }
}

/// Large, but allowed in a file of `size` bytes: each would take a good part of
/// a second, so that a fuzzer came to nothing else. Those above the limits are
/// tried.
inline bool takes_long(uint64_t height, uint64_t width, size_t size) {
  constexpr uint64_t kMostInAByte = 1032 * 8;  // of a PNG, the pixels of 1 bit
  const uint64_t pixels = height * width;      // of 32 bits each: no overflow
  return pixels > (1 << 18) && pixels <= kMostInAByte * size &&
         pixels <= static_cast<uint64_t>(io::kMaxPixels);
}

}  // namespace aft::fuzz
