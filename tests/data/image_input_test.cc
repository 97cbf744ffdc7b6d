// The inputs of image networks, for evaluation and for training.
#include "aft/data/image_input.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "aft/data/augment.h"

namespace aft::data {
namespace {

io::Image gradient(int64_t height, int64_t width) {
  io::Image image{
      height, width,
      std::vector<uint8_t>(static_cast<size_t>(3 * height * width))};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      uint8_t* p = image.rgb.data() + 3 * (y * width + x);
      p[0] = static_cast<uint8_t>(y), p[1] = static_cast<uint8_t>(x), p[2] = 7;
    }
  }
  return image;
}

TEST(ImageInput, NormalisesByImageNet) {
  io::Image image{1, 2, {0, 128, 255, 10, 20, 30}};
  float x[6];
  normalise(image, x);
  EXPECT_NEAR(x[0], (0 / 255. - 0.485) / 0.229, 1e-6);
  EXPECT_NEAR(x[1], (10 / 255. - 0.485) / 0.229, 1e-6);
  EXPECT_NEAR(x[2], (128 / 255. - 0.456) / 0.224, 1e-6);
  EXPECT_NEAR(x[5], (30 / 255. - 0.406) / 0.225, 1e-6);
}

TEST(ImageInput, CentreCropScalesTheShortSide) {
  // Already of that size: not scaled, (128 - 112) / 2 = 8 rows are cropped.
  const io::Image cut = centre_crop(gradient(128, 200), 112, 112, 0.875);
  EXPECT_EQ(cut.height, 112);
  EXPECT_EQ(cut.width, 112);
  EXPECT_EQ(cut.rgb[0], 8);   // row
  EXPECT_EQ(cut.rgb[1], 44);  // column
  // Half a pixel is rounded to even: (129 - 112) / 2 = 8.5 to 8, 9.5 to 10.
  EXPECT_EQ(centre_crop(gradient(128, 129), 112, 112, 0.875).rgb[1], 8);
  EXPECT_EQ(centre_crop(gradient(128, 131), 112, 112, 0.875).rgb[1], 10);
  for (const auto& [h, w] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 500}, {500, 3}, {37, 41}}) {
    const io::Image out = centre_crop(gradient(h, w), 24, 32, 0.875);
    EXPECT_EQ(out.height, 24);
    EXPECT_EQ(out.width, 32);
  }
}

TEST(ImageInput, EvaluationCropsAndNormalises) {
  const io::Image image = gradient(37, 41);
  std::vector<float> x(3 * 24 * 32), want(x.size());
  evaluation_input(image, 24, 32, 0.875, x.data());
  normalise(centre_crop(image, 24, 32, 0.875), want.data());
  EXPECT_EQ(x, want);
}

TEST(ImageInput, TrainingDependsOnTheSeedAlone) {
  const io::Image image = gradient(40, 50);
  AugmentConfig config;
  const auto input = [&](uint64_t seed) {
    std::vector<float> x(3 * 24 * 24);
    training_input(image, 24, 24, config, seed, x.data());
    return x;
  };
  EXPECT_EQ(input(1), input(1));
  EXPECT_NE(input(1), input(2));
  config.crop_min = 0, config.flip = false, config.rand_ops = 0;
  config.erase = 0;
  EXPECT_EQ(input(1), input(2));
  std::vector<float> plain(3 * 24 * 24);
  normalise(io::cover(image, 24, 24), plain.data());
  EXPECT_EQ(input(1), plain);
}

}  // namespace
}  // namespace aft::data
