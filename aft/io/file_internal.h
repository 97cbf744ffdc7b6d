// Inside of the room: how files come to lie on the disk, in one place.
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

/// open(2), again where a signal came between.
int open_file(const char* path, int flags);

struct Piece {
  const void* data;
  size_t bytes;
};

/// The pieces, one after the other, as the new contents of path, in one step: a
/// file beside it, fsync, rename, fsync of the directory. Errors begin with
/// `name`.
void replace_file(const std::string& path, const std::vector<Piece>& pieces,
                  const std::string& name);

}  // namespace aft::io::internal
