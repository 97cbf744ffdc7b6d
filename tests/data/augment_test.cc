// The random parts of the augmentation: distributions of what is drawn, and its
// effect on an image. The operations themselves: image_ops_test.cc.
#include "aft/data/augment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/data/statistics.h"

namespace aft::data {
namespace {

using io::Image;

Image noise(int64_t height, int64_t width, uint64_t seed = 1) {
  base::Random random(seed);
  Image image{height, width, std::vector<uint8_t>(height * width * 3)};
  for (uint8_t& v : image.rgb) v = static_cast<uint8_t>(random.below(256));
  return image;
}

// ---- Crop and flip ----------------------------------------------------------

TEST(Crop, IsUniform) {
  base::Random random(7);
  const int64_t H = 1000, W = 1500;
  std::vector<double> areas, ratios, tops, lefts;
  for (int i = 0; i < 20000; ++i) {
    const Box box = random_crop(H, W, 0.08, 0.4, random);
    ASSERT_GE(box.top, 0);
    ASSERT_GE(box.left, 0);
    ASSERT_LE(box.top + box.height, H);
    ASSERT_LE(box.left + box.width, W);
    const auto h = static_cast<double>(box.height);
    const auto w = static_cast<double>(box.width);
    areas.push_back(h * w / (H * W));
    ratios.push_back(std::log(w / h));
    tops.push_back(static_cast<double>(box.top) / (H - h));
    lefts.push_back(static_cast<double>(box.left) / (W - w));
  }
  const double bound = std::log(4.0 / 3.0);
  const auto cut = [](std::vector<double>& values, double low, double high) {
    // sides are integers
    for (double& v : values) {
      if (v < low && v > low - 0.003) v = low;
      if (v > high && v < high + 0.003) v = high;
    }
  };
  cut(areas, 0.08, 0.4);
  cut(ratios, -bound, bound);
  expect_uniform(areas, 0.08, 0.4);
  expect_uniform(ratios, -bound, bound);
  expect_uniform(tops, 0, 1);
  expect_uniform(lefts, 0, 1);
}

void expect_box(const Box& box, int64_t top, int64_t left, int64_t height,
                int64_t width) {
  EXPECT_EQ(box.top, top);
  EXPECT_EQ(box.left, left);
  EXPECT_EQ(box.height, height);
  EXPECT_EQ(box.width, width);
}

TEST(Crop, FallsBackToTheCentre) {
  base::Random random(8);
  expect_box(random_crop(1000, 10, 1, 1, random), 493, 0, 13, 10);
  expect_box(random_crop(10, 1000, 1, 1, random), 0, 493, 10, 13);
  expect_box(random_crop(1, 500, 1, 1, random), 0, 249, 1, 1);
  expect_box(random_crop(1, 1, 0.08, 1, random), 0, 0, 1, 1);
  // For the whole area only ratio 1 fits, which is hardly ever drawn.
  expect_box(random_crop(997, 997, 1, 1, random), 0, 0, 997, 997);
}

TEST(Crop, CopiesTheBox) {
  const Image image = noise(5, 7);
  const Image part = crop(image, {1, 2, 3, 4});
  ASSERT_EQ(part.height, 3);
  ASSERT_EQ(part.width, 4);
  for (int64_t y = 0; y < 3; ++y)
    for (int64_t x = 0; x < 4; ++x)
      for (int64_t c = 0; c < 3; ++c)
        ASSERT_EQ(part.rgb.at((y * 4 + x) * 3 + c),
                  image.rgb.at(((y + 1) * 7 + x + 2) * 3 + c));
  EXPECT_EQ(crop(image, {0, 0, 5, 7}).rgb, image.rgb);
}

TEST(Crop, BadInput) {
  base::Random random(9);
  const Image image = noise(5, 7);
  for (const Box& box :
       {Box{-1, 0, 2, 2}, Box{0, -1, 2, 2}, Box{4, 0, 2, 2}, Box{0, 6, 2, 2},
        Box{0, 0, 6, 1}, Box{0, 0, 0, 1}, Box{0, 0, 1, -1},
        Box{std::numeric_limits<int64_t>::max(), 0, 2, 2}}) {
    expect_error([&] { crop(image, box); }, "crop: the box");
  }
  expect_error([&] { crop({5, 7, {1}}, {0, 0, 1, 1}); }, "crop: rgb");
  expect_error([&] { random_crop(0, 5, 0.1, 1, random); }, "random_crop: ");
  for (const double bad : {0.0, -0.1, 1.1, kNan}) {
    expect_error([&] { random_crop(5, 5, bad, 1, random); }, "min_area");
    expect_error([&] { random_crop(5, 5, 0.5, bad, random); }, "max_area");
  }
}

TEST(Flip, Mirrors) {
  for (const int64_t width : {1, 2, 6, 7}) {
    const Image image = noise(3, width);
    Image flipped = image;
    flip(flipped);
    for (int64_t y = 0; y < 3; ++y)
      for (int64_t x = 0; x < width; ++x)
        for (int64_t c = 0; c < 3; ++c)
          ASSERT_EQ(flipped.rgb.at((y * width + x) * 3 + c),
                    image.rgb.at((y * width + width - 1 - x) * 3 + c));
  }
  Image bad{2, 2, {}};
  expect_error([&] { flip(bad); }, "flip: ");
}

// ---- RandAugment ------------------------------------------------------------

TEST(RandAugment, DrawsEveryOperationEquallyOften) {
  // Large enough for equalize, grey enough for auto_contrast, with values on
  // both sides of solarize's threshold, 26.
  Image image = noise(20, 21);
  for (uint8_t& v : image.rgb) v = static_cast<uint8_t>(10 + v / 2);
  std::map<std::vector<uint8_t>, std::pair<int64_t, bool>> known;
  for (int64_t op = 0; op < kNumOps; ++op) {
    for (const bool negative : {false, true}) {
      known.emplace(apply_op(static_cast<Op>(op), image, 9, negative).rgb,
                    std::pair(op, negative));
    }
  }
  ASSERT_EQ(known.size(), 6 + 2 * 9u);  // six ignore the sign
  known.emplace(image.rgb, std::pair(int64_t{-1}, false));
  ASSERT_EQ(known.size(), 25u);

  base::Random random(10);
  const int64_t n = 15000;
  std::vector<int64_t> positive(kNumOps), negative(kNumOps);
  int64_t unchanged = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto found = known.find(rand_augment(image, 1, 9, 0, random).rgb);
    ASSERT_NE(found, known.end());
    const auto [op, sign] = found->second;
    if (op < 0) {
      ++unchanged;
    } else {
      ++(sign ? negative : positive).at(op);
    }
  }
  expect_share(unchanged, n, 0.5);
  for (int64_t op = 0; op < kNumOps; ++op) {
    SCOPED_TRACE(op);
    expect_share(positive[op] + negative[op], n, 0.5 / 15);
    if (negative[op] > 0) expect_share(negative[op], n, 0.25 / 15);
  }
  EXPECT_EQ(std::count(negative.begin(), negative.end(), 0), 6);
}

TEST(RandAugment, MagnitudeIsNormal) {
  // solarize_add turns one black pixel into int(11 m), invert (and solarize at
  // 10) into 255; the other operations leave it unchanged.
  const Image black{1, 1, {0, 0, 0}};
  const auto levels = [&](double magnitude, double deviation) {
    base::Random random(11);
    std::vector<double> out;
    for (int i = 0; i < 100000; ++i) {
      const int v = rand_augment(black, 1, magnitude, deviation, random).rgb[0];
      if (v != 0 && v != 255) out.push_back(v + 0.5);
    }
    return out;
  };
  const double rounding = 1.0 / 12;
  expect_moments(levels(5, 0.5), 55, 5.5 * 5.5 + rounding, 3);
  for (const double v : levels(7, 0)) ASSERT_EQ(v, 77.5);
  const std::vector<double> top = levels(10, 1);
  expect_share(std::count(top.begin(), top.end(), 110.5),
               static_cast<int64_t>(top.size()), 0.5);
  EXPECT_EQ(*std::max_element(top.begin(), top.end()), 110.5);
}

TEST(RandAugment, CountsAndBadInput) {
  const Image image = noise(20, 21);
  base::Random random(12);
  int64_t unchanged = 0;
  for (int i = 0; i < 5000; ++i)
    unchanged += rand_augment(image, 3, 9, 0.5, random).rgb == image.rgb;
  expect_share(unchanged, 5000, 1.0 / 8);
  EXPECT_EQ(rand_augment(image, 0, 9, 0.5, random).rgb, image.rgb);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(rand_augment(image, 5, 0, 0.5, random).rgb, image.rgb);
  expect_error([&] { rand_augment(image, -1, 9, 0, random); }, "ops");
  for (const double bad : {-1.0, 11.0, kNan})
    expect_error([&] { rand_augment(image, 1, bad, 0, random); }, "magnitude");
  for (const double bad : {-1.0, kNan})
    expect_error([&] { rand_augment(image, 1, 9, bad, random); }, "deviation");
  expect_error([&] { rand_augment({1, 1, {}}, 1, 9, 0, random); }, "rgb");
}

TEST(RandAugment, AcceptsEverySize) {
  base::Random random(13);
  for (const int64_t height : {1, 2, 3, 9})
    for (const int64_t width : {1, 2, 4, 31})
      for (int i = 0; i < 60; ++i) {
        const Image out = rand_augment(noise(height, width), 4, 9, 3, random);
        ASSERT_EQ(out.height, height);
        ASSERT_EQ(out.width, width);
        ASSERT_EQ(static_cast<int64_t>(out.rgb.size()), height * width * 3);
      }
}

TEST(AugmentImage, CombinesTheSteps) {
  const Image image = noise(30, 40);
  AugmentConfig config;
  {
    base::Random a(14), b(14), c(15);
    const Image first = augment_image(image, 12, 10, config, a);
    EXPECT_EQ(first.height, 12);
    EXPECT_EQ(first.width, 10);
    EXPECT_EQ(augment_image(image, 12, 10, config, b).rgb, first.rgb);
    EXPECT_NE(augment_image(image, 12, 10, config, c).rgb, first.rgb);
    EXPECT_NE(augment_image(image, 12, 10, config, a).rgb, first.rgb);
  }
  config.rand_ops = 0;
  config.flip = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    base::Random a(seed), b(seed);
    const Box box = random_crop(30, 40, 0.08, 1, b);
    EXPECT_EQ(augment_image(image, 12, 10, config, a).rgb,
              io::resize(crop(image, box), 12, 10).rgb);
  }
  config.crop_min = 0;
  config.flip = true;
  const Image plain = io::cover(image, 12, 10);
  Image mirrored = plain;
  flip(mirrored);
  base::Random random(16);
  int64_t flips = 0;
  for (int i = 0; i < 2000; ++i) {
    const Image out = augment_image(image, 12, 10, config, random);
    flips += out.rgb == mirrored.rgb;
    ASSERT_TRUE(out.rgb == plain.rgb || out.rgb == mirrored.rgb);
  }
  expect_share(flips, 2000, 0.5);
}

TEST(FlipAndShift, MirrorsShiftsAndClips) {
  const std::vector<uint8_t> from = {0,  1,   2,   100, 101, 102, 250, 251, 252,
                                     10, 128, 255, 40,  50,  60,  70,  80,  90};
  std::set<std::pair<bool, int>> seen;
  for (uint64_t random = 0; random < 2000; ++random) {
    std::vector<uint8_t> got(18), again(18);
    const uint64_t bits = random * 0x9E3779B97F4A7C15u;
    flip_and_shift(from.data(), 2, 3, true, 10, bits, got.data());
    flip_and_shift(from.data(), 2, 3, true, 10, bits, again.data());
    ASSERT_EQ(got, again);
    // 100 and 128 are never clipped: they show what was done.
    const int add = got[3] - 100;
    ASSERT_LE(std::abs(add), 10);
    const bool flip = got[16] == 128 + add;
    for (int y = 0; y < 2; ++y)
      for (int x = 0; x < 3; ++x)
        for (int k = 0; k < 3; ++k)
          ASSERT_EQ(got[static_cast<size_t>((y * 3 + x) * 3 + k)],
                    std::clamp(from[static_cast<size_t>(
                                   (y * 3 + (flip ? 2 - x : x)) * 3 + k)] +
                                   add,
                               0, 255));
    seen.emplace(flip, add);
  }
  EXPECT_EQ(seen.size(), 42u);  // mirrored or not, -10 to 10
  std::vector<uint8_t> got(18);
  flip_and_shift(from.data(), 2, 3, false, 0, 12345, got.data());
  EXPECT_EQ(got, from);
}

// ---- Erase ------------------------------------------------------------------

TEST(Erase, DrawsABoxOfNoise) {
  const int64_t H = 120, W = 100, n = 4000;
  base::Random random(17);
  std::vector<double> areas, ratios, values;
  int64_t erased = 0;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<float> x(3 * H * W, 100.0f);
    random_erase(x.data(), H, W, 0.25, random);
    int64_t top = H, bottom = -1, left = W, right = -1, changed = 0;
    for (int64_t at = 0; at < 3 * H * W; ++at) {
      if (x[at] == 100.0f) continue;
      ++changed;
      top = std::min(top, at / W % H);
      bottom = std::max(bottom, at / W % H);
      left = std::min(left, at % W);
      right = std::max(right, at % W);
      if (values.size() < 200000) values.push_back(x[at]);
    }
    if (changed == 0) continue;
    ++erased;
    const int64_t h = bottom - top + 1, w = right - left + 1;
    ASSERT_EQ(changed, 3 * h * w);  // one box, the same in every channel
    ASSERT_LT(h, H);
    ASSERT_LT(w, W);
    areas.push_back(static_cast<double>(h * w) / (H * W));
    ratios.push_back(std::log(static_cast<double>(h) / w));
  }
  expect_share(erased, n, 0.25);
  expect_moments(values, 0, 1, 3);
  const double low = 0.02, high = 1.0 / 3, spread = high - low;
  // A few of the largest boxes do not fit and are missing.
  expect_moments(areas, (low + high) / 2, spread * spread / 12, 1.8);
  const auto [least, most] = std::minmax_element(areas.begin(), areas.end());
  EXPECT_NEAR(*least, low, 0.005);
  EXPECT_NEAR(*most, high, 0.02);
  const double bound = std::log(1 / 0.3);
  expect_moments(ratios, 0, bound * bound / 3, 1.8);
  EXPECT_NEAR(*std::max_element(ratios.begin(), ratios.end()), bound, 0.1);
}

TEST(Erase, IsSmallerThanTheImageInBothDimensions) {
  base::Random random(24);
  for (const auto& [H, W] : {std::pair(4, 60), std::pair(60, 4)}) {
    int64_t erased = 0;
    for (int i = 0; i < 500; ++i) {
      std::vector<float> x(3 * H * W, 100.0f);
      random_erase(x.data(), H, W, 1, random);
      std::vector<int64_t> rows(H), columns(W);
      for (int at = 0; at < H * W; ++at) {
        if (x[at] == 100.0f) continue;
        ++erased;
        ++rows[at / W];
        ++columns[at % W];
      }
      ASSERT_LT(*std::max_element(rows.begin(), rows.end()), W);
      ASSERT_LT(*std::max_element(columns.begin(), columns.end()), H);
    }
    EXPECT_GT(erased, 500 * 3);
  }
}

TEST(Erase, NeverAlwaysAndBadInput) {
  base::Random random(18);
  for (int i = 0; i < 100; ++i) {
    std::vector<float> x(3 * 16 * 16, 100.0f);
    random_erase(x.data(), 16, 16, 0, random);
    ASSERT_EQ(std::count(x.begin(), x.end(), 100.0f), 768);
    random_erase(x.data(), 16, 16, 1, random);
    ASSERT_LT(std::count(x.begin(), x.end(), 100.0f), 768);
    std::vector<float> one(3, 100.0f);  // no box is smaller than one pixel
    random_erase(one.data(), 1, 1, 1, random);
    ASSERT_EQ(std::count(one.begin(), one.end(), 100.0f), 3);
  }
  float x[3];
  for (const double bad : {-0.1, 1.1, kNan})
    expect_error([&] { random_erase(x, 1, 1, bad, random); }, "p must be");
  expect_error([&] { random_erase(x, 0, 1, 1, random); }, "random_erase: ");
}

}  // namespace
}  // namespace aft::data
