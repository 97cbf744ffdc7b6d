// Reading images of every format agrees with Pillow
// (tests/golden/make_images.py); writing; resizing.
#include "aft/io/image.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "aft/io/file.h"
#include "aft/io/safetensors.h"
#include "tests/io/image_fixture.h"
#include "tests/scratch.h"

namespace aft::io {
namespace {

Image image_of(const TensorView& view) {
  EXPECT_EQ(view.shape.size(), 3u);
  const auto* data = static_cast<const uint8_t*>(view.data);
  return {view.shape[0], view.shape[1], {data, data + view.bytes}};
}

SafeTensors expected() {
  return SafeTensors::open(kGolden + "expected.safetensors");
}

Image noise(int64_t height, int64_t width) {
  std::mt19937 random(1);
  Image image{height, width, std::vector<uint8_t>(height * width * 3)};
  for (uint8_t& v : image.rgb) v = static_cast<uint8_t>(random());
  return image;
}

// ---- Reading ----------------------------------------------------------------

TEST(ReadImage, EveryFormat) {
  const SafeTensors tensors = expected();
  int files = 0;
  for (const TensorView& view : tensors.tensors()) {
    if (view.name.find('/') != std::string::npos) continue;
    SCOPED_TRACE(view.name);
    const Image got = read_image(kGolden + view.name);
    const Image want = image_of(view);
    ++files;
    if (view.name.find(".png") != std::string::npos) {
      expect_equal(got, want);
      continue;
    }
    // A different libjpeg than Pillow's may round differently, without bias.
    expect_equal(got, want, 2);
    double sum = 0;
    for (const uint8_t v : got.rgb) sum += v;
    for (const uint8_t v : want.rgb) sum -= v;
    EXPECT_LT(std::abs(sum / static_cast<double>(want.rgb.size())), 0.2);
  }
  EXPECT_EQ(files, 25);
}

TEST(ReadImage, BytesAfterTheEndAreIgnored) {
  for (const char* name : {"rgb.png", "baseline.jpg"}) {
    const std::string bytes = golden(name);
    expect_equal(decode(bytes + "more"), decode(bytes));
  }
}

TEST(ReadImage, UnknownJfifVersionsAreIgnored) {
  std::string bytes = golden("full.jpg");
  const size_t at = bytes.find("JFIF");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 5] = 9;
  expect_equal(decode(bytes), decode(golden("full.jpg")));
}

TEST(ReadImage, StrayBytesBeforeAMarkerAreIgnored) {
  for (const char* name : {"baseline.jpg", "progressive.jpg", "grey.jpg"}) {
    SCOPED_TRACE(name);
    const std::string bytes = golden(name);
    // Before the quantisation table, the (first) scan and the end.
    for (const size_t at : {bytes.find("\xff\xdb"), bytes.find("\xff\xda"),
                            bytes.rfind("\xff\xd9")}) {
      ASSERT_NE(at, std::string::npos);
      for (const size_t count : {1, 20, 5000}) {
        std::string stray = bytes;
        stray.insert(at, count, '\1');
        ::testing::internal::CaptureStderr();
        expect_equal(decode(stray), decode(bytes));
        EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
      }
    }
  }
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = new_folder();
    path_ = directory_ + "/a";
  }
  void expect_unreadable(const std::string& part) {
    expect_error([&] { read_image(path_); }, {path_ + ": ", part});
  }
  std::string directory_, path_;
};

TEST_F(Files, NotAnImage) {
  expect_unreadable("No such file");
  write_file(path_, "");
  expect_unreadable("PNG or JPEG, got an empty file");
  write_file(path_, "GIF89a\1\n and so on");
  expect_unreadable("begins with \"GIF89a\\x01\\x0a\"");
  write_file(path_, golden("rgb.png").substr(0, 4));
  expect_unreadable("begins with \"\\x89PNG\"");
  expect_error([&] { read_image(directory_); }, {directory_, "a directory"});
}

TEST_F(Files, FifosDoNotBlock) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0666), 0);
  expect_unreadable("must be a regular file");
}

TEST_F(Files, TooLarge) {
  write_file(path_, golden("rgb.png"));
  ASSERT_EQ(::truncate(path_.c_str(), 1'000'000'001),
            0);  // sparse: needs no disk space
  expect_unreadable("at most 1000000000 bytes, got 1000000001");
}

// ---- Writing ----------------------------------------------------------------

TEST_F(Files, PngRoundTrip) {
  for (const auto& [height, width] :
       {std::pair{1, 1}, {1, 300}, {300, 1}, {37, 23}, {64, 64}}) {
    const Image image = noise(height, width);
    write_png(path_, image);
    const std::string bytes = contents(path_);
    expect_equal(read_image(path_), image);
    write_png(path_, image);
    EXPECT_EQ(contents(path_), bytes);
  }
}

// The best possible compression, which must not be mistaken for a hostile file.
TEST_F(Files, PngOfOneColour) {
  const Image black{4096, 4096, std::vector<uint8_t>(4096 * 4096 * 3)};
  write_png(path_, black);
  EXPECT_LT(contents(path_).size() * 900, black.rgb.size());
  const Image again = read_image(path_);
  EXPECT_EQ(again.height, 4096);
  EXPECT_EQ(again.width, 4096);
  EXPECT_TRUE(again.rgb == black.rgb);
}

TEST_F(Files, WriteErrors) {
  const auto bad = [&](const Image& image, const std::string& part) {
    expect_error([&] { write_png(path_, image); }, {path_ + ": ", part});
  };
  bad({}, "got 0 x 0");
  bad({0, 5, {}}, "got 0 x 5");
  bad({-1, -1, {1, 2, 3}}, "got -1 x -1");
  bad({int64_t{1} << 40, int64_t{1} << 40, {}}, "at most 67108864");
  bad({2, 2, std::vector<uint8_t>(11)}, "= 12 bytes, got 11");
  bad({2, 2, std::vector<uint8_t>(13)}, "= 12 bytes, got 13");
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
  expect_error([&] { write_png(directory_ + "/no/a", noise(1, 1)); },
               {directory_ + "/no/a", "No such file"});
}

// ---- Size -------------------------------------------------------------------

// Checks call(in, height, width) for all golden cases of that name.
template <typename Call>
void expect_cases(const std::string& name, size_t count, const Call& call) {
  const SafeTensors tensors = expected();
  for (size_t n = 0; n < count; ++n) {
    const std::string at = name + "/" + std::to_string(n);
    SCOPED_TRACE(at);
    const Image want = image_of(tensors.at(at + "/out"));
    expect_equal(
        call(image_of(tensors.at(at + "/in")), want.height, want.width), want);
  }
  EXPECT_FALSE(tensors.find(name + "/" + std::to_string(count) + "/in"));
}

TEST(Resize, BitIdenticalToPillow) { expect_cases("resize", 12, resize); }

TEST(Resize, CoverBitIdenticalToPillow) { expect_cases("cover", 10, cover); }

TEST(Resize, FlatImageStaysFlat) {
  const Image flat{3, 5, std::vector<uint8_t>(45, 200)};
  expect_equal(resize(flat, 40, 2), {40, 2, std::vector<uint8_t>(240, 200)});
}

TEST(Resize, Errors) {
  const Image image = noise(4, 6);
  const auto bad = [](const auto& call, const std::string& part) {
    expect_error(call, {part});
  };
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{0, 4},
                                      {4, 0},
                                      {-1, -1},
                                      {1 << 13, (1 << 13) + 1},
                                      {int64_t{1} << 62, int64_t{1} << 62}}) {
    const std::string got =
        "got " + std::to_string(height) + " x " + std::to_string(width);
    bad([&, h = height, w = width] { resize(image, h, w); }, got);
    bad([&, h = height, w = width] { cover(image, h, w); }, got);
  }
  const Image wrong{4, 6, std::vector<uint8_t>(71)};
  bad([&] { resize(wrong, 2, 2); }, "resize: rgb must have");
  bad([&] { cover(wrong, 2, 2); }, "cover: rgb must have");
  bad([&] { resize({}, 2, 2); }, "got 0 x 0");
  // Intermediate sizes.
  const Image tall = noise(10000, 1);
  bad([&] { resize(tall, 1, 10000); }, "between the passes");
  bad([&] { cover(tall, 1000, 1000); }, "before cropping");
}

}  // namespace
}  // namespace aft::io
