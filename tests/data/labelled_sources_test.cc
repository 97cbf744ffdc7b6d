// LabelledImages from CIFAR-10, the built-in images and real data, and reading
// by several threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>

#include "tests/data/labelled_images_fixture.h"

namespace aft::data {
namespace {

// ---- CIFAR-10 ---------------------------------------------------------------

constexpr int64_t kRecord = 3073;

int cifar_label(int64_t i, int add) {
  return static_cast<int>((i * i / 3 + add) % 10);
}

uint8_t cifar_value(int64_t i, int64_t p, int64_t c, int add) {
  return static_cast<uint8_t>(i * 7 + p * 5 + c * 50 + add);
}

std::string batch(int add) {
  std::string bytes(static_cast<size_t>(10000 * kRecord), '\0');
  for (int64_t i = 0; i < 10000; ++i) {
    char* record = bytes.data() + i * kRecord;
    record[0] = static_cast<char>(cifar_label(i, add));
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t p = 0; p < 1024; ++p)
        record[1 + c * 1024 + p] = static_cast<char>(cifar_value(i, p, c, add));
  }
  return bytes;
}

TEST(LabelledCifar, BatchesWithLabels) {
  const std::string path = folder("cifar");
  write(path + "/data_batch_2.bin", batch(2));
  write(path + "/data_batch_5.bin", batch(5));
  write(path + "/test_batch.bin", batch(9));
  const LabelledImages all = LabelledImages::open(path, 500);
  EXPECT_EQ(all.classes(),
            (Strings{"airplane", "automobile", "bird", "cat", "deer", "dog",
                     "frog", "horse", "ship", "truck"}));
  EXPECT_EQ(all.train().size(), 19500u);
  EXPECT_EQ(all.valid().size(), 500u);
  EXPECT_EQ(all.test().size(), 10000u);
  EXPECT_EQ(all.test()[0], 20000);
  EXPECT_EQ(all.name(12345), "12345");
  expect_partition(all);
  for (const int64_t i : {0, 9999, 10000, 12345, 20000, 29999}) {
    const int add = i < 10000 ? 2 : i < 20000 ? 5 : 9;
    ASSERT_EQ(all.label(i), cifar_label(i % 10000, add));
    const io::Image image = all.read(i);
    ASSERT_EQ(image.height, 32);
    ASSERT_EQ(image.width, 32);
    ASSERT_EQ(image.rgb.size(), 3072u);
    for (int64_t p = 0; p < 1024; ++p)
      for (int64_t c = 0; c < 3; ++c)
        ASSERT_EQ(image.rgb[static_cast<size_t>(3 * p + c)],
                  cifar_value(i % 10000, p, c, add));
  }
  LabelledPart both = all.train();
  both.insert(both.end(), all.valid().begin(), all.valid().end());
  const std::map<int, int> of = histogram(all, both),
                           chosen = histogram(all, all.valid());
  for (const auto& [label, count] : of)
    EXPECT_NEAR(chosen.at(label), count / 40.0, 1) << label;

  const std::string before = all.fingerprint();
  EXPECT_EQ(fingerprint(path), before);
  std::string changed = batch(5);
  changed[static_cast<size_t>(9999 * kRecord)] ^= 1;  // a label
  write(path + "/data_batch_5.bin", changed);
  EXPECT_NE(fingerprint(path), before);
  changed = batch(5), changed.back() ^= 1;  // a pixel
  write(path + "/data_batch_5.bin", changed);
  EXPECT_NE(fingerprint(path), before);

  write(path + "/data_batch_5.bin", batch(5));
  fs::rename(path + "/test_batch.bin", path + "/data_batch_3.bin");
  fs::rename(path + "/data_batch_5.bin", path + "/data_batch_4.bin");
  const std::string three = fingerprint(path);  // the same bytes, no test part
  fs::rename(path + "/data_batch_4.bin", path + "/test_batch.bin");
  EXPECT_NE(fingerprint(path), three);

  changed[static_cast<size_t>(17 * kRecord)] = 10;
  write(path + "/data_batch_5.bin", changed);
  expect_error(path, {"data_batch_5.bin: record 17: the label must be 0 to 9, "
                      "got 10"});
  changed.pop_back();
  write(path + "/data_batch_5.bin", changed);
  expect_error(path, {"data_batch_5.bin", "got 30729999"});
}

// ---- Built in ---------------------------------------------------------------

TEST(LabelledBuiltIn, SixKindsOfShapes) {
  const LabelledImages all = LabelledImages::open("", 200, 24);
  EXPECT_EQ(all.classes(), (Strings{"disc", "square", "triangle", "ring",
                                    "cross", "stripes"}));
  EXPECT_EQ(all.train().size(), 1800u);
  EXPECT_EQ(all.test().size(), 400u);
  expect_partition(all);
  for (const auto& [label, count] : histogram(all, all.valid()))
    EXPECT_NEAR(count, 200 / 6.0, 1) << label;
  EXPECT_EQ(histogram(all, all.valid()).size(), 6u);
  std::set<std::vector<uint8_t>> different;
  for (int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(all.label(i), i % 6);
    const io::Image image = all.read(i);
    EXPECT_EQ(image.height, 24);
    EXPECT_EQ(image.width, 24);
    EXPECT_EQ(all.read(i).rgb, image.rgb);
    different.insert(image.rgb);
  }
  EXPECT_EQ(different.size(), 200u);
  EXPECT_EQ(LabelledImages::open("", 7, 24).fingerprint(), all.fingerprint());
  EXPECT_EQ(fingerprint(""), all.fingerprint());  // independent of the size
  for (const int64_t size : {0, -1, 5000})
    expect_error("",
                 {"data.height and data.width of the built-in images must be "
                  "1 to 4096"},
                 0, size);
}

/// The share of pixels that differ from the sky at the left edge of their row
/// by more than noise, and how often this changes along rows and columns.
struct Look {
  double area = 0, edges = 0;
};

Look look(const io::Image& image) {
  const int64_t n = image.height;
  const auto on = [&](int64_t y, int64_t x) {
    int most = 0;
    for (int64_t c = 0; c < 3; ++c)
      most = std::max(
          most, std::abs(image.rgb[static_cast<size_t>((y * n + x) * 3 + c)] -
                         image.rgb[static_cast<size_t>(y * n * 3 + c)]));
    return most > 40;
  };
  Look out;
  for (int64_t y = 0; y < n; ++y)
    for (int64_t x = 1; x < n; ++x) {
      out.area += on(y, x);
      out.edges += on(y, x) != on(y, x - 1);
      if (y > 0) out.edges += on(y, x) != on(y - 1, x);
    }
  out.area /= static_cast<double>(n * n);
  out.edges /= static_cast<double>(n);
  return out;
}

TEST(LabelledBuiltIn, KindsLookDifferent) {
  Look mean[6];
  for (uint64_t i = 0; i < 600; ++i) {
    io::Image image{48, 48, std::vector<uint8_t>(48 * 48 * 3)};
    draw_shape(i, 48, 48, image.rgb.data());
    const Look one = look(image);
    mean[i % 6].area += one.area / 100, mean[i % 6].edges += one.edges / 100;
  }
  enum { kDisc, kSquare, kTriangle, kRing, kCross, kStripes };
  // pi, 1.7^2, 3 sqrt(3) / 4, 0.7 pi, 2.04 and 0.6 * 1.7^2, of radius^2.
  const double area[] = {3.14, 2.89, 1.30, 2.20, 2.04, 1.73};
  for (int kind = 1; kind < 6; ++kind)
    EXPECT_NEAR(mean[kind].area / mean[kDisc].area, area[kind] / area[kDisc],
                0.25 * area[kind] / area[kDisc])
        << kShapes[static_cast<size_t>(kind)];
  const auto edges = [&](int kind) { return mean[kind].edges; };
  EXPECT_GT(edges(kDisc), 1);
  EXPECT_GT(edges(kDisc), edges(kTriangle));
  EXPECT_GT(edges(kRing), 1.3 * edges(kDisc));
  EXPECT_GT(edges(kStripes), 1.7 * edges(kDisc));
}

TEST(LabelledImages, ManyThreadsReadAtOnce) {
  const std::string path = folder("threads");
  for (int i = 0; i < 60; ++i)
    write_image(
        path + "/" + char('a' + i % 3) + "/" + std::to_string(i) + ".png", i);
  for (const std::string& from : {path, std::string()}) {
    const LabelledImages all = LabelledImages::open(from, 5, 16);
    std::vector<std::vector<uint8_t>> want;
    const int64_t count = std::min<int64_t>(all.count(), 60);
    for (int64_t i = 0; i < count; ++i) want.push_back(all.read(i).rgb);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < 4 * count; ++i) {
          const int64_t at = (i * 7 + t * 11) % count;
          wrong += all.read(at).rgb != want[static_cast<size_t>(at)];
          wrong += all.name(at).empty();
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

// ---- Real data --------------------------------------------------------------

class RealData : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("AFT_DATA");
    if (!data) GTEST_SKIP() << "AFT_DATA does not name a folder of real data";
    path_ = data;
  }
  std::string path_;
};

bool is_grey(const io::Image& image) {
  for (size_t i = 0; i < image.rgb.size(); i += 3)
    if (image.rgb[i] != image.rgb[i + 1] || image.rgb[i] != image.rgb[i + 2])
      return false;
  return true;
}

TEST_F(RealData, ImageNetValidation) {
  const LabelledImages all =
      LabelledImages::open(path_ + "/imagenet_val1000_224", 0);
  ASSERT_EQ(all.test().size(), 1000u);
  ASSERT_EQ(all.classes().size(), 1000u);
  EXPECT_EQ(all.classes()[0], "n01440764 tench, Tinca tinca");
  EXPECT_EQ(
      std::set<std::string>(all.classes().begin(), all.classes().end()).size(),
      1000u);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(all.label(i), i);
    const io::Image image = all.read(i);
    ASSERT_EQ(image.height, 224) << all.name(i);
    ASSERT_EQ(image.width, 224) << all.name(i);
  }
  EXPECT_NE(all.name(1).find("/images/ILSVRC2012_val_00000236.jpg"),
            std::string::npos);
}

TEST_F(RealData, Imagenette) {
  const LabelledImages all =
      LabelledImages::open(path_ + "/imagenette224_mini", 100);
  ASSERT_EQ(all.classes().size(), 10u);
  EXPECT_EQ(all.classes()[9], "n03888257");
  EXPECT_EQ(all.train().size(), 1900u);
  EXPECT_EQ(all.test().size(), 1000u);
  for (int label = 0; label < 10; ++label) {
    EXPECT_EQ(histogram(all, all.valid())[label], 10);
    EXPECT_EQ(histogram(all, all.test())[label], 100);
  }
  int grey = 0;
  for (int64_t i = 0; i < all.count(); ++i) {
    // The names of files in train/ begin with their class.
    const std::string file = fs::path(all.name(i)).filename();
    if (file[0] == 'n') {
      EXPECT_EQ(file.substr(0, 9),
                all.classes()[static_cast<size_t>(all.label(i))]);
    }
    const io::Image image = all.read(i);
    ASSERT_EQ(image.height, 224) << all.name(i);
    grey += is_grey(image);
  }
  EXPECT_GT(grey, 0);
  EXPECT_LT(grey, 300);
}

TEST_F(RealData, Cifar) {
  const LabelledImages all =
      LabelledImages::open(path_ + "/cifar-10-batches-bin", 1000);
  EXPECT_EQ(all.test().size(), 10000u);
  for (int label = 0; label < 10; ++label) {
    EXPECT_EQ(histogram(all, all.test())[label], 1000);
    EXPECT_NEAR(histogram(all, all.valid())[label], 100, 4);
  }
  // The first test image is a cat.
  EXPECT_EQ(all.classes()[static_cast<size_t>(all.label(all.test()[0]))],
            "cat");
}

}  // namespace
}  // namespace aft::data
