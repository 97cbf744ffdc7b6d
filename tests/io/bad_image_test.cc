// Decoding truncated, altered or hostile bytes gives a clear error or an image,
// and never allocates memory only because a header declares a large size.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "aft/io/image.h"
#include "tests/io/image_fixture.h"

namespace aft::io {
namespace {

void expect_bad(const std::string& bytes, const std::string& part) {
  expect_error([&] { decode(bytes); }, {"name: ", part});
}

// ---- Handmade PNG -----------------------------------------------------------

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

// The PNG with corrected checksums, as far as its chunks can be followed.
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

// rgb.png with a different size in its header.
std::string png_of_size(uint32_t height, uint32_t width) {
  std::string png = golden("rgb.png");
  png.replace(16, 8, big_endian(width) + big_endian(height));
  return sealed(png);
}

// ---- Handmade JPEG ----------------------------------------------------------

std::string segment(char marker, const std::string& data) {
  return std::string("\xff") + marker + big_endian(data.size() + 2).substr(2) +
         data;
}

// 8 x 8 YCbCr with one channel per scan: scans = "122" is one scan of the first
// channel and two of the second. Luminance is 128 + 32, the others are 128.
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
  // DC: code 0 for a difference of 0 bits, 10 for 9 bits; AC: 0 ends the block.
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

// ---- Bad files --------------------------------------------------------------

TEST(BadImage, TruncatedAnywhere) {
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
  // Without the check, allocating this much would throw bad_alloc.
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
  jpeg.replace(frame + 5, 4, "\xff\xff\xff\xff");  // above the limit of libjpeg
  expect_bad(jpeg, "Maximum supported image dimension is 65500 pixels");
  jpeg.replace(frame + 5, 4, std::string(4, '\0'));
  expect_bad(jpeg, "Empty JPEG image");
}

// No memory is allocated for more pixels than the bytes can encode.
TEST(BadImage, TooShortForItsPixels) {
  const std::string png = png_of_size(8192, 8192);
  expect_bad(png, "must have enough bytes for its 8192 x 8192 pixels, got " +
                      std::to_string(png.size()));
  // The exact bound: 1-bit grey has 2 bytes per row.
  std::string grey = golden("grey1.png");
  const auto rows = static_cast<uint32_t>(grey.size()) * 1032 / 2;
  const auto of_height = [&](uint32_t height) {
    grey.replace(16, 8, big_endian(8) + big_endian(height));
    return sealed(grey);
  };
  expect_bad(of_height(rows + 1), "must have enough bytes");
  expect_bad(of_height(rows), "must be a valid PNG");  // it has fewer rows

  std::string jpeg = golden("baseline.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, std::string("\x20\0\x20\0", 4));
  expect_bad(jpeg, "must have enough bytes for its 8192 x 8192 pixels, got " +
                       std::to_string(jpeg.size()));
}

// The smallest possible JPEG: all blocks of one colour, with one bit for DC and
// one for the end of the block.
TEST(ReadImage, SmallestJpeg) {
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
  png[at - 1] = 9;  // one colour fewer
  png.erase(at + 4 + 9, 3);
  expect_bad(sealed(png), "outside the palette");
}

TEST(BadImage, CorruptJpeg) {
  std::string jpeg = golden("baseline.jpg");
  jpeg.replace(jpeg.size() - 40, 2,
               "\xff\xd9");  // an end marker within the data
  expect_bad(jpeg, "Corrupt JPEG data: premature end");
  // Stray bytes are skipped, but a missing end is still an error.
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

// Altered bytes give an error or an image of the declared size, and no output
// on stderr.
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

}  // namespace
}  // namespace aft::io
