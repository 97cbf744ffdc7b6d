// Shared by the fuzz targets of image formats: a decoded image must have its
// declared size and survive a round trip as PNG.
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
        "the number of bytes does not match the size");
    const std::string png = io::encode_png(image, name);
    const io::Image again = io::decode_image(
        reinterpret_cast<const uint8_t*>(png.data()), png.size(), name);
    expect(again.height == image.height && again.width == image.width &&
               again.rgb == image.rgb,
           "the image changed in a round trip");
    // Extreme aspect ratios test the limits of resizing.
    if (image.height * image.width <= 4096)
      expect(io::cover(image, 5, 3).rgb.size() == 45, "wrong size");
  } catch (const io::Error& e) {
    const std::string text = e.what();
    if (text.compare(0, 6, "cover:") == 0 || text.compare(0, 7, "resize:") == 0)
      return;  // these do not know the name
    expect_message(text, name + ": ");
  }
}

/// Whether decoding would take long: a large image within the limits for a file
/// of `size` bytes, which would take most of a second and stall the fuzzer.
/// Images above the limits are rejected quickly and should be tried.
inline bool takes_long(uint64_t height, uint64_t width, size_t size) {
  constexpr uint64_t kMostPixelsPerByte = 1032 * 8;  // 1-bit PNG
  const uint64_t pixels = height * width;  // 32 bits each: no overflow
  return pixels > (1 << 18) && pixels <= kMostPixelsPerByte * size &&
         pixels <= static_cast<uint64_t>(io::kMaxPixels);
}

}  // namespace aft::fuzz
