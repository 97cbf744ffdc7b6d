// Pictures: PNG and JPEG in, PNG out, and a change of size that gives the same
// bits as Pillow's, so that a model sees here what it saw in Python. All
// functions may be called from many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aft::io {

/// No picture here has more pixels than this: larger ones are an error, found
/// in the header before any memory is asked for.
inline constexpr int64_t kMaxPixels = int64_t{1} << 26;

/// A picture: 8 bits a channel, RGB, rows from the top; pixel (y, x), channel c
/// is rgb[(y * width + x) * 3 + c].
struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;
};

/// Reads PNG or JPEG, told apart by their first bytes, of at most 1 GB. The
/// numbers in the file are taken as they stand: no gamma, no colour profile, no
/// rotation by EXIF. What is not RGB of 8 bits becomes so:
///   greyscale, palette, 1, 2 and 4 bits   expanded
///   16 bits           round(value / 257), which comes before alpha
///   alpha, tRNS       blended over white: round((c a + 255 (255 - a)) / 255)
///   CMYK, YCCK        round(c k / 255), where 255 is no ink; that is how Adobe
///                     writes them; without its marker, 0 is no ink
///
/// Throws an Error that names the file, what was expected and what came, also
/// where the libraries would only warn and fill the rest with grey: a file that
/// ends early, a wrong checksum, corrupt data. Only stray bytes before a marker
/// of a JPEG are passed over, as Pillow does: some files of ImageNet have them.
/// A FIFO or a device is refused, not waited for. Memory: the file, and up to
/// 12 bytes a pixel; a file too short for the pixels that it claims is refused
/// before.
Image read_image(const std::string& path);

/// The same from memory; name opens the messages.
Image decode_image(const uint8_t* data, size_t size, const std::string& name);

/// The bytes of an RGB PNG, without a date or any other text: the same picture
/// gives the same bytes (with the same libpng and zlib). Throws an Error that
/// begins with name.
std::string encode_png(const Image& image, const std::string& name);

/// Writes the bytes of encode_png. Replaces the file in one step, as write_file
/// does. Throws Error.
void write_png(const std::string& path, const Image& image);

/// Bicubic (a = -0.5), widened when it shrinks so that it does not alias: to
/// the bit what Pillow's Image.resize((width, height), BICUBIC) gives. First
/// along x, then along y, rounded to 8 bits between. Throws Error for a size
/// below 1 pixel or above kMaxPixels; the picture between the passes,
/// image.height x width, must stay below that too.
Image resize(const Image& image, int64_t height, int64_t width);

/// Scaled by s = max(height / image.height, width / image.width), so that it
/// covers height x width, and the centre cut out. One side fits; the other has
/// round(s * side) pixels, a half up; if an odd number of them is too many, one
/// more is cut at the bottom or the right. Throws Error as resize does, also
/// when the picture before the cut is too large.
Image cover(const Image& image, int64_t height, int64_t width);

namespace internal {
// Throw an Error that begins with name: for less than 1 pixel or more than
// kMaxPixels; for that or an rgb of the wrong length.
void check_size(const std::string& name, int64_t height, int64_t width);
void check_image(const std::string& name, const Image& image);
}  // namespace internal

}  // namespace aft::io
