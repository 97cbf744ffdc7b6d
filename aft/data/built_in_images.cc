// Draws the built-in images: a two-colour sky with one to three discs, squares
// or triangles, or one shape to classify.
#include <algorithm>
#include <cmath>

#include "aft/base/random.h"
#include "aft/data/labelled_images.h"
#include "aft/data/raw_images.h"

namespace aft::data {
namespace {

/// ShapeRandom numbers by base::mix, whose sequence the built-in images depend
/// on.
struct ShapeRandom {
  uint64_t state;
  double next() {
    state = base::mix(state, 1);
    return std::ldexp(static_cast<double>(state >> 11), -53);
  }
  double between(double low, double high) {
    return low + (high - low) * next();
  }
};

struct Colour {
  double rgb[3];
};

/// One channel is strong and one is weak, so the colour is never grey.
Colour vivid(ShapeRandom& random) {
  const int strong = static_cast<int>(random.next() * 3),
            weak = (strong + 1 + static_cast<int>(random.next() * 2)) % 3;
  Colour c;
  for (double& x : c.rgb) x = random.between(60, 200);
  c.rgb[strong] = random.between(190, 255);
  c.rgb[weak] = random.between(0, 70);
  return c;
}

struct Sky {
  Colour top, bottom;

  explicit Sky(ShapeRandom& random) {
    for (int c = 0; c < 3; ++c) {
      top.rgb[c] = random.between(90, 230);
      bottom.rgb[c] = random.between(30, 170);
    }
  }
  double at(double y, int c) const {
    return top.rgb[c] + (bottom.rgb[c] - top.rgb[c]) * y;
  }
};

struct Shape {
  int kind;  // index into kShapes
  double y, x, radius, cos, sin;
  Colour colour;

  bool covers(double py, double px) const {
    const double dy = py - y, dx = px - x, square = dy * dy + dx * dx;
    const double v = cos * dy - sin * dx, u = sin * dy + cos * dx;
    const double least = std::min(std::abs(u), std::abs(v)),
                 most = std::max(std::abs(u), std::abs(v));
    switch (kind) {
      case 0:
        return square < radius * radius;
      case 1:
        return most < 0.85 * radius;
      case 2:  // three half planes at radius / 2 from the centre
        return v < radius / 2 &&
               std::abs(u) * 0.8660254037844386 - v / 2 < radius / 2;
      case 3:
        return square < radius * radius && square > 0.3 * radius * radius;
      case 4:
        return least < 0.3 * radius && most < radius;
      default:  // bars 1, 3 and 5 of a square
        return most < 0.85 * radius &&
               static_cast<int>((v / radius + 0.85) / 0.34) % 2 == 0;
    }
  }
};

/// Later shapes cover earlier ones. Adds uniform noise in [-noise, noise] to
/// each value.
void paint(const Sky& sky, const Shape* shapes, int count, double noise,
           ShapeRandom& random, int64_t height, int64_t width, uint8_t* to) {
  constexpr int kSamples = 3;  // per side, for antialiasing
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      double sum[3] = {0, 0, 0};
      for (int s = 0; s < kSamples * kSamples; ++s) {
        const double py = (static_cast<double>(y) +
                           (s / kSamples + 0.5) / kSamples) /
                          static_cast<double>(height),
                     px = (static_cast<double>(x) +
                           (s % kSamples + 0.5) / kSamples) /
                          static_cast<double>(width);
        const Shape* on_top = nullptr;
        for (int i = 0; i < count; ++i)
          if (shapes[i].covers(py, px)) on_top = &shapes[i];
        for (int c = 0; c < 3; ++c)
          sum[c] += on_top ? on_top->colour.rgb[c] : sky.at(py, c);
      }
      for (const double s : sum) {
        const double value = s / (kSamples * kSamples) + 0.5 +
                             (noise > 0 ? random.between(-noise, noise) : 0);
        *to++ = static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
}

/// Draws the position, the size and the colour; the centre is at least `border`
/// from the sides.
Shape random_shape(int kind, double turn, double border, double least_radius,
                   ShapeRandom& random) {
  return {kind,
          random.between(border, 1 - border),
          random.between(border, 1 - border),
          random.between(least_radius, 0.35),
          std::cos(turn),
          std::sin(turn),
          vivid(random)};
}

}  // namespace

void draw_built_in_image(uint64_t number, int64_t height, int64_t width,
                         uint8_t* to) {
  ShapeRandom random{base::mix(number, 0)};
  const Sky sky(random);
  Shape shapes[3];
  const int count = 1 + static_cast<int>(random.next() * 3);
  for (int i = 0; i < count; ++i) {
    const double turn = random.between(-0.4, 0.4);
    const int kind = static_cast<int>(random.next() * 3);
    shapes[i] = random_shape(kind, turn, 0.2, 0.15, random);
  }
  paint(sky, shapes, count, 0, random, height, width, to);
}

void draw_shape(uint64_t number, int64_t height, int64_t width, uint8_t* to) {
  ShapeRandom random{base::mix(number, 1)};
  const Sky sky(random);
  const double turn = random.between(0, 6.283185307179586);
  const Shape shape = random_shape(static_cast<int>(number % kShapes.size()),
                                   turn, 0.25, 0.12, random);
  paint(sky, &shape, 1, 12, random, height, width, to);
}

}  // namespace aft::data
