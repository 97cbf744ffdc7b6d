// Images: reads PNG and JPEG, writes PNG, and resizes bit-identically to
// Pillow, so that a model sees the same pixels as in Python. All functions are
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aft::io {

/// The maximum number of pixels of an image. Larger images are rejected based
/// on the header, before any pixel memory is allocated.
inline constexpr int64_t kMaxPixels = int64_t{1} << 26;

/// An 8-bit RGB image, rows from top to bottom. Channel c of pixel (y, x) is
/// rgb[(y * width + x) * 3 + c].
struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;
};

/// Reads a PNG or JPEG file of at most 1 GB. The format is detected from the
/// first bytes. Sample values are used as stored: gamma, colour profiles and
/// EXIF rotation are ignored. Other pixel formats are converted to 8-bit RGB:
///   greyscale, palette, 1, 2 and 4 bits   expanded
///   16 bits           round(value / 257), applied before alpha
///   alpha, tRNS       blended over white: round((c a + 255 (255 - a)) / 255)
///   CMYK, YCCK        round(c k / 255), where 255 means no ink, as Adobe
///                     writes it; without the Adobe marker, 0 means no ink
///
/// Throws an Error that names the file, what was expected and what was found.
/// Truncated files, wrong checksums and corrupt data are errors too, although
/// the libraries would only warn and fill the rest with grey. The one exception
/// is stray bytes before a JPEG marker, which occur in some ImageNet files:
/// they are skipped, as in Pillow. FIFOs and devices are rejected because they
/// could block.
///
/// Memory: the file plus up to 12 bytes per pixel. A file too short for the
/// number of pixels it declares is rejected before pixels are allocated.
Image read_image(const std::string& path);

/// Decodes an image from memory, like read_image. Error messages start with
/// `name`.
Image decode_image(const uint8_t* data, size_t size, const std::string& name);

/// Encodes an RGB PNG without a date or other text, so that equal images give
/// equal bytes for the same versions of libpng and zlib. Throws an Error that
/// starts with `name`.
std::string encode_png(const Image& image, const std::string& name);

/// Writes an image as PNG, atomically as write_file does. Throws Error.
void write_png(const std::string& path, const Image& image);

/// Resizes with a bicubic filter (a = -0.5), which is widened for downscaling
/// to avoid aliasing. Bit-identical to Pillow's Image.resize((width, height),
/// BICUBIC): filters along x, rounds to 8 bits, then filters along y. Throws
/// Error if the size is below 1 pixel or above kMaxPixels. The limit also
/// applies to the intermediate image of image.height x width.
Image resize(const Image& image, int64_t height, int64_t width);

/// Scales an image to cover height x width and crops the centre. The scale is s
/// = max(height / image.height, width / image.width): one side fits exactly,
/// the other becomes round(s * side) pixels, halves rounded up. If the excess
/// is odd, the extra pixel is cropped at the bottom or right. Throws Error as
/// resize does, also if the image is too large before cropping.
Image cover(const Image& image, int64_t height, int64_t width);

namespace internal {
// Both throw an Error that starts with `name`. check_size rejects less than 1
// pixel or more than kMaxPixels; check_image also rejects an rgb of the wrong
// length.
void check_size(const std::string& name, int64_t height, int64_t width);
void check_image(const std::string& name, const Image& image);
}  // namespace internal

}  // namespace aft::io
