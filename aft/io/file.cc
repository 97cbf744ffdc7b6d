#include "aft/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "aft/io/safetensors.h"

namespace aft::io {

void write_file(const std::string& path, const std::string& text) {
  struct stat there;
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode))
    throw Error(path + ": cannot be written: it is not a regular file");
  const std::string part = path + ".part";
  const int fd =
      ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool good = fd >= 0;
  for (size_t done = 0; good && done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n > 0) done += static_cast<size_t>(n);
    good = n > 0 || errno == EINTR;
  }
  good = good && ::fsync(fd) == 0;
  int why = errno;
  if (fd >= 0) {
    const bool closed = ::close(fd) == 0;
    if (good && !closed) why = errno;
    good = good && closed;
  }
  if (good && ::rename(part.c_str(), path.c_str()) != 0) {
    why = errno;
    good = false;
  }
  if (good) return;
  if (fd >= 0) ::unlink(part.c_str());
  throw Error(path + ": cannot be written: " + std::strerror(why));
}

}  // namespace aft::io
