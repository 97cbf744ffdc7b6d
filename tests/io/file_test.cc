// Small files that are replaced in one step.
#include "aft/io/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "aft/io/safetensors.h"

namespace aft::io {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class WriteFile : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/file_test_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
  }
  std::string directory_;
};

TEST_F(WriteFile, Replaces) {
  const std::string path = directory_ + "/a";
  write_file(path, std::string(100000, 'x'));
  EXPECT_EQ(contents(path).size(), 100000u);
  const std::string binary("a\0b", 3);
  write_file(path, binary);
  EXPECT_EQ(contents(path), binary);
  write_file(path, "");
  EXPECT_EQ(contents(path), "");
  EXPECT_NE(access((path + ".part").c_str(), F_OK), 0);
}

TEST_F(WriteFile, LeavesWhatIsNotAFileAlone) {
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, directory_}) {
    try {
      write_file(path, "text");
      ADD_FAILURE() << path << " was written";
    } catch (const Error& e) {
      EXPECT_EQ(e.what(),
                path + ": cannot be written: it is not a regular file");
    }
  }
  struct stat info;
  ASSERT_EQ(stat(pipe.c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
}

TEST_F(WriteFile, AFailureNamesTheFileAndKeepsTheOldOne) {
  const std::string path = directory_ + "/a";
  write_file(path, "old");
  ASSERT_EQ(mkdir((path + ".part").c_str(), 0777), 0);  // in its way
  try {
    write_file(path, "new");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
  }
  EXPECT_EQ(contents(path), "old");
  EXPECT_THROW(write_file(directory_ + "/nowhere/a", "x"), Error);
}

}  // namespace
}  // namespace aft::io
