// The operations of RandAugment are bit-identical to Pillow
// (tests/golden/make_augment.py).
#include "aft/data/image_ops.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "aft/data/augment.h"
#include "aft/io/safetensors.h"
#include "tests/data/statistics.h"

namespace aft::data {
namespace {

using io::Image;

struct Entry {
  std::function<Image(const Image&, double)> call;
  Op op;
};

Entry without_argument(Image (*f)(Image), Op op) {
  return {[f](const Image& image, double) { return f(image); }, op};
}

template <typename F>
Entry with_integer(const F& f, Op op) {
  return {[f](const Image& i, double v) { return f(i, std::lround(v)); }, op};
}

Entry with_fill(Image (*f)(const Image&, double, Colour), Op op) {
  return {[f](const Image& i, double v) { return f(i, v, kMeanColour); }, op};
}

const std::map<std::string, Entry>& entries() {
  const auto add_solarized = [](const Image& image, int64_t add) {
    return solarize_add(image, add);
  };
  static const std::map<std::string, Entry> all = {
      {"auto_contrast", without_argument(auto_contrast, Op::kAutoContrast)},
      {"equalize", without_argument(equalize, Op::kEqualize)},
      {"invert", without_argument(invert, Op::kInvert)},
      {"posterize", with_integer(posterize, Op::kPosterize)},
      {"solarize", with_integer(solarize, Op::kSolarize)},
      {"solarize_add", with_integer(add_solarized, Op::kSolarizeAdd)},
      {"colour", {colour, Op::kColour}},
      {"contrast", {contrast, Op::kContrast}},
      {"brightness", {brightness, Op::kBrightness}},
      {"sharpness", {sharpness, Op::kSharpness}},
      {"rotate", with_fill(rotate, Op::kRotate)},
      {"shear_x", with_fill(shear_x, Op::kShearX)},
      {"shear_y", with_fill(shear_y, Op::kShearY)},
      {"translate_x", with_fill(translate_x, Op::kTranslateX)},
      {"translate_y", with_fill(translate_y, Op::kTranslateY)},
  };
  return all;
}

io::SafeTensors golden() {
  return io::SafeTensors::open(AFT_TEST_DIR "/golden/augment.safetensors");
}

Image image_of(const io::TensorView& view) {
  const auto* data = static_cast<const uint8_t*>(view.data);
  return {view.shape.at(0), view.shape.at(1), {data, data + view.bytes}};
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '/') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void expect_equal(const Image& got, const Image& want,
                  const std::string& name) {
  ASSERT_EQ(got.height, want.height) << name;
  ASSERT_EQ(got.width, want.width) << name;
  ASSERT_EQ(got.rgb.size(), want.rgb.size()) << name;
  for (size_t i = 0; i < want.rgb.size(); ++i) {
    ASSERT_EQ(int{got.rgb[i]}, int{want.rgb[i]})
        << name << ": row " << i / 3 / want.width << ", column "
        << i / 3 % want.width << ", channel " << i % 3;
  }
}

TEST(ImageOps, MatchPillow) {
  const io::SafeTensors file = golden();
  std::map<std::string, int> cases;
  for (const io::TensorView& view : file.tensors()) {
    const std::vector<std::string> parts = split(view.name);
    if (parts.size() != 3) continue;
    const Image image = image_of(file.at(parts[0]));
    const Image before = image;
    const Image got = entries().at(parts[1]).call(
        image, std::strtod(parts[2].c_str(), nullptr));
    expect_equal(got, image_of(view), view.name);
    EXPECT_EQ(image.rgb, before.rgb) << view.name;
    ++cases[parts[1]];
  }
  EXPECT_EQ(cases.size(), 15u);
  for (const auto& [name, n] : cases) EXPECT_GE(n, 8) << name;
}

TEST(ImageOps, LevelsMatchTimm) {
  const io::SafeTensors file = golden();
  const Image image = image_of(file.at("clip"));
  std::map<std::string, int> cases;
  for (const io::TensorView& view : file.tensors()) {
    const std::vector<std::string> parts = split(view.name);
    if (parts.size() != 4) continue;
    const double m = std::strtod(parts[2].c_str(), nullptr);
    const Image got =
        apply_op(entries().at(parts[1]).op, image, m, parts[3] == "-");
    expect_equal(got, image_of(view), view.name);
    ++cases[parts[1]];
  }
  EXPECT_EQ(cases.size(), 15u);
  for (const auto& [name, n] : cases) EXPECT_EQ(n, 8) << name;
}

// The whole image is moved outside; coordinates exceed the range of integers.
TEST(ImageOps, FarAwayIsFill) {
  const Image image{2, 3, std::vector<uint8_t>(18, 7)};
  const Image all{2, 3, {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}};
  const Colour fill{1, 2, 3};
  for (const double far : {3.0, -3.0, 1e18, -1e18, 1e308, -1e308}) {
    expect_equal(translate_x(image, far, fill), all, "translate_x");
    expect_equal(translate_y(image, far, fill), all, "translate_y");
  }
  for (const double far : {1e18, -1e18, 1e308, -1e308}) {
    expect_equal(shear_x(image, far, fill), all, "shear_x");
    expect_equal(shear_y(image, far, fill), all, "shear_y");
  }
  for (const double turn : {1e18, -1e308}) rotate(image, turn, fill);
}

TEST(ImageOps, BadInput) {
  const Image good{1, 2, std::vector<uint8_t>(6)};
  for (const auto& [name, entry] : entries()) {
    const auto& call = entry.call;
    for (const Image& bad : {Image{}, Image{1, 2, {1, 2, 3}},
                             Image{-1, -2, std::vector<uint8_t>(6)}}) {
      expect_error([&, &call = call] { call(bad, 1); }, name + ": ");
    }
  }
  for (const std::string name :
       {"colour", "contrast", "brightness", "sharpness", "rotate", "shear_x",
        "shear_y", "translate_x", "translate_y"}) {
    for (const double v : {kNan, std::numeric_limits<double>::infinity()}) {
      expect_error([&] { entries().at(name).call(good, v); }, name + ": ");
    }
  }
  expect_error([&] { brightness(good, -1.1e6); }, "-1100000");
  EXPECT_EQ(brightness({1, 1, {1, 0, 9}}, 1e6).rgb,
            (std::vector<uint8_t>{255, 0, 255}));
  expect_error([&] { posterize(good, 9); }, "posterize: bits must be 0 to 8");
  expect_error([&] { posterize(good, -1); }, "got -1");
  expect_error([&] { solarize(good, 257); }, "solarize: threshold");
  expect_error([&] { solarize(good, -1); }, "0 to 256");
  expect_error([&] { solarize_add(good, -1); }, "solarize_add: add");
  expect_error([&] { solarize_add(good, 1, 300); }, "solarize_add: threshold");
  for (const double m : {-0.1, 10.1, kNan}) {
    expect_error([&] { apply_op(Op::kInvert, good, m, false); },
                 "magnitude must be 0 to 10");
  }
  expect_error([&] { apply_op(static_cast<Op>(15), good, 1, false); },
               "one of the 15");
}

}  // namespace
}  // namespace aft::data
