// The random transforms of timm and torchvision, with our own generator.
#include "aft/data/augment.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "aft/data/image_input.h"
#include "aft/io/safetensors.h"

namespace aft::data {
namespace {

using base::Random;
using io::Image;
using io::internal::check_image;
using io::internal::check_size;

void check(bool good, const std::string& expected, double got) {
  if (good) return;
  throw io::Error(expected + ", got " + std::to_string(got));
}

void check_inside(const std::string& name, const Box& box, int64_t height,
                  int64_t width) {
  const auto within = [](int64_t first, int64_t length, int64_t n) {
    return first >= 0 && length >= 0 && length <= n && first <= n - length;
  };
  if (within(box.top, box.height, height) &&
      within(box.left, box.width, width)) {
    return;
  }
  throw io::Error(
      name + ": the box must lie in " + std::to_string(height) + " x " +
      std::to_string(width) + ", got " + std::to_string(box.height) + " x " +
      std::to_string(box.width) + " at (" + std::to_string(box.top) + ", " +
      std::to_string(box.left) + ")");
}

// Draws the sides of a box whose fraction of the pixels is uniform in
// [min_area, max_area] and whose ratio is log-uniform in [1 / max_ratio,
// max_ratio].
Box draw_sides(int64_t pixels, double min_area, double max_area,
               double max_ratio, Random& random) {
  const double area =
      random.uniform(min_area, max_area) * static_cast<double>(pixels);
  const double bound = std::log(max_ratio);
  const double ratio = std::exp(random.uniform(-bound, bound));
  Box box;
  box.width = std::lround(std::sqrt(area * ratio));
  box.height = std::lround(std::sqrt(area / ratio));
  return box;
}

}  // namespace

// ---- One image --------------------------------------------------------------

Image augment_image(const Image& image, int64_t height, int64_t width,
                    const AugmentConfig& config, Random& random) {
  check_image("augment_image", image);
  Image out;
  if (config.crop_min == 0) {
    out = io::cover(image, height, width);
  } else {
    const Box box = random_crop(image.height, image.width, config.crop_min,
                                config.crop_max, random);
    out = io::resize(crop(image, box), height, width);
  }
  if (config.flip && random.below(2) == 1) flip(out);
  return rand_augment(std::move(out), config.rand_ops, config.rand_magnitude,
                      config.rand_std, random);
}

void training_input(const Image& image, int64_t height, int64_t width,
                    const AugmentConfig& config, uint64_t seed, float* to) {
  Random random(seed);
  normalise(augment_image(image, height, width, config, random), to);
  random_erase(to, height, width, config.erase, random);
}

void flip_and_shift(const uint8_t* from, int64_t height, int64_t width,
                    bool flip, int64_t shift, uint64_t random, uint8_t* to) {
  const bool mirror = flip && (random & 1) != 0;
  const uint64_t values = 2 * static_cast<uint64_t>(shift) + 1;
  const int add =
      static_cast<int>((random >> 1) % values) - static_cast<int>(shift);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* pixel =
          from + 3 * (y * width + (mirror ? width - 1 - x : x));
      for (int c = 0; c < 3; ++c)
        *to++ = static_cast<uint8_t>(std::clamp(pixel[c] + add, 0, 255));
    }
  }
}

Box random_crop(int64_t height, int64_t width, double min_area, double max_area,
                Random& random) {
  check_size("random_crop", height, width);
  check(min_area > 0 && min_area <= 1,
        "random_crop: min_area must be above 0 and at most 1", min_area);
  check(max_area >= min_area && max_area <= 1,
        "random_crop: max_area must be min_area to 1", max_area);
  constexpr double kRatio = 4.0 / 3.0;
  for (int tries = 0; tries < 10; ++tries) {
    Box box = draw_sides(height * width, min_area, max_area, kRatio, random);
    if (box.height < 1 || box.height > height || box.width < 1 ||
        box.width > width) {
      continue;
    }
    box.top = random.below(height - box.height + 1);
    box.left = random.below(width - box.width + 1);
    return box;
  }
  const auto most = [](int64_t other) {
    return static_cast<int64_t>(
        std::lround(kRatio * static_cast<double>(other)));
  };
  Box box;
  box.height = std::min(height, most(width));
  box.width = std::min(width, most(height));
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

Image crop(const Image& image, const Box& box) {
  check_image("crop", image);
  check_inside("crop", box, image.height, image.width);
  check_size("crop: the box", box.height, box.width);
  Image out{box.height, box.width,
            std::vector<uint8_t>(box.height * box.width * 3)};
  for (int64_t y = 0; y < box.height; ++y) {
    std::copy_n(&image.rgb[((box.top + y) * image.width + box.left) * 3],
                box.width * 3, &out.rgb[y * box.width * 3]);
  }
  return out;
}

void flip(Image& image) {
  check_image("flip", image);
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* left = &image.rgb[y * image.width * 3];
    uint8_t* right = left + (image.width - 1) * 3;
    for (; left < right; left += 3, right -= 3)
      std::swap_ranges(left, left + 3, right);
  }
}

Image apply_op(Op op, Image image, double magnitude, bool negative) {
  check(magnitude >= 0 && magnitude <= 10,
        "apply_op: magnitude must be 0 to 10", magnitude);
  const double level = magnitude / 10;
  const double sign = negative ? -1 : 1;
  const double factor = std::max(0.1, 1 + sign * (level * 0.9));
  const auto whole = [=](double most) {
    return static_cast<int64_t>(level * most);
  };
  const auto moved = [=](int64_t side) {
    return sign * (level * 0.45) * static_cast<double>(side);
  };
  switch (op) {
    case Op::kAutoContrast:
      return auto_contrast(std::move(image));
    case Op::kEqualize:
      return equalize(std::move(image));
    case Op::kInvert:
      return invert(std::move(image));
    case Op::kRotate:
      return rotate(image, sign * (level * 30), kMeanColour);
    case Op::kPosterize:
      return posterize(std::move(image), 4 - whole(4));
    case Op::kSolarize:
      return solarize(std::move(image), 256 - whole(256));
    case Op::kSolarizeAdd:
      return solarize_add(std::move(image), whole(110));
    case Op::kColour:
      return colour(std::move(image), factor);
    case Op::kContrast:
      return contrast(std::move(image), factor);
    case Op::kBrightness:
      return brightness(std::move(image), factor);
    case Op::kSharpness:
      return sharpness(std::move(image), factor);
    case Op::kShearX:
      return shear_x(image, sign * (level * 0.3), kMeanColour);
    case Op::kShearY:
      return shear_y(image, sign * (level * 0.3), kMeanColour);
    case Op::kTranslateX:
      return translate_x(image, moved(image.width), kMeanColour);
    case Op::kTranslateY:
      return translate_y(image, moved(image.height), kMeanColour);
  }
  check(false, "apply_op: op must be one of the 15",
        static_cast<double>(static_cast<int>(op)));
  return image;
}

Image rand_augment(Image image, int64_t ops, double magnitude, double deviation,
                   Random& random) {
  check_image("rand_augment", image);
  check(ops >= 0, "rand_augment: ops must be at least 0",
        static_cast<double>(ops));
  check(magnitude >= 0 && magnitude <= 10,
        "rand_augment: magnitude must be 0 to 10", magnitude);
  check(deviation >= 0 && std::isfinite(deviation),
        "rand_augment: deviation must be finite and at least 0", deviation);
  if (magnitude == 0) return image;
  for (int64_t i = 0; i < ops; ++i) {
    const auto op = static_cast<Op>(random.below(kNumOps));
    const bool on = random.below(2) == 1;
    const bool negative = random.below(2) == 1;
    const double m = magnitude + deviation * random.normal();
    if (!on) continue;
    image = apply_op(op, std::move(image), std::clamp(m, 0.0, 10.0), negative);
  }
  return image;
}

void random_erase(float* x, int64_t height, int64_t width, double p,
                  Random& random) {
  check_size("random_erase", height, width);
  check(p >= 0 && p <= 1, "random_erase: p must be 0 to 1", p);
  if (random.uniform() >= p) return;
  for (int tries = 0; tries < 10; ++tries) {
    Box box = draw_sides(height * width, 0.02, 1.0 / 3.0, 1 / 0.3, random);
    if (box.height >= height || box.width >= width) continue;
    box.top = random.below(height - box.height + 1);
    box.left = random.below(width - box.width + 1);
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t y = 0; y < box.height; ++y) {
        float* row = x + (c * height + box.top + y) * width + box.left;
        for (int64_t i = 0; i < box.width; ++i)
          row[i] = static_cast<float>(random.normal());
      }
    }
    return;
  }
}

// ---- A batch ----------------------------------------------------------------

Mix draw_mix(int64_t height, int64_t width, double mixup, double cutmix,
             Random& random) {
  check_size("draw_mix", height, width);
  for (const double alpha : {mixup, cutmix}) {
    check(alpha == 0 || (alpha >= 1e-300 && alpha <= 1e300),
          "draw_mix: mixup and cutmix must be 0, or 1e-300 to 1e300", alpha);
  }
  Mix mix;
  if (mixup == 0 && cutmix == 0) return mix;
  mix.cut = cutmix > 0 && (mixup == 0 || random.below(2) == 1);
  const double alpha = mix.cut ? cutmix : mixup;
  mix.lambda = random.beta(alpha, alpha);
  if (!mix.cut) return mix;
  const double share = std::sqrt(1 - mix.lambda);
  // Sets first and length to [centre - half, centre + half) clipped to [0, n).
  const auto part = [&](int64_t n, int64_t& first, int64_t& length) {
    const auto half = static_cast<int64_t>(share * static_cast<double>(n)) / 2;
    const int64_t centre = random.below(n);
    first = std::max<int64_t>(centre - half, 0);
    length = std::min(centre + half, n) - first;
  };
  part(height, mix.box.top, mix.box.height);
  part(width, mix.box.left, mix.box.width);
  mix.lambda = 1 - static_cast<double>(mix.box.height * mix.box.width) /
                       static_cast<double>(height * width);
  return mix;
}

void apply_mix(const Mix& mix, float* x, int64_t B, int64_t height,
               int64_t width) {
  check_size("apply_mix", height, width);
  check(B >= 0, "apply_mix: B must be at least 0", static_cast<double>(B));
  check(mix.lambda >= 0 && mix.lambda <= 1, "apply_mix: lambda must be 0 to 1",
        mix.lambda);
  if (mix.cut) check_inside("apply_mix", mix.box, height, width);
  const int64_t size = 3 * height * width;
  const auto own = static_cast<float>(mix.lambda);
  const auto other = static_cast<float>(1 - mix.lambda);
  for (int64_t b = 0; b < B / 2; ++b) {
    float* first = x + 2 * b * size;
    float* second = first + size;
    if (!mix.cut) {
      for (int64_t i = 0; i < size; ++i) {
        const float v = first[i], w = second[i];
        first[i] = own * v + other * w;
        second[i] = own * w + other * v;
      }
      continue;
    }
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t y = 0; y < mix.box.height; ++y) {
        const int64_t at =
            (c * height + mix.box.top + y) * width + mix.box.left;
        std::swap_ranges(first + at, first + at + mix.box.width, second + at);
      }
    }
  }
}

}  // namespace aft::data
