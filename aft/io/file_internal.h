// Internal to aft/io: the single implementation of atomic file replacement.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace aft::io::internal {

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// open(2), retried if interrupted by a signal.
int open_file(const char* path, int flags);

struct Piece {
  const void* data;
  size_t bytes;
};

/// Atomically replaces the contents of `path` with the concatenated pieces:
/// temporary file, fsync, rename, fsync of the directory. Error messages start
/// with `name`.
void replace_file(const std::string& path, const std::vector<Piece>& pieces,
                  const std::string& name);

}  // namespace aft::io::internal
