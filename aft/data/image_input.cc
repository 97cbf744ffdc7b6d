#include "aft/data/image_input.h"

#include <cmath>

#include "aft/data/augment.h"

namespace aft::data {
namespace {

// ImageNet's, for channels in [0, 1].
constexpr float kMean[] = {0.485f, 0.456f, 0.406f},
                kStd[] = {0.229f, 0.224f, 0.225f};

}  // namespace

io::Image centre_crop(const io::Image& image, int64_t height, int64_t width,
                      double crop) {
  // As in torchvision: the fitting side is floor(size / crop), the other one is
  // truncated, and half pixels of the crop offset are rounded to even.
  const double h = static_cast<double>(image.height),
               w = static_cast<double>(image.width),
               want_h = std::floor(static_cast<double>(height) / crop),
               want_w = std::floor(static_cast<double>(width) / crop);
  const bool by_height = want_h * w >= want_w * h;
  const int64_t new_h = static_cast<int64_t>(
                    by_height ? want_h : std::floor(want_w * h / w)),
                new_w = static_cast<int64_t>(
                    by_height ? std::floor(want_h * w / h) : want_w);
  const bool same = new_h == image.height && new_w == image.width;
  const io::Image scaled = same ? image : io::resize(image, new_h, new_w);
  const auto start = [](int64_t all, int64_t part) {
    return static_cast<int64_t>(
        std::nearbyint(static_cast<double>(all - part) / 2));
  };
  return data::crop(scaled,
                    {start(new_h, height), start(new_w, width), height, width});
}

void normalise(const io::Image& image, float* to) {
  const int64_t n = image.height * image.width;
  for (int c = 0; c < 3; ++c) {
    const float scale = 1 / (255 * kStd[c]), shift = kMean[c] / kStd[c];
    const uint8_t* from = image.rgb.data() + c;
    float* plane = to + c * n;
    for (int64_t i = 0; i < n; ++i)
      plane[i] = static_cast<float>(from[3 * i]) * scale - shift;
  }
}

void evaluation_input(const io::Image& image, int64_t height, int64_t width,
                      double crop, float* to) {
  normalise(centre_crop(image, height, width, crop), to);
}

}  // namespace aft::data
