// Resizing as in Pillow: output i, centred at (i + 1/2) s in the input with s =
// from / to, is sum_j w_j x_j / sum_j w_j, with w_j = bicubic((j + 1/2 -
// centre) / max(s, 1)) in fixed point.
#include <algorithm>
#include <cmath>

#include "aft/io/image.h"
#include "aft/io/safetensors.h"

namespace aft::io {
namespace {

using internal::check_image;
using internal::check_size;

constexpr int kBits = 22;  // fraction bits of a weight, as in Pillow
constexpr int32_t kHalf = 1 << (kBits - 1);

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255));
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// One output position is the sum of weight[k] * input[first + k].
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weight;
};

// The taps of output i of `to` from an input of size `from`. The order of the
// operations is Pillow's, since it affects the last bit of a weight.
Taps taps(int64_t from, int64_t to, int64_t i) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double wide = std::max(scale, 1.0);
  const double reach = 2 * wide;
  const double centre = (static_cast<double>(i) + 0.5) * scale;
  const double low = centre - reach + 0.5, high = centre + reach + 0.5;
  Taps out;
  out.first = std::max<int64_t>(0, static_cast<int64_t>(low));
  const int64_t end = std::min(from, static_cast<int64_t>(high));
  std::vector<double> w;
  double sum = 0;
  for (int64_t j = out.first; j < end; ++j) {
    w.push_back(
        bicubic((static_cast<double>(j) - centre + 0.5) * (1.0 / wide)));
    sum += w.back();
  }
  for (const double x : w) {
    const double fixed = x / sum * (1 << kBits);
    out.weight.push_back(static_cast<int32_t>(fixed + (x < 0 ? -0.5 : 0.5)));
  }
  return out;
}

Image resize_x(const Image& in, int64_t width) {
  Image out{in.height, width, std::vector<uint8_t>(in.height * width * 3)};
  // In blocks of columns: the weights of a very wide image are larger than the
  // image.
  constexpr int64_t kBlock = 64;
  for (int64_t x0 = 0; x0 < width; x0 += kBlock) {
    std::vector<Taps> block;
    for (int64_t x = x0; x < std::min(x0 + kBlock, width); ++x) {
      block.push_back(taps(in.width, width, x));
    }
    for (int64_t y = 0; y < in.height; ++y) {
      uint8_t* to = &out.rgb[(y * width + x0) * 3];
      for (const Taps& t : block) {
        const uint8_t* from = &in.rgb[(y * in.width + t.first) * 3];
        int32_t r = kHalf, g = kHalf, b = kHalf;
        for (const int32_t w : t.weight) {
          r += w * from[0];
          g += w * from[1];
          b += w * from[2];
          from += 3;
        }
        *to++ = rounded(r);
        *to++ = rounded(g);
        *to++ = rounded(b);
      }
    }
  }
  return out;
}

Image resize_y(const Image& in, int64_t height) {
  const int64_t stride = in.width * 3;
  Image out{height, in.width, std::vector<uint8_t>(height * stride)};
  std::vector<int32_t> sum(stride);
  for (int64_t y = 0; y < height; ++y) {
    const Taps t = taps(in.height, height, y);
    std::fill(sum.begin(), sum.end(), kHalf);
    const uint8_t* from = &in.rgb[t.first * stride];
    for (const int32_t w : t.weight) {
      for (int64_t i = 0; i < stride; ++i) sum[i] += w * from[i];
      from += stride;
    }
    std::transform(sum.begin(), sum.end(), &out.rgb[y * stride], rounded);
  }
  return out;
}

}  // namespace

namespace internal {

void check_size(const std::string& name, int64_t height, int64_t width) {
  if (height >= 1 && width >= 1 && height <= kMaxPixels / width) return;
  throw Error(name + ": height x width must be at least 1 x 1 and at most " +
              std::to_string(kMaxPixels) + " pixels, got " +
              std::to_string(height) + " x " + std::to_string(width));
}

void check_image(const std::string& name, const Image& image) {
  check_size(name, image.height, image.width);
  const auto bytes = static_cast<size_t>(image.height * image.width * 3);
  if (image.rgb.size() == bytes) return;
  throw Error(name +
              ": rgb must have height * width * 3 = " + std::to_string(bytes) +
              " bytes, got " + std::to_string(image.rgb.size()));
}

}  // namespace internal

Image resize(const Image& image, int64_t height, int64_t width) {
  check_image("resize", image);
  check_size("resize: the new size", height, width);
  check_size("resize: the image between the passes", image.height, width);
  if (width == image.width) {
    return height == image.height ? image : resize_y(image, height);
  }
  Image wide = resize_x(image, width);
  if (height == image.height) return wide;
  return resize_y(wide, height);
}

Image cover(const Image& image, int64_t height, int64_t width) {
  check_image("cover", image);
  check_size("cover: the new size", height, width);
  const int64_t h = image.height, w = image.width;
  int64_t full_height = height, full_width = width;
  if (height * w >= width * h) {
    full_width = (2 * w * height + h) / (2 * h);
  } else {
    full_height = (2 * h * width + w) / (2 * w);
  }
  check_size("cover: the image before cropping", full_height, full_width);
  const Image full = resize(image, full_height, full_width);
  const int64_t top = (full_height - height) / 2;
  const int64_t left = (full_width - width) / 2;
  Image out{height, width, std::vector<uint8_t>(height * width * 3)};
  for (int64_t y = 0; y < height; ++y) {
    std::copy_n(&full.rgb[((top + y) * full_width + left) * 3], width * 3,
                &out.rgb[y * width * 3]);
  }
  return out;
}

}  // namespace aft::io
