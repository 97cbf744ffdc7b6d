// Shared by the tests of images: golden files, decoding, and expectations on
// images and errors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "aft/io/image.h"
#include "aft/io/safetensors.h"

namespace aft::io {

inline const std::string kGolden = AFT_TEST_DIR "/golden/images/";

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string golden(const std::string& name) {
  std::string bytes = contents(kGolden + name);
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

inline Image decode(const std::string& bytes) {
  // An exact copy, so that the sanitizer detects a read past the end.
  const std::vector<uint8_t> data(bytes.begin(), bytes.end());
  return decode_image(data.data(), data.size(), "name");
}

inline void expect_equal(const Image& got, const Image& want,
                         int tolerance = 0) {
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

// Expects that call() throws an Error whose message contains all of `parts`.
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

}  // namespace aft::io
