#include "cli/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "aft/io/file.h"
#include "cli/commands.h"
#include "cli/model.h"

namespace aft::cli {

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);
}

void RunLock::take(const std::string& directory) {
  fd_ = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Where the file system has no locks, there is none.
  if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw std::runtime_error(directory + ": another process is training there");
}

void RunLock::make(const std::string& directory) {
  if (io::make_directory(directory)) return take(directory);
  if (!is_directory(directory))
    throw std::runtime_error(directory + ": is there, and not a directory");
  for (const char* name :
       {"config.json", "model.safetensors", "metrics.jsonl"}) {
    if (exists(directory + "/" + name))
      throw UsageError(directory + ": holds a run already (" + name +
                       "); go on with it by `aft train --resume " + directory +
                       "`, or choose another --out");
  }
  if (access(directory.c_str(), W_OK) != 0)
    throw std::runtime_error(directory +
                             ": cannot be written to: " + std::strerror(errno));
  take(directory);
  io::remove_unfinished(directory);
  io::remove_unfinished(directory + "/state");
}

}  // namespace aft::cli
