// Data sets: the order of examples, raw images, downloads.
#include "aft/data/data.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "aft/data/download.h"
#include "aft/data/raw_images.h"
#include "aft/io/image.h"
#include "aft/io/safetensors.h"
#include "tests/scratch.h"

namespace aft::data {
namespace {

namespace fs = std::filesystem;

/// The message of the exception that f throws; "" if none.
std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

TEST(Order, EpochVisitsEverythingOnce) {
  Order order(50, 1), again(50, 1), other(50, 2);
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < 100; ++i)
    (i < 50 ? first : second).push_back(order.at(i));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 50u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 50u);
  EXPECT_NE(first, second);
  EXPECT_EQ(again.at(57), second[7]);  // independent of the order of calls
  EXPECT_EQ(again.at(3), first[3]);
  int different = 0;
  for (int64_t i = 0; i < 50; ++i)
    different += other.at(i) != first[static_cast<size_t>(i)];
  EXPECT_GT(different, 25);
  EXPECT_EQ(Order(1, 1).at(7), 0);
}

constexpr int64_t kRecord = 3073;

/// Value of channel c at (y, x) of record i.
uint8_t value(int64_t i, int64_t y, int64_t x, int64_t c) {
  return static_cast<uint8_t>(i * 7 + y * 5 + x * 3 + c * 50);
}

/// A batch of CIFAR-10 whose first records are known, the others 0.
std::string batch() {
  std::string bytes(static_cast<size_t>(10000 * kRecord), '\0');
  for (int64_t i = 0; i < 20; ++i) {
    bytes[static_cast<size_t>(i * kRecord)] = static_cast<char>(i % 10);
    for (int64_t p = 0; p < 1024; ++p)
      for (int64_t c = 0; c < 3; ++c)
        bytes[static_cast<size_t>(i * kRecord + 1 + c * 1024 + p)] =
            static_cast<char>(value(i, p / 32, p % 32, c));
  }
  return bytes;
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(RawImages, Cifar) {
  const std::string path = folder("cifar"), whole = batch();
  write(path + "/data_batch_2.bin", whole);
  write(path + "/data_batch_5.bin", whole);
  write(path + "/test_batch.bin", whole);
  const RawImages all = RawImages::open(path, 32, 32, 300);
  EXPECT_EQ(all.train().count, 19700);
  EXPECT_EQ(all.valid().count, 300);
  EXPECT_EQ(all.test().count, 10000);
  EXPECT_EQ(all.split("valid").data, all.train()[19700]);
  EXPECT_EQ(all.split("all").data, all.train().data);
  EXPECT_EQ(all.split("all").count,
            all.train().count + all.valid().count + all.test().count);
  EXPECT_TRUE(all.has_test());
  EXPECT_THROW(all.split("dev"), DataError);
  for (const ImagePart& part : {all.train(), all.test()}) {
    EXPECT_EQ(part.size, 3072);
    for (int64_t i : {0, 1, 19})
      for (int64_t y : {0, 13, 31})
        for (int64_t x : {0, 7, 31})
          for (int64_t c : {0, 1, 2})
            ASSERT_EQ(part[i][(y * 32 + x) * 3 + c], value(i, y, x, c));
  }
  EXPECT_EQ(all.train()[10000][0], value(0, 0, 0, 0));  // the second batch
  // At another size: scaled like a single image.
  const RawImages half = RawImages::open(path, 16, 16, 0);
  io::Image image{32, 32, {all.test()[3], all.test()[3] + 3072}};
  const io::Image small = io::cover(image, 16, 16);
  EXPECT_EQ(half.train().count, 20000);
  EXPECT_TRUE(std::equal(small.rgb.begin(), small.rgb.end(), half.test()[3]));
  EXPECT_EQ(all.fingerprint(),
            RawImages::open(path, 32, 32, 300).fingerprint());

  // Only a test batch: no training images.
  fs::remove(path + "/data_batch_2.bin");
  EXPECT_NE(all.fingerprint(),
            RawImages::open(path, 32, 32, 300).fingerprint());
  fs::remove(path + "/data_batch_5.bin");
  EXPECT_EQ(RawImages::open(path, 32, 32, 300).train().count, 0);
  // Truncated files.
  const auto open = [&] { RawImages::open(path, 32, 32, 0); };
  for (const size_t size :
       {whole.size() - 1, whole.size() - kRecord, size_t{kRecord}, size_t{0}}) {
    write(path + "/data_batch_1.bin", whole.substr(0, size));
    const std::string text = failure(open);
    EXPECT_TRUE(has(text, "data_batch_1.bin")) << text;
    EXPECT_TRUE(has(text, "expected 30730000 bytes")) << text;
    EXPECT_TRUE(has(text, "got " + std::to_string(size))) << text;
  }
  std::string wrong = whole;
  wrong[static_cast<size_t>(4321 * kRecord)] = 10;
  write(path + "/data_batch_1.bin", wrong);
  const std::string text = failure(open);
  EXPECT_TRUE(has(text,
                  "data_batch_1.bin: record 4321: the label must be 0 "
                  "to 9, got 10"))
      << text;
}

/// An image of one colour.
io::Image plain(int64_t height, int64_t width, uint8_t colour) {
  return {
      height, width,
      std::vector<uint8_t>(static_cast<size_t>(3 * height * width), colour)};
}

TEST(RawImages, Folders) {
  const std::string path = folder("images");
  EXPECT_TRUE(
      has(failure([&] { RawImages::open(path, 4, 4, 0); }), "got none"));
  fs::create_directories(path + "/b/c");
  for (int i = 0; i < 20; ++i) {
    const std::string name =
        (i < 10 ? "/a" : "/b/c/d") + std::to_string(i) +
        (i % 2 ? ".PNG" : ".jpeg");  // the format is detected by content
    io::write_png(path + name, plain(5 + i, 9, static_cast<uint8_t>(10 * i)));
  }
  write(path + "/notes.txt", "not an image");
  int64_t told = 0;
  const RawImages all =
      RawImages::open(path, 4, 6, 100, [&](int64_t done, int64_t of) {
        EXPECT_EQ(of, 20);
        told = done;
      });
  EXPECT_EQ(told, 20);
  EXPECT_EQ(all.train().count, 17);
  EXPECT_EQ(all.valid().count, 1);  // at most a tenth
  EXPECT_EQ(all.test().count, 2);
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(all.train()[i][5], 10 * i);
  EXPECT_EQ(all.test()[0][0], 90);
  EXPECT_EQ(all.train()[9][0], 100);
  EXPECT_EQ(all.test()[1][71], 190);

  // The folder defines the parts.
  fs::create_directories(path + "/train"),
      fs::create_directories(path + "/val");
  io::write_png(path + "/train/x.png", plain(3, 3, 1));
  io::write_png(path + "/val/y.png", plain(3, 3, 2));
  EXPECT_EQ(RawImages::open(path, 2, 2, 0).train().count, 1);
  EXPECT_EQ(RawImages::open(path, 2, 2, 0).test()[0][0], 2);
  fs::create_directories(path + "/test");
  io::write_png(path + "/test/z.png", plain(3, 3, 3));
  EXPECT_EQ(RawImages::open(path, 2, 2, 0).test()[0][0], 3);

  write(path + "/train/broken.png", "\x89PNG\r\n\x1a\n and no more");
  const std::string text = failure([&] { RawImages::open(path, 2, 2, 0); });
  EXPECT_TRUE(has(text, "/train/broken.png")) << text;
  for (const auto& [name, got] :
       {std::pair("notes.txt", "a file; text is for text presets"),
        std::pair("train/x.png", "one image")}) {
    const std::string why =
        failure([&] { RawImages::open(path + "/" + name, 2, 2, 0); });
    EXPECT_TRUE(has(why, name)) << why;
    EXPECT_TRUE(has(why, "folder of images (--data or data.path)")) << why;
    EXPECT_TRUE(has(why, got)) << why;
  }
  EXPECT_TRUE(has(failure([] {
                    RawImages::open("/nowhere/cifar-10-batches-bin", 2, 2, 0);
                  }),
                  "aft data cifar-10-batches-bin --download"));
  for (const int64_t side : {int64_t{0}, int64_t{-1}, int64_t{5000}}) {
    EXPECT_THROW(RawImages::open("", side, 4, 0), DataError);
    EXPECT_THROW(RawImages::open("", 4, side, 0), DataError);
  }
  EXPECT_THROW(RawImages::open("", 4, 4, -1), DataError);
}

TEST(RawImages, BuiltIn) {
  const RawImages all = RawImages::open("", 16, 12, 100);
  EXPECT_EQ(all.train().count, 1900);
  EXPECT_EQ(all.test().count, 200);
  std::set<std::vector<uint8_t>> different;
  for (int64_t i = 0; i < 200; ++i)
    different.emplace(all.test()[i], all.test()[i] + all.test().size);
  EXPECT_EQ(different.size(), 200u);
  std::vector<uint8_t> again(16 * 12 * 3);
  draw_built_in_image(7, 16, 12, again.data());
  EXPECT_TRUE(std::equal(again.begin(), again.end(), all.train()[7]));
  // The sky is constant along rows: rows without a shape have a single colour.
  int plain_rows = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const uint8_t* row = all.test()[i];
    bool same = true;
    for (int64_t j = 3; j < 36; ++j) same = same && row[j] == row[j - 3];
    plain_rows += same;
  }
  EXPECT_GT(plain_rows, 100);
}

TEST(Fetch, VerifiesTheDownload) {
  const std::string directory = new_folder(), source = directory + "/source",
                    name = "abc";
  std::ofstream(source) << "abc";
  // SHA-256 of "abc", from FIPS 180.
  Dataset set{name, "", "file://" + source, 3,
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015a"
              "d"};
  EXPECT_EQ(fetch(set, directory, true), directory + "/abc");
  check_file(set, directory + "/abc");
  set.address = "file:///nowhere";  // already downloaded
  EXPECT_EQ(fetch(set, directory, true), directory + "/abc");
  std::ofstream(directory + "/abc") << "abd";
  EXPECT_THROW(fetch(set, directory, true), DataError);
  fs::remove(directory + "/abc");
  EXPECT_THROW(fetch(set, directory, true), DataError);
  set.address = "file://" + source, set.sha256[0] = 'c';
  EXPECT_THROW(fetch(set, directory, true), DataError);
  set.size = 4;
  EXPECT_THROW(fetch(set, directory, true), DataError);
  EXPECT_THROW(fetch(set, "/nowhere", true), DataError);
  size_t left = 0;
  for (const auto& entry : fs::directory_iterator(directory))
    left += entry.path().filename() != "source";
  EXPECT_EQ(left, 0u);
  EXPECT_NE(find_dataset("enwik8"), nullptr);
  EXPECT_EQ(find_dataset("enwik9"), nullptr);
}

TEST(Fetch, UnpacksArchives) {
  const std::string directory = new_folder();
  fs::create_directories(directory + "/from/things");
  std::ofstream(directory + "/from/things/one") << "1";
  const std::string archive = directory + "/a.tar.gz";
  ASSERT_EQ(std::system(("tar -czf " + archive + " -C " + directory +
                         "/from things && sha256sum " + archive + " > " +
                         directory + "/sum")
                            .c_str()),
            0);
  Dataset set{"things",
              "",
              "file://" + archive,
              static_cast<int64_t>(fs::file_size(archive)),
              "",
              true};
  std::ifstream(directory + "/sum") >> set.sha256;
  const std::string to = directory + "/to";
  fs::create_directory(to);
  Dataset wrong = set;
  wrong.sha256[0] = wrong.sha256[0] == 'a' ? 'b' : 'a';
  EXPECT_THROW(fetch(wrong, to, true), DataError);
  wrong = set, wrong.name = "others";  // not in the archive
  EXPECT_THROW(fetch(wrong, to, true), DataError);
  EXPECT_TRUE(fs::is_empty(to));
  EXPECT_EQ(fetch(set, to, true), to + "/things");
  EXPECT_TRUE(fs::exists(to + "/things/one"));
  EXPECT_EQ(std::distance(fs::directory_iterator(to), {}), 1);
  set.address = "file:///nowhere";  // already downloaded
  EXPECT_EQ(fetch(set, to, true), to + "/things");
}

}  // namespace
}  // namespace aft::data
