// An exclusive lock on a run directory.
#pragma once

#include <string>

namespace aft::cli {

/// Prevents two processes from writing to the same run directory. In a
/// distributed run, rank 0 holds the lock. The destructor releases it. File
/// systems without flock() get no protection.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Locks an existing directory. Throws std::runtime_error if another process
  /// holds the lock.
  void take(const std::string& directory);
  /// Creates and locks the directory of a new run. An existing directory is
  /// accepted unless it holds a run or parts of one. A run that was killed
  /// before it wrote config.json, which follows the first checkpoint, does not
  /// count, so the same command can be repeated. Throws UsageError if the
  /// directory holds a run, std::runtime_error if the path is not a writable
  /// directory or another process holds the lock.
  void make(const std::string& directory);

 private:
  int fd_ = -1;
};

}  // namespace aft::cli
