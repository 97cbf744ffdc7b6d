// The 15 operations of RandAugment, bit-identical to Pillow's, so that recipes
// tuned in Python carry over.
#pragma once

#include <array>
#include <cstdint>

#include "aft/io/image.h"

namespace aft::data {

/// Red, green, blue.
using Colour = std::array<uint8_t, 3>;

// Every operation takes an image of any size and returns one of the same size,
// bit-identical to the named Pillow call. All throw io::Error, which names the
// operation, if the rgb of the image does not match its size or an argument is
// out of range or not finite. All are thread-safe. For 224 x 224, a per-pixel
// operation takes about 0.2 ms, a geometric one 1 ms and rotate 2 ms; geometric
// operations use 16 bytes of scratch memory per pixel.

/// ImageOps.autocontrast: stretches every channel to 0 .. 255. A constant
/// channel is unchanged.
io::Image auto_contrast(io::Image image);

/// ImageOps.equalize: equalises the histogram of every channel. A constant
/// channel is unchanged, as is one with fewer than 255 pixels below its
/// maximum.
io::Image equalize(io::Image image);

/// ImageOps.invert: 255 - v.
io::Image invert(io::Image image);

/// ImageOps.posterize: keeps the highest `bits` bits, 0 to 8, and clears the
/// others.
io::Image posterize(io::Image image, int64_t bits);

/// ImageOps.solarize: 255 - v for v >= threshold. 256 changes nothing.
io::Image solarize(io::Image image, int64_t threshold);

/// min(v + add, 255) for v < threshold; add >= 0. Image.point in Pillow.
io::Image solarize_add(io::Image image, int64_t add, int64_t threshold = 128);

/// ImageEnhance.Color, Contrast, Brightness, Sharpness. factor 0 gives
/// greyscale, the mean grey, black or blurred respectively; 1 gives the image
/// itself; larger values extrapolate. |factor| is at most 1e6.
io::Image colour(io::Image image, double factor);
io::Image contrast(io::Image image, double factor);
io::Image brightness(io::Image image, double factor);
io::Image sharpness(io::Image image, double factor);

/// Image.rotate: counter-clockwise about the centre, with Pillow's BICUBIC (a =
/// -1, 4 x 4 pixels, truncated to 8 bits, not rounded). Pixels from outside the
/// image are `fill`.
io::Image rotate(const io::Image& image, double degrees, Colour fill);

/// Image.transform, AFFINE, BICUBIC: pixel (y, x) is read from
///   shear_x  (y, x + factor y)     translate_x  (y, x + pixels)
///   shear_y  (y + factor x, x)     translate_y  (y + pixels, x)
/// where coordinates are those of pixel centres, measured from the image
/// corner.
io::Image shear_x(const io::Image& image, double factor, Colour fill);
io::Image shear_y(const io::Image& image, double factor, Colour fill);
io::Image translate_x(const io::Image& image, double pixels, Colour fill);
io::Image translate_y(const io::Image& image, double pixels, Colour fill);

}  // namespace aft::data
