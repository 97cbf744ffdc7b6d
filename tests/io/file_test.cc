// Files that are replaced in one step, and what is left of those that were not.
#include "aft/io/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

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
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& e : std::filesystem::directory_iterator(directory_))
      names.push_back(e.path().filename());
    return names;
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
  EXPECT_EQ(listing(), std::vector<std::string>{"a"});
}

TEST_F(WriteFile, KeepsTheMode) {
  const std::string path = directory_ + "/a";
  write_file(path, "old");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  write_file(path, "new");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

/// Writers of one file, and one who removes what is left over: each text is
/// whole, and nobody is in another's way.
TEST_F(WriteFile, ManyAtOnce) {
  const std::string path = directory_ + "/a";
  write_file(path, std::string(5000, 'a'));
  std::ofstream(directory_ + "/.unfinished-1-0") << "left";
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (char c = 'a'; c < 'e'; ++c)
    threads.emplace_back([&, c] {
      for (int i = 0; i < 50; ++i)
        EXPECT_NO_THROW(write_file(path, std::string(5000, c)));
    });
  std::thread remover([&] {
    while (!done) remove_unfinished(directory_);
  });
  for (int i = 0; i < 200; ++i) {
    const std::string text = contents(path);
    ASSERT_EQ(text.size(), 5000u);
    ASSERT_EQ(text, std::string(5000, text[0]));
  }
  for (std::thread& t : threads) t.join();
  done = true;
  remover.join();
  remove_unfinished(directory_);
  EXPECT_EQ(listing(), std::vector<std::string>{"a"});
}

TEST_F(WriteFile, Appends) {
  const std::string path = directory_ + "/a";
  append_file(path, "one\n");
  append_file(path, "two\n");
  EXPECT_EQ(contents(path), "one\ntwo\n");
  try {
    append_file("/dev/full", "x");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "/dev/full: cannot be written: No space left on device");
  }
}

TEST_F(WriteFile, MakesDirectories) {
  const std::string path = directory_ + "/d/";
  EXPECT_TRUE(make_directory(path));
  EXPECT_FALSE(make_directory(path));
  EXPECT_FALSE(make_directory("/"));
  try {
    make_directory(directory_ + "/no/d");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(),
              directory_ + "/no/d: cannot be made: No such file or directory");
  }
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
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small = {4096, old.rlim_max};
  signal(SIGXFSZ, SIG_IGN);  // the write then fails like that of a full disk
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  try {
    write_file(path, std::string(5000, 'x'));
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), path + ": cannot be written: File too large");
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(listing(), std::vector<std::string>{"a"});
  EXPECT_THROW(write_file(directory_ + "/nowhere/a", "x"), Error);
}

}  // namespace
}  // namespace aft::io
