// The 15 operations of RandAugment on pictures, to the bit those of Pillow, so
// that a recipe tuned in Python means the same here.
#pragma once

#include <array>
#include <cstdint>

#include "aft/io/image.h"

namespace aft::tasks {

/// Red, green, blue.
using Colour = std::array<uint8_t, 3>;

// Every operation takes a picture of any size and returns one of the same size,
// with the bits of the Pillow call that is named. All throw io::Error, which
// names the operation, for a picture whose rgb does not fit its size, or an
// argument outside its range or not finite. All may be called from many
// threads. For 224 x 224, one that looks at single pixels takes 0.2 ms or so, a
// geometric one 1 ms, rotate 2 ms; those need 16 bytes a pixel meanwhile.

/// ImageOps.autocontrast: every channel stretched to 0 .. 255. A channel of one
/// value stays.
io::Image auto_contrast(io::Image image);

/// ImageOps.equalize: every channel's values spread evenly. A channel of one
/// value stays, as does one with fewer than 255 pixels below its largest value.
io::Image equalize(io::Image image);

/// ImageOps.invert: 255 - v.
io::Image invert(io::Image image);

/// ImageOps.posterize: the highest bits, 0 to 8 of them; the others are 0.
io::Image posterize(io::Image image, int64_t bits);

/// ImageOps.solarize: 255 - v from threshold upwards. 256 changes nothing.
io::Image solarize(io::Image image, int64_t threshold);

/// min(v + add, 255) below threshold; add >= 0. Image.point in Pillow.
io::Image solarize_add(io::Image image, int64_t add, int64_t threshold = 128);

/// ImageEnhance.Color, Contrast, Brightness, Sharpness: from (0) grey, the mean
/// grey, black, blurred, over (1) the picture itself to more of it. factor is
/// at most 1e6 on either side of 0.
io::Image colour(io::Image image, double factor);
io::Image contrast(io::Image image, double factor);
io::Image brightness(io::Image image, double factor);
io::Image sharpness(io::Image image, double factor);

/// Image.rotate, about the centre, counter-clockwise, BICUBIC (its own: a = -1,
/// 4 x 4 pixels, cut to 8 bits, not rounded). What comes from outside of the
/// picture is fill.
io::Image rotate(const io::Image& image, double degrees, Colour fill);

/// Image.transform, AFFINE, BICUBIC: pixel (y, x) comes from
///   shear_x  (y, x + factor y)     translate_x  (y, x + pixels)
///   shear_y  (y + factor x, x)     translate_y  (y + pixels, x)
/// counted from the corner of the picture to the centre of the pixel.
io::Image shear_x(const io::Image& image, double factor, Colour fill);
io::Image shear_y(const io::Image& image, double factor, Colour fill);
io::Image translate_x(const io::Image& image, double pixels, Colour fill);
io::Image translate_y(const io::Image& image, double pixels, Colour fill);

}  // namespace aft::tasks
