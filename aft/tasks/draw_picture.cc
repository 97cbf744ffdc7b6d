// The built-in pictures: a sky of two colours, and on it one to three discs,
// squares or triangles.
#include <algorithm>
#include <cmath>

#include "aft/nn/block.h"
#include "aft/tasks/pictures.h"

namespace aft::tasks {
namespace {

/// Numbers in [0, 1), one after the other.
struct Random {
  uint64_t state;
  double next() {
    state = nn::mix(state, 1);
    return std::ldexp(static_cast<double>(state >> 11), -53);
  }
  double between(double low, double high) {
    return low + (high - low) * next();
  }
};

struct Colour {
  double rgb[3];
};

/// Of the three channels one is strong, one weak: no greys.
Colour vivid(Random& random) {
  const int strong = static_cast<int>(random.next() * 3),
            weak = (strong + 1 + static_cast<int>(random.next() * 2)) % 3;
  Colour c;
  for (double& x : c.rgb) x = random.between(60, 200);
  c.rgb[strong] = random.between(190, 255);
  c.rgb[weak] = random.between(0, 70);
  return c;
}

struct Shape {
  int kind;  // disc, square, triangle
  double y, x, radius, cos, sin;
  Colour colour;

  bool covers(double py, double px) const {
    const double dy = py - y, dx = px - x;
    const double v = cos * dy - sin * dx, u = sin * dy + cos * dx;
    if (kind == 0) return dy * dy + dx * dx < radius * radius;
    if (kind == 1) return std::max(std::abs(u), std::abs(v)) < 0.85 * radius;
    // Three half planes, half the radius from the middle.
    return v < radius / 2 &&
           std::abs(u) * 0.8660254037844386 - v / 2 < radius / 2;
  }
};

}  // namespace

void draw_picture(uint64_t number, int64_t height, int64_t width, uint8_t* to) {
  Random random{nn::mix(number, 0)};
  Colour top, bottom;
  for (int c = 0; c < 3; ++c) {
    top.rgb[c] = random.between(90, 230);
    bottom.rgb[c] = random.between(30, 170);
  }
  Shape shapes[3];
  const int count = 1 + static_cast<int>(random.next() * 3);
  for (int i = 0; i < count; ++i) {
    const double turn = random.between(-0.4, 0.4);
    shapes[i] = {static_cast<int>(random.next() * 3),
                 random.between(0.2, 0.8),
                 random.between(0.2, 0.8),
                 random.between(0.15, 0.35),
                 std::cos(turn),
                 std::sin(turn),
                 vivid(random)};
  }
  constexpr int kSamples = 3;  // a side, for smooth edges
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
          sum[c] += on_top ? on_top->colour.rgb[c]
                           : top.rgb[c] + (bottom.rgb[c] - top.rgb[c]) * py;
      }
      for (const double s : sum)
        *to++ = static_cast<uint8_t>(s / (kSamples * kSamples) + 0.5);
    }
  }
}

}  // namespace aft::tasks
