// Turns an image into the input of an image network, as torchvision and timm do
// for evaluation. Torch-free; needs no training task. Training images:
// augment.h.
#pragma once

#include <cstdint>

#include "aft/io/image.h"

namespace aft::data {

/// Scales an image (bicubic) to cover height / crop x width / crop and crops
/// the centre of height x width; crop is in (0, 1]. For a square, the short
/// side becomes floor(size / crop). Throws io::Error.
io::Image centre_crop(const io::Image& image, int64_t height, int64_t width,
                      double crop);

/// Subtracts ImageNet's mean from each channel and divides by its standard
/// deviation. `to` is [3, image.height, image.width], one plane per channel.
void normalise(const io::Image& image, float* to);

/// centre_crop and normalise. `to` is [3, height, width]. Throws io::Error.
void evaluation_input(const io::Image& image, int64_t height, int64_t width,
                      double crop, float* to);

}  // namespace aft::data
