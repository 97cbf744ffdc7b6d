// Temporary folders of a test process, deleted when it ends.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace aft {

inline const std::string& scratch() {
  struct Folder {
    std::string path = ::testing::TempDir() + "aft_test_XXXXXX";
    const pid_t owner = getpid();
    Folder() {
      EXPECT_NE(mkdtemp(path.data()), nullptr) << path;
      // Some tests run as another user.
      EXPECT_EQ(chmod(path.c_str(), 0755), 0);
    }
    ~Folder() {
      std::error_code ignored;
      if (getpid() == owner) std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder own;
  return own.path;
}

/// Creates an empty folder of that name in scratch().
inline std::string folder(const std::string& name) {
  const std::string path = scratch() + "/" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

/// Creates a folder with a unique name in scratch().
inline std::string new_folder() {
  std::string path = scratch() + "/XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr) << path;
  return path;
}

}  // namespace aft
