// Mixup and CutMix: the distribution of what is drawn, and its effect on a
// batch.
#include <algorithm>
#include <vector>

#include "aft/data/augment.h"
#include "tests/data/statistics.h"

namespace aft::data {
namespace {

TEST(MixTest, Mixup) {
  base::Random random(19);
  std::vector<double> lambdas;
  for (int i = 0; i < 20000; ++i) {
    const Mix mix = draw_mix(10, 12, 0.8, 0, random);
    ASSERT_FALSE(mix.cut);
    lambdas.push_back(mix.lambda);
  }
  expect_moments(lambdas, 0.5, 0.25 / 2.6, 3 - 6 / 4.6);  // Beta(0.8, 0.8)
  const Mix none = draw_mix(10, 12, 0, 0, random);
  EXPECT_FALSE(none.cut);
  EXPECT_EQ(none.lambda, 1);
}

TEST(MixTest, CutMix) {
  const int64_t H = 200, W = 400, n = 20000;
  base::Random random(20);
  std::vector<double> shares;
  for (int64_t i = 0; i < n; ++i) {
    const Mix mix = draw_mix(H, W, 0, 1, random);
    const Box& box = mix.box;
    ASSERT_TRUE(mix.cut);
    ASSERT_GE(box.top, 0);
    ASSERT_GE(box.left, 0);
    ASSERT_GE(box.height, 0);
    ASSERT_GE(box.width, 0);
    ASSERT_LE(box.top + box.height, H);
    ASSERT_LE(box.left + box.width, W);
    shares.push_back(static_cast<double>(box.height * box.width) / (H * W));
    ASSERT_DOUBLE_EQ(mix.lambda, 1 - shares.back());
    const bool whole = box.top > 0 && box.left > 0 &&
                       box.top + box.height < H && box.left + box.width < W;
    // The aspect ratio of the image, except for rounding to even sides.
    if (whole) {
      ASSERT_NEAR(box.width, 2 * box.height, 4);
    }
  }
  // Side r, r^2 uniform, and a uniform centre leave r - r^2 / 4 of a side on
  // average: E (r - r^2 / 4)^2 = 1/2 - 1/5 + 1/48. Even sides take 1 % off.
  double mean = 0;
  for (const double share : shares) mean += share / n;
  EXPECT_NEAR(mean, 0.3208 - 0.003, 0.01);
}

TEST(MixTest, MixupAndCutMixAreEquallyLikely) {
  base::Random random(21);
  int64_t cuts = 0;
  for (int i = 0; i < 5000; ++i) cuts += draw_mix(8, 8, 0.8, 1, random).cut;
  expect_share(cuts, 5000, 0.5);
}

TEST(MixTest, ApplyMatchesAPlainLoop) {
  const int64_t H = 4, W = 5;
  base::Random random(22);
  Mix cut, mixup;
  cut.cut = true;
  cut.box = {1, 2, 2, 3};
  cut.lambda = 1 - 6.0 / 20;
  mixup.lambda = 0.3;
  Mix empty = cut;
  empty.box = {0, 0, 0, 5};
  for (const Mix& mix : {cut, mixup, empty, Mix{}}) {
    for (int64_t B = 0; B <= 5; ++B) {
      std::vector<float> x(B * 3 * H * W);
      for (float& v : x) v = static_cast<float>(random.normal());
      const std::vector<float> before = x;
      apply_mix(mix, x.data(), B, H, W);
      for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
        const int64_t b = i / (3 * H * W), at = i % (3 * H * W);
        const int64_t r = at / W % H, c = at % W;
        const float own = before[i];
        const int64_t partner =
            std::min(b ^ 1, B - 1);  // an unpaired last image: itself
        const float other = before[partner * 3 * H * W + at];
        const Box& box = mix.box;
        const bool inside = r >= box.top && r < box.top + box.height &&
                            c >= box.left && c < box.left + box.width;
        if (mix.cut) {
          ASSERT_EQ(x[i], inside ? other : own);
        } else {
          ASSERT_NEAR(x[i], mix.lambda * own + (1 - mix.lambda) * other, 1e-6);
        }
      }
    }
  }
}

TEST(MixTest, BadInput) {
  base::Random random(23);
  for (const double bad : {-0.1, kNan}) {
    expect_error([&] { draw_mix(4, 4, bad, 1, random); }, "mixup and cutmix");
    expect_error([&] { draw_mix(4, 4, 1, bad, random); }, "mixup and cutmix");
  }
  expect_error([&] { draw_mix(4, 0, 1, 1, random); }, "draw_mix: ");
  std::vector<float> x(3 * 4 * 4);
  Mix mix;
  for (const double bad : {-0.1, 1.1, kNan}) {
    mix.lambda = bad;
    expect_error([&] { apply_mix(mix, x.data(), 1, 4, 4); }, "lambda");
  }
  mix = {true, 0.5, {3, 0, 2, 2}};
  expect_error([&] { apply_mix(mix, x.data(), 1, 4, 4); }, "the box");
  expect_error([&] { apply_mix(Mix{}, x.data(), -1, 4, 4); }, "B must");
}

}  // namespace
}  // namespace aft::data
