// Reading, appending to and atomically replacing files; removing temporary
// files.
#include "aft/io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "aft/io/safetensors.h"
#include "tests/io/message_of.h"
#include "tests/scratch.h"

namespace aft::io {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class WriteFile : public ::testing::Test {
 protected:
  void SetUp() override { directory_ = new_folder(); }
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

/// Several writers of one file, and a thread that removes temporary files of
/// killed processes: no call fails, and a reader always sees a complete text.
TEST_F(WriteFile, ConcurrentWriters) {
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
}

TEST_F(WriteFile, RemovesOnlyTemporaryFiles) {
  const std::vector<std::string> others = {
      ".unfinished-",        ".unfinished--",   ".unfinished--1",
      ".unfinished-1",       ".unfinished-1-",  ".unfinished-1-2-3",
      ".unfinished-1-2.txt", ".unfinished-a-2", ".unfinished-business.txt",
      "a.unfinished-1-2"};
  for (const std::string& name : others)
    std::ofstream(directory_ + "/" + name) << "theirs";
  std::ofstream(directory_ + "/.unfinished-1-0") << "ours";
  std::ofstream(directory_ + "/.unfinished-1234567-89") << "ours";
  remove_unfinished(directory_);
  std::vector<std::string> left = listing();
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, others);
}

TEST_F(WriteFile, CreatesDirectories) {
  const std::string path = directory_ + "/d/";
  EXPECT_TRUE(make_directory(path));
  EXPECT_FALSE(make_directory(path));
  EXPECT_FALSE(make_directory("/"));
  EXPECT_EQ(message_of([&] { make_directory(directory_ + "/no/d"); }),
            directory_ + "/no/d: cannot be created: No such file or directory");
}

TEST_F(WriteFile, PreparesFiles) {
  const std::string path = directory_ + "/new/folder/a";
  prepare_file(path);
  EXPECT_EQ(listing(), std::vector<std::string>{"new"});
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/new/folder"));
  write_file(path, "old");
  prepare_file(path);
  EXPECT_EQ(contents(path), "old");
  // The same messages as when the file is written.
  for (const std::string& bad :
       {directory_ + "/new", path + "/b", std::string("/dev/null")}) {
    const std::string message = message_of([&] { prepare_file(bad); });
    EXPECT_NE(message, "no error") << bad;
    EXPECT_EQ(message, message_of([&] { write_file(bad, ""); })) << bad;
  }
}

TEST_F(WriteFile, RejectsTargetsThatAreNotRegularFiles) {
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, directory_}) {
    EXPECT_EQ(message_of([&] { write_file(path, "text"); }),
              path + ": cannot be written: it is not a regular file");
  }
  const auto refused = [](const std::string& path) {
    EXPECT_EQ(message_of([&] { append_file(path, "text"); }),
              path + ": cannot be written: it is not a regular file");
  };
  refused(pipe);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  refused(pipe);
  char byte;
  EXPECT_EQ(read(reader, &byte, 1), 0) << "a byte was written";
  close(reader);
  refused("/dev/full");
  struct stat info;
  ASSERT_EQ(stat(pipe.c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
}

TEST_F(WriteFile, FailureNamesTheFileAndKeepsTheOldContents) {
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
  try {
    append_file(directory_ + "/b", std::string(5000, 'x'));
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), directory_ + "/b: cannot be written: File too large");
  }
  ASSERT_EQ(unlink((directory_ + "/b").c_str()), 0);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(listing(), std::vector<std::string>{"a"});
  EXPECT_THROW(write_file(directory_ + "/nowhere/a", "x"), Error);
}

using ReadFile = WriteFile;

TEST_F(ReadFile, ReadsWholeFiles) {
  const std::string path = directory_ + "/a";
  std::string text("a\0b\n", 4);
  for (const size_t size : {0, 4, 65535, 65536, 65537, 1000000}) {
    text.resize(size, 'x');
    write_file(path, text);
    EXPECT_EQ(read_file(path, size), text);
    EXPECT_EQ(read_file(path, 1 << 30), text);
  }
  EXPECT_NE(read_file("/proc/self/status", 1 << 20).find("VmSize"),
            std::string::npos);  // its size is 0
}

TEST_F(ReadFile, ReadsPipesOnlyAsInputs) {
  const std::string path = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(message_of([&] { read_file(path, 9); }).find("a special file"),
            std::string::npos);
  for (const size_t size : {5, 10}) {
    std::thread writer([&] { std::ofstream(path) << std::string(size, 'x'); });
    const std::string message =
        message_of([&] { EXPECT_EQ(read_input(path, 9), "xxxxx"); });
    EXPECT_EQ(message, size == 5
                           ? "no error"
                           : path + ": must have at most 9 bytes, got more");
    writer.join();
  }
  EXPECT_NE(message_of([&] { read_input(directory_, 9); }).find("a directory"),
            std::string::npos);
}

TEST_F(ReadFile, RejectsWhatIsNotReadable) {
  const auto refused = [](const std::string& path, size_t limit,
                          const std::string& why) {
    try {
      read_file(path, limit);
      ADD_FAILURE() << path << " was read";
    } catch (const Error& e) {
      EXPECT_EQ(e.what(), path + ": " + why);
    }
  };
  const std::string path = directory_ + "/a", pipe = directory_ + "/pipe";
  refused(path, 10, "cannot be opened: No such file or directory");
  write_file(path, "12345");
  refused(path, 4, "must have at most 4 bytes, got 5");
  refused("/proc/self/status", 4, "must have at most 4 bytes, got more");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  refused(pipe, 10, "must be a regular file, got a special file");
  refused("/dev/zero", 10, "must be a regular file, got a special file");
  refused(directory_, 10, "must be a regular file, got a directory");
}

}  // namespace
}  // namespace aft::io
