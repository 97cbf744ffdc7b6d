#include "aft/io/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "aft/io/file.h"

namespace aft::io {

bool RunDirectory::has_config() const { return exists(config()); }

bool RunDirectory::has_weights() const { return exists(weights()); }

bool RunDirectory::has_checkpoint() const {
  return access(checkpoint().c_str(), F_OK) == 0 || errno != ENOENT;
}

std::string RunDirectory::proof() const {
  for (const std::string& file : {config(), weights(), metrics()})
    if (exists(file)) return file;
  return "";
}

bool RunDirectory::create() const {
  if (make_directories(path_)) return true;
  struct stat info;
  if (stat(path_.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    throw Error(path_ + ": exists but is not a directory");
  return false;
}

void RunDirectory::write_config(const std::string& json) const {
  write_file(config(), json);
}

void RunDirectory::remove_unfinished() const noexcept {
  io::remove_unfinished(path_);
  io::remove_unfinished(state());
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);
}

void RunLock::acquire(const RunDirectory& directory) {
  fd_ = open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(directory.path() +
                ": another process is training in this directory");
}

void RunLock::create(const RunDirectory& directory) {
  if (directory.create()) return acquire(directory);
  if (const std::string proof = directory.proof(); !proof.empty())
    throw RunExists(directory.path() + ": already holds a run (" +
                    proof.substr(directory.path().size() + 1) + ")");
  if (access(directory.path().c_str(), W_OK) != 0)
    throw Error(directory.path() +
                ": cannot be written to: " + std::strerror(errno));
  acquire(directory);
  directory.remove_unfinished();
}

}  // namespace aft::io
