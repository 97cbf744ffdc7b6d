// Pillow's operations in Pillow's arithmetic: float where Pillow uses float,
// and the same order of summation where it affects the last bit. Fusing a * b +
// c into one rounding would break this, so on machines with FMA this file must
// be compiled with -ffp-contract=off.
#include "aft/data/image_ops.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "aft/io/safetensors.h"

namespace aft::data {
namespace {

using io::Image;
using io::internal::check_image;

void check_finite(const std::string& name, double value) {
  if (std::isfinite(value)) return;
  throw io::Error(name + ": the argument must be finite, got " +
                  std::to_string(value));
}

// Keeps every intermediate value of a blend within int.
void check_factor(const std::string& name, double factor) {
  if (std::abs(factor) <= 1e6) return;
  throw io::Error(name + ": factor must be within +-1e6, got " +
                  std::to_string(factor));
}

void check_range(const std::string& name, int64_t value, int64_t low,
                 int64_t high) {
  if (value >= low && value <= high) return;
  throw io::Error(name + " must be " + std::to_string(low) + " to " +
                  std::to_string(high) + ", got " + std::to_string(value));
}

// ---- Per-pixel operations ---------------------------------------------------

using Table = std::array<uint8_t, 256>;

template <typename F>  // F: maps a value 0 .. 255 to an integer
Table table(const F& f) {
  Table out;
  for (int v = 0; v < 256; ++v)
    out[v] = static_cast<uint8_t>(std::clamp<int64_t>(f(v), 0, 255));
  return out;
}

Image mapped(Image image, const std::array<Table, 3>& tables) {
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    for (size_t c = 0; c < 3; ++c)
      image.rgb[i + c] = tables[c][image.rgb[i + c]];
  }
  return image;
}

Image mapped(Image image, const Table& t) {
  return mapped(std::move(image), std::array<Table, 3>{t, t, t});
}

using Counts = std::array<int64_t, 256>;

std::array<Counts, 3> histogram(const Image& image) {
  std::array<Counts, 3> out{};
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    for (size_t c = 0; c < 3; ++c) ++out[c][image.rgb[i + c]];
  }
  return out;
}

int same(int v) { return v; }

Table stretched(const Counts& counts) {
  int low = 0, high = 255;
  while (counts[low] == 0) ++low;  // terminates: there is at least one pixel
  while (counts[high] == 0) --high;
  if (high == low) return table(same);
  const double scale = 255.0 / (high - low);
  const double offset = -low * scale;
  return table([=](int v) { return static_cast<int>(v * scale + offset); });
}

Table equalized(const Counts& counts) {
  int last = 255;
  while (counts[last] == 0) --last;
  int64_t below = 0;
  for (int v = 0; v < last; ++v) below += counts[v];
  const int64_t step = below / 255;
  if (step == 0) return table(same);
  int64_t n = step / 2;
  return table([&](int v) {
    const int64_t out = n / step;
    n += counts[v];
    return out;
  });
}

// ---- Blends -----------------------------------------------------------------

// Truncates before clamping, which changes nothing in 0 .. 255: integer
// clamping compiles without branches, which noisy data would mispredict.
template <typename T>
uint8_t cut(T v) {
  int i = static_cast<int>(v);
  i = i > 0 ? i : 0;
  return static_cast<uint8_t>(i < 255 ? i : 255);
}

uint8_t blend(int from, int to, float factor) {
  return cut(static_cast<float>(from) + factor * static_cast<float>(to - from));
}

int grey(const uint8_t* rgb) {
  return (19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 0x8000) >> 16;
}

Table from_level(int level, double factor) {
  const auto f = static_cast<float>(factor);
  return table([=](int v) { return blend(level, v, f); });
}

// ---- Geometry ---------------------------------------------------------------

// Output pixel (x, y) is read from (xx x + xy y + x0, yx x + yy y + y0).
// Coordinates are those of pixel centres, measured from the image corner.
struct Affine {
  double xx, xy, x0, yx, yy, y0;
};

// Explicit vectors of red, green, blue and 0: compilers process three channels
// one by one, which takes twice as long.
using Four = float __attribute__((vector_size(16)));
using Pair = double __attribute__((vector_size(16)));
struct Doubles {
  Pair rg, b0;
};

Doubles doubles(Four v) { return {Pair{v[0], v[1]}, Pair{v[2], v[3]}}; }

std::vector<Four> vectors(const Image& image) {
  std::vector<Four> out(image.height * image.width);
  const uint8_t* rgb = image.rgb.data();
  for (Four& pixel : out) {
    pixel = Four{static_cast<float>(rgb[0]), static_cast<float>(rgb[1]),
                 static_cast<float>(rgb[2]), 0};
    rgb += 3;
  }
  return out;
}

Pair polynomial(Pair p1, Pair p2, Pair p3, Pair p4, double d) {
  return p1 + d * (p2 + d * (p3 + d * p4));
}

// Cubic convolution of v1 .. v4 at -1, 0, 1, 2, with a = -1.
Pair cubic(Pair v1, Pair v2, Pair v3, Pair v4, double d) {
  return polynomial(v2, v3 - v1, 2 * (v1 - v2) + v3 - v4, v2 - v1 - v3 + v4, d);
}

// The same for pixels, whose values are integers: float sums are exact.
Doubles cubic(Four v1, Four v2, Four v3, Four v4, double d) {
  const Doubles p1 = doubles(v2), p2 = doubles(v3 - v1),
                p3 = doubles(2 * (v1 - v2) + v3 - v4),
                p4 = doubles(v2 - v1 - v3 + v4);
  return {polynomial(p1.rg, p2.rg, p3.rg, p4.rg, d),
          polynomial(p1.b0, p2.b0, p3.b0, p4.b0, d)};
}

// The indices of the four pixels around a coordinate in [0, n), clamped to the
// border. d in [0, 1] is the distance from the second pixel.
struct Around {
  Around(double place, int n) {
    place -= 0.5;
    const int at = place >= 0 ? static_cast<int>(place) : -1;
    d = place - at;
    for (int k = 0; k < 4; ++k) {
      int i = at - 1 + k;
      i = i > 0 ? i : 0;
      index[k] = i < n ? i : n - 1;
    }
  }
  int64_t index[4];
  double d;
};

// If d = 0 along y (shear_x, translate_x) or x, one row or column is enough.
// The result is bit-identical, since the other terms are multiplied by 0.
Doubles sample(const Four* pixels, int64_t width, const Around& x,
               const Around& y) {
  const auto at = [&](int i, int j) {
    return pixels[y.index[i] * width + x.index[j]];
  };
  const auto row = [&](int i) {
    return cubic(at(i, 0), at(i, 1), at(i, 2), at(i, 3), x.d);
  };
  if (y.d == 0) return row(1);
  if (x.d == 0) return cubic(at(0, 1), at(1, 1), at(2, 1), at(3, 1), y.d);
  const Doubles v1 = row(0), v2 = row(1), v3 = row(2), v4 = row(3);
  return {cubic(v1.rg, v2.rg, v3.rg, v4.rg, y.d),
          cubic(v1.b0, v2.b0, v3.b0, v4.b0, y.d)};
}

Image transform(const Image& image, const Affine& from, Colour fill) {
  Image out{image.height, image.width, std::vector<uint8_t>(image.rgb.size())};
  const auto height = static_cast<int>(image.height);
  const auto width = static_cast<int>(image.width);
  const std::vector<Four> pixels = vectors(image);
  uint8_t* to = out.rgb.data();
  for (int i = 0; i < height; ++i) {
    const double y = i + 0.5;
    const double row_x = from.xy * y, row_y = from.yy * y;
    for (int j = 0; j < width; ++j, to += 3) {
      const double x = j + 0.5;
      const double source_x = from.xx * x + row_x + from.x0;
      const double source_y = from.yx * x + row_y + from.y0;
      if (source_x >= 0 && source_x < width && source_y >= 0 &&
          source_y < height) {
        const Doubles v =
            sample(pixels.data(), width, {source_x, width}, {source_y, height});
        to[0] = cut(v.rg[0]);
        to[1] = cut(v.rg[1]);
        to[2] = cut(v.b0[0]);
      } else {
        std::copy_n(fill.begin(), 3, to);
      }
    }
  }
  return out;
}

// Rounds to 15 decimals, which removes differences between libms in sin and
// cos. Goes through text, as Python's round does: multiplying by 1e15 would
// round as well.
double rounded15(double v) {
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof(text), v, std::chars_format::fixed, 15);
  std::from_chars(text, end.ptr, v);
  return v;
}

}  // namespace

Image auto_contrast(Image image) {
  check_image("auto_contrast", image);
  const auto counts = histogram(image);
  return mapped(std::move(image), {stretched(counts[0]), stretched(counts[1]),
                                   stretched(counts[2])});
}

Image equalize(Image image) {
  check_image("equalize", image);
  const auto counts = histogram(image);
  return mapped(std::move(image), {equalized(counts[0]), equalized(counts[1]),
                                   equalized(counts[2])});
}

Image invert(Image image) {
  check_image("invert", image);
  return mapped(std::move(image), table([](int v) { return 255 - v; }));
}

Image posterize(Image image, int64_t bits) {
  check_image("posterize", image);
  check_range("posterize: bits", bits, 0, 8);
  const int mask = ~((1 << (8 - bits)) - 1);
  return mapped(std::move(image), table([=](int v) { return v & mask; }));
}

Image solarize(Image image, int64_t threshold) {
  check_image("solarize", image);
  check_range("solarize: threshold", threshold, 0, 256);
  return mapped(std::move(image),
                table([=](int v) { return v < threshold ? v : 255 - v; }));
}

Image solarize_add(Image image, int64_t add, int64_t threshold) {
  check_image("solarize_add", image);
  check_range("solarize_add: add", add, 0, 255);
  check_range("solarize_add: threshold", threshold, 0, 256);
  return mapped(std::move(image),
                table([=](int v) { return v < threshold ? v + add : v; }));
}

Image colour(Image image, double factor) {
  check_image("colour", image);
  check_factor("colour", factor);
  const auto f = static_cast<float>(factor);
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    uint8_t* rgb = &image.rgb[i];
    const int level = grey(rgb);
    for (int c = 0; c < 3; ++c) rgb[c] = blend(level, rgb[c], f);
  }
  return image;
}

Image contrast(Image image, double factor) {
  check_image("contrast", image);
  check_factor("contrast", factor);
  int64_t sum = 0;
  for (size_t i = 0; i < image.rgb.size(); i += 3) sum += grey(&image.rgb[i]);
  const int64_t pixels = image.height * image.width;
  const auto mean = static_cast<int>((2 * sum + pixels) / (2 * pixels));
  return mapped(std::move(image), from_level(mean, factor));
}

Image brightness(Image image, double factor) {
  check_image("brightness", image);
  check_factor("brightness", factor);
  return mapped(std::move(image), from_level(0, factor));
}

Image sharpness(Image image, double factor) {
  check_image("sharpness", image);
  check_factor("sharpness", factor);
  const auto f = static_cast<float>(factor);
  const int64_t stride = image.width * 3;
  // The blur excludes the border, so border pixels do not depend on the factor.
  Image out = image;
  for (int64_t y = 1; y + 1 < image.height; ++y) {
    const uint8_t* row = &image.rgb[y * stride];
    uint8_t* to = &out.rgb[y * stride];
    for (int64_t i = 3; i + 3 < stride; ++i) {
      const uint8_t* p = row + i;
      const int ring = p[-stride - 3] + p[-stride] + p[-stride + 3] + p[-3] +
                       p[3] + p[stride - 3] + p[stride] + p[stride + 3];
      // Pillow sums floats; a multiple of 1/13 is never close enough to 1/2 for
      // the difference to matter.
      const int blurred = (2 * (ring + 5 * p[0]) + 13) / 26;
      to[i] = blend(blurred, p[0], f);
    }
  }
  return out;
}

Image rotate(const Image& image, double degrees, Colour fill) {
  check_image("rotate", image);
  check_finite("rotate", degrees);
  double turn = std::fmod(degrees, 360.0);
  if (turn < 0) turn += 360.0;
  constexpr double kPi = 3.141592653589793;
  const double angle = -(turn * (kPi / 180.0));
  const double c = rounded15(std::cos(angle));
  const double s = rounded15(std::sin(angle));
  const double x = static_cast<double>(image.width) / 2.0;
  const double y = static_cast<double>(image.height) / 2.0;
  return transform(
      image, {c, s, c * -x + s * -y + x, -s, c, -s * -x + c * -y + y}, fill);
}

Image shear_x(const Image& image, double factor, Colour fill) {
  check_image("shear_x", image);
  check_finite("shear_x", factor);
  return transform(image, {1, factor, 0, 0, 1, 0}, fill);
}

Image shear_y(const Image& image, double factor, Colour fill) {
  check_image("shear_y", image);
  check_finite("shear_y", factor);
  return transform(image, {1, 0, 0, factor, 1, 0}, fill);
}

Image translate_x(const Image& image, double pixels, Colour fill) {
  check_image("translate_x", image);
  check_finite("translate_x", pixels);
  return transform(image, {1, 0, pixels, 0, 1, 0}, fill);
}

Image translate_y(const Image& image, double pixels, Colour fill) {
  check_image("translate_y", image);
  check_finite("translate_y", pixels);
  return transform(image, {1, 0, 0, 0, 1, pixels}, fill);
}

}  // namespace aft::data
