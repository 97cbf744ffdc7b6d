// Shared by the tests of LabelledImages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "aft/data/labelled_images.h"
#include "tests/scratch.h"

namespace aft::data {

namespace fs = std::filesystem;

using Strings = std::vector<std::string>;

inline void write(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Writes an image of one colour, which identifies it.
inline void write_image(const std::string& path, int colour) {
  fs::create_directories(fs::path(path).parent_path());
  io::write_png(path,
                {2, 3, std::vector<uint8_t>(18, static_cast<uint8_t>(colour))});
}

/// Expects that opening a folder throws a DataError whose message contains all
/// of `parts`.
inline void expect_error(const std::string& path, const Strings& parts,
                         int64_t valid = 0, int64_t size = 64) {
  try {
    LabelledImages::open(path, valid, size);
    ADD_FAILURE() << "no error: " << parts[0];
  } catch (const DataError& e) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << "\"" << e.what() << "\" must have \"" << part << "\"";
  }
}

/// The colours of a part.
inline std::vector<int> colours(const LabelledImages& all,
                                const LabelledPart& part) {
  std::vector<int> out;
  for (const int64_t i : part) out.push_back(all.read(i).rgb[0]);
  return out;
}

inline std::vector<int> labels(const LabelledImages& all,
                               const LabelledPart& part) {
  std::vector<int> out;
  for (const int64_t i : part) out.push_back(static_cast<int>(all.label(i)));
  return out;
}

/// The number of images per class.
inline std::map<int, int> histogram(const LabelledImages& all,
                                    const LabelledPart& part) {
  std::map<int, int> out;
  for (const int label : labels(all, part)) ++out[label];
  return out;
}

/// Expects every image exactly once in exactly one part.
inline void expect_partition(const LabelledImages& all) {
  std::vector<int64_t> seen;
  for (const char* name : {"train", "valid", "test"}) {
    const LabelledPart& part = all.split(name);
    EXPECT_TRUE(std::is_sorted(part.begin(), part.end())) << name;
    seen.insert(seen.end(), part.begin(), part.end());
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(static_cast<int64_t>(seen.size()), all.count());
  for (int64_t i = 0; i < all.count(); ++i)
    ASSERT_EQ(seen[static_cast<size_t>(i)], i);
}

inline std::string fingerprint(const std::string& path, int64_t valid = 0) {
  return LabelledImages::open(path, valid).fingerprint();
}

}  // namespace aft::data
