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

bool RunDirectory::owns(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory =
      slash == std::string::npos ? "." : path.substr(0, slash);
  const RunDirectory run(directory), above(directory + "/..");
  for (const std::string& file :
       {run.config(), run.weights(), run.metrics(), run.curve(), run.data()})
    if (file == directory + "/" + path.substr(slash + 1))
      return !run.proof().empty();
  // In state/, whatever the way to it.
  struct stat own, state;
  return !above.proof().empty() && stat(directory.c_str(), &own) == 0 &&
         stat(above.state().c_str(), &state) == 0 &&
         own.st_dev == state.st_dev && own.st_ino == state.st_ino;
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
