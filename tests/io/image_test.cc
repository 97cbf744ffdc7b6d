// Pictures: files of every kind against Pillow (tests/golden/make_images.py),
// and files that are cut, altered or hostile.
#include "aft/io/image.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "aft/io/file.h"
#include "aft/io/safetensors.h"

namespace aft::io {
namespace {

const std::string kGolden = AFT_TEST_DIR "/golden/images/";

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string golden(const std::string& name) {
  std::string bytes = contents(kGolden + name);
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

Image decode(const std::string& bytes) {
  // A copy of its own size, so that the sanitizer sees a read past the end.
  const std::vector<uint8_t> data(bytes.begin(), bytes.end());
  return decode_image(data.data(), data.size(), "name");
}

Image image_of(const TensorView& view) {
  EXPECT_EQ(view.shape.size(), 3u);
  const auto* data = static_cast<const uint8_t*>(view.data);
  return {view.shape[0], view.shape[1], {data, data + view.bytes}};
}

SafeTensors expected() {
  return SafeTensors::open(kGolden + "expected.safetensors");
}

void expect_equal(const Image& got, const Image& want, int tolerance = 0) {
  ASSERT_EQ(got.height, want.height);
  ASSERT_EQ(got.width, want.width);
  ASSERT_EQ(got.rgb.size(), want.rgb.size());
  for (size_t i = 0; i < want.rgb.size(); ++i) {
    ASSERT_LE(std::abs(got.rgb[i] - want.rgb[i]), tolerance)
        << "row " << i / 3 / want.width << ", column " << i / 3 % want.width
        << ", channel " << i % 3 << ": " << int{got.rgb[i]} << ", not "
        << int{want.rgb[i]};
  }
}

// That call() throws an Error with all of parts in it.
template <typename Call>
void expect_error(const Call& call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << "\"" << e.what() << "\" must have \"" << part << "\"";
    }
  }
}

void expect_bad(const std::string& bytes, const std::string& part) {
  expect_error([&] { decode(bytes); }, {"name: ", part});
}

Image noise(int64_t height, int64_t width) {
  std::mt19937 random(1);
  Image image{height, width, std::vector<uint8_t>(height * width * 3)};
  for (uint8_t& v : image.rgb) v = static_cast<uint8_t>(random());
  return image;
}

// ---- PNG by hand ------------------------------------------------------------

std::string big_endian(uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16),
          static_cast<char>(v >> 8), static_cast<char>(v)};
}

uint32_t big_endian_at(const std::string& bytes, size_t at) {
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i) v = v << 8 | static_cast<uint8_t>(bytes[at + i]);
  return v;
}

uint32_t crc(const std::string& bytes) {
  uint32_t c = ~0u;
  for (const char ch : bytes) {
    c ^= static_cast<uint8_t>(ch);
    for (int bit = 0; bit < 8; ++bit) c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
  }
  return ~c;
}

// With right checksums, as far as the lengths of the chunks lead.
std::string sealed(std::string png) {
  size_t at = 8;
  while (png.size() - at >= 12) {
    const size_t length = big_endian_at(png, at);
    if (length > png.size() - at - 12) break;
    png.replace(at + 8 + length, 4,
                big_endian(crc(png.substr(at + 4, length + 4))));
    at += 12 + length;
  }
  return png;
}

// The file with another size in its header.
std::string png_of_size(uint32_t height, uint32_t width) {
  std::string png = golden("rgb.png");
  png.replace(16, 8, big_endian(width) + big_endian(height));
  return sealed(png);
}

// ---- JPEG by hand -----------------------------------------------------------

std::string segment(char marker, const std::string& data) {
  return std::string("\xff") + marker + big_endian(data.size() + 2).substr(2) +
         data;
}

// 8 x 8 YCbCr, each channel in scans of its own: scans = "122" is one of the
// first and two of the second. Luminance is 128 + 32, the others are 128.
std::string jpeg_with_scans(const std::string& scans) {
  const std::string ones(64, '\1');
  const std::string counts(14, '\0');
  std::string out = "\xff\xd8";
  out += segment('\xdb', std::string(1, '\0') + ones);
  out += segment('\xc0', std::string("\x08\0\x08\0\x08\x03"
                                     "1\x11\0"
                                     "2\x11\0"
                                     "3\x11\0",
                                     15));
  // DC: 0 for a difference of 0 bits, 10 for one of 9; AC: 0 for the end.
  out += segment('\xc4',
                 std::string("\0\1\1", 3) + counts + std::string("\0\x09", 2));
  out += segment('\xc4',
                 std::string("\x10\1\0", 3) + counts + std::string("\0", 1));
  for (const char id : scans) {
    const char scan[] = {1, id, 0, 0, 63, 0};
    out += segment('\xda', std::string(scan, 6));
    // 10 100000000 0 1111: 256 = 8 * 32; 0 0 111111: 0.
    out += id == '1' ? "\xa0\x0f" : "\x3f";
  }
  return out + "\xff\xd9";
}

// ---- Reading ----------------------------------------------------------------

TEST(ReadImage, EveryKindOfFile) {
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
    // Another libjpeg than Pillow's may round otherwise, but not to one side.
    expect_equal(got, want, 2);
    double sum = 0;
    for (const uint8_t v : got.rgb) sum += v;
    for (const uint8_t v : want.rgb) sum -= v;
    EXPECT_LT(std::abs(sum / static_cast<double>(want.rgb.size())), 0.2);
  }
  EXPECT_EQ(files, 25);
}

TEST(ReadImage, BytesAfterTheEndDoNotMatter) {
  for (const char* name : {"rgb.png", "baseline.jpg"}) {
    const std::string bytes = golden(name);
    expect_equal(decode(bytes + "more"), decode(bytes));
  }
}

TEST(ReadImage, AnUnknownVersionOfJfifDoesNotMatter) {
  std::string bytes = golden("full.jpg");
  const size_t at = bytes.find("JFIF");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 5] = 9;
  expect_equal(decode(bytes), decode(golden("full.jpg")));
}

TEST(ReadImage, StrayBytesBeforeAMarkerDoNotMatter) {
  for (const char* name : {"baseline.jpg", "progressive.jpg", "grey.jpg"}) {
    SCOPED_TRACE(name);
    const std::string bytes = golden(name);
    // Quantisation, the (first) scan and the end.
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
    directory_ = ::testing::TempDir() + "/image_test_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/a";
  }
  void TearDown() override {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }
  void expect_unreadable(const std::string& part) {
    expect_error([&] { read_image(path_); }, {path_ + ": ", part});
  }
  std::string directory_, path_;
};

TEST_F(Files, ThatAreNoPicture) {
  expect_unreadable("No such file");
  write_file(path_, "");
  expect_unreadable("PNG or JPEG, got an empty file");
  write_file(path_, "GIF89a\1\n and so on");
  expect_unreadable("begins with \"GIF89a\\x01\\x0a\"");
  write_file(path_, golden("rgb.png").substr(0, 4));
  expect_unreadable("begins with \"\\x89PNG\"");
  expect_error([&] { read_image(directory_); }, {directory_, "a directory"});
}

TEST_F(Files, AFifoIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0666), 0);
  expect_unreadable("must be a regular file");
}

TEST_F(Files, TooLarge) {
  write_file(path_, golden("rgb.png"));
  ASSERT_EQ(::truncate(path_.c_str(), 1'000'000'001), 0);  // a hole: no room
  expect_unreadable("at most 1000000000 bytes, got 1000000001");
}

// ---- Bad files --------------------------------------------------------------

TEST(BadImage, CutAnywhere) {
  for (const char* name :
       {"rgb.png", "interlaced.png", "palette_alpha.png", "rgba16.png",
        "baseline.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg"}) {
    const std::string whole = golden(name);
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_THROW(decode(whole.substr(0, size)), Error) << name << " " << size;
    }
  }
}

TEST(BadImage, Size) {
  // After the check, this much memory would be a bad_alloc.
  for (const uint32_t side : {60000u, 0x7fffffffu}) {
    expect_bad(png_of_size(side, side),
               "at most 67108864 pixels, got " + std::to_string(side));
  }
  expect_bad(png_of_size(1, (1 << 26) + 1), "at most 67108864 pixels");
  expect_bad(png_of_size(0, 1), "height is zero");
  expect_bad(png_of_size(1, 0), "width is zero");
  expect_bad(png_of_size(14, 19), "Not enough image data");

  std::string jpeg = golden("baseline.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");  // 65500
  expect_bad(jpeg, "got 65500 x 65500");
  jpeg.replace(frame + 5, 4, "\xff\xff\xff\xff");  // more than libjpeg takes
  expect_bad(jpeg, "Maximum supported image dimension is 65500 pixels");
  jpeg.replace(frame + 5, 4, std::string(4, '\0'));
  expect_bad(jpeg, "Empty JPEG image");
}

// A few bytes do not get memory for pixels that they cannot have.
TEST(BadImage, TooShortForItsPixels) {
  const std::string png = png_of_size(8192, 8192);
  expect_bad(png, "must have enough bytes for its 8192 x 8192 pixels, got " +
                      std::to_string(png.size()));
  // The bound itself: grey of 1 bit, 2 bytes a row.
  std::string grey = golden("grey1.png");
  const auto rows = static_cast<uint32_t>(grey.size()) * 1032 / 2;
  const auto of_height = [&](uint32_t height) {
    grey.replace(16, 8, big_endian(8) + big_endian(height));
    return sealed(grey);
  };
  expect_bad(of_height(rows + 1), "must have enough bytes");
  expect_bad(of_height(rows), "must be a good PNG");  // but of fewer rows

  std::string jpeg = golden("baseline.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, std::string("\x20\0\x20\0", 4));
  expect_bad(jpeg, "must have enough bytes for its 8192 x 8192 pixels, got " +
                       std::to_string(jpeg.size()));
}

// The least bits that a picture can have: all blocks of one colour, a bit for
// DC and one for the end.
TEST(ReadImage, AJpegOfFewBytes) {
  constexpr size_t kSide = 2048, kBlocks = kSide * kSide / 64;
  std::string jpeg = "\xff\xd8";
  jpeg += segment('\xdb', std::string(1, '\0') + std::string(64, '\1'));
  jpeg += segment('\xc0', std::string("\x08\x08\0\x08\0\x01"
                                      "1\x11\0",
                                      9));
  for (const char table : {'\0', '\x10'})
    jpeg += segment('\xc4', table + std::string("\1", 1) +
                                std::string(15, '\0') + std::string(1, '\0'));
  jpeg += segment('\xda', std::string("\1"
                                      "1\0\0\x3f\0",
                                      6));
  jpeg += std::string(kBlocks / 4, '\0') + "\xff\xd9";
  expect_equal(decode(jpeg),
               {kSide, kSide, std::vector<uint8_t>(kSide * kSide * 3, 128)});
}

TEST(BadImage, Checksum) {
  for (const char* chunk : {"IHDR", "gAMA", "IDAT", "IEND"}) {
    std::string png = golden("rgb.png");
    const size_t at = png.find(chunk);
    ASSERT_NE(at, std::string::npos) << chunk;
    png[at + 4 + big_endian_at(png, at - 4)] ^= 1;
    expect_bad(png, "CRC error");
  }
}

TEST(BadImage, Palette) {
  std::string png = golden("palette2.png");
  const size_t at = png.find("PLTE");
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(png[at - 1], 12);
  png[at - 1] = 9;  // one colour less
  png.erase(at + 4 + 9, 3);
  expect_bad(sealed(png), "outside the palette");
}

TEST(BadImage, CorruptJpeg) {
  std::string jpeg = golden("baseline.jpg");
  jpeg.replace(jpeg.size() - 40, 2, "\xff\xd9");  // an end amid the data
  expect_bad(jpeg, "Corrupt JPEG data: premature end");
  // Passing over stray bytes does not pass over an end that comes early.
  jpeg = golden("baseline.jpg");
  jpeg.replace(jpeg.size() - 2, 2, std::string(20, '\1'));
  expect_bad(jpeg, "Premature end of JPEG file");
}

TEST(BadImage, ScansOfAJpeg) {
  expect_equal(decode(jpeg_with_scans("123")),
               {8, 8, std::vector<uint8_t>(8 * 8 * 3, 160)});
  expect_bad(jpeg_with_scans("12"), "a channel is missing");
  expect_bad(jpeg_with_scans("123" + std::string(1000, '3')), "too many scans");
}

// Whatever is altered: an error, or a picture of the size that it says, and not
// a word on stderr.
TEST(BadImage, AlteredAnywhere) {
  std::mt19937 random(2);
  int read = 0, refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      const Image image = decode(bytes);
      EXPECT_GE(image.height, 1);
      EXPECT_GE(image.width, 1);
      EXPECT_EQ(image.rgb.size(),
                static_cast<size_t>(image.height * image.width * 3));
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  };
  ::testing::internal::CaptureStderr();
  for (const char* name :
       {"rgb.png", "palette_alpha.png", "palette4_interlaced.png", "rgba16.png",
        "rgb_key.png", "baseline.jpg", "progressive.jpg", "ycck.jpg"}) {
    const std::string whole = golden(name);
    for (int i = 0; i < 600; ++i) {
      std::string bytes = whole;
      for (int flips = 1 + i % 3; flips > 0; --flips) {
        bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
      }
      attempt(bytes);
      if (whole[1] == 'P') attempt(sealed(bytes));  // past the checksums
    }
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 4000);
}

// ---- Writing ----------------------------------------------------------------

TEST_F(Files, AWrittenPngIsReadAgain) {
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

// Nothing packs better, and it is not taken for a lie.
TEST_F(Files, AWrittenPngOfOneColour) {
  const Image black{4096, 4096, std::vector<uint8_t>(4096 * 4096 * 3)};
  write_png(path_, black);
  EXPECT_LT(contents(path_).size() * 900, black.rgb.size());
  const Image again = read_image(path_);
  EXPECT_EQ(again.height, 4096);
  EXPECT_EQ(again.width, 4096);
  EXPECT_TRUE(again.rgb == black.rgb);
}

TEST_F(Files, WhatCannotBeWritten) {
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

// call(in, height, width) for all cases of that name.
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

TEST(Resize, ToTheBitAsPillow) { expect_cases("resize", 12, resize); }

TEST(Resize, CoverToTheBitAsPillow) { expect_cases("cover", 10, cover); }

TEST(Resize, AFlatPictureStaysFlat) {
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
  // Sizes that are only passed through.
  const Image tall = noise(10000, 1);
  bad([&] { resize(tall, 1, 10000); }, "between the passes");
  bad([&] { cover(tall, 1000, 1000); }, "before the cut");
}

}  // namespace
}  // namespace aft::io
