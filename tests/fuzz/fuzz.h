// Shared by the fuzz targets: assertions that libFuzzer and replay both notice,
// and in-memory files for readers that need a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

/// The entry point of libFuzzer, defined by each target.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace aft::fuzz {

/// Aborts unless `good`. Not assert, which release builds disable.
inline void expect(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

/// Expects an error message that starts with the file name and has no control
/// characters, which would reach a terminal.
inline void expect_message(const std::string& text, const std::string& begin) {
  expect(
      text.compare(0, begin.size(), begin) == 0 && text.size() > begin.size(),
      "the message must begin with " + begin + ", got " + text);
  for (const char c : text)
    expect(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f,
           "the message has a control character: " + text);
}

/// An in-memory file with a path. Leaves nothing behind after a crash.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    expect(fd_ >= 0, "memfd_create failed");
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// Replaces the contents.
  void put(const uint8_t* data, size_t size) {
    resize(0);
    write(0, data, size);
  }
  void resize(size_t size) {
    expect(::ftruncate(fd_, static_cast<off_t>(size)) == 0, "ftruncate failed");
  }
  void write(size_t at, const uint8_t* data, size_t size) {
    expect(size == 0 || ::pwrite(fd_, data, size, static_cast<off_t>(at)) ==
                            static_cast<ssize_t>(size),
           "pwrite failed");
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

}  // namespace aft::fuzz
