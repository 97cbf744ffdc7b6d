// The layout of a run directory: what `aft train` and `aft import` write and
// all other commands read. Only this module knows the names of the files.
//
//   config.json                   the configuration; written after the first
//                                 checkpoint, so a run that has it can resume
//   model.safetensors             the best weights so far
//   state/checkpoint.safetensors  the last checkpoint: weights, moments,
//                                 averages and step
//   metrics.jsonl                 one line per report (train/metrics.h)
//   curve.svg                     the training curve
//   plots/                        the figures of `aft plot`
//   data.txt                      the text, if it was read from a pipe
//
// A directory with only the first two is a model.
#pragma once

#include <string>
#include <utility>

#include "aft/base/error.h"

namespace aft::io {

using base::Error;

/// The directory of a new run already holds a run.
struct RunExists : Error {
  using Error::Error;
};

class RunDirectory {
 public:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.json"; }
  std::string weights() const { return path_ + "/model.safetensors"; }
  std::string state() const { return path_ + "/state"; }
  std::string checkpoint() const { return state() + "/checkpoint.safetensors"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string curve() const { return path_ + "/curve.svg"; }
  std::string plots() const { return path_ + "/plots"; }
  std::string data() const { return path_ + "/data.txt"; }

  bool has_config() const;
  bool has_weights() const;
  /// Also true if the checkpoint cannot be accessed, so that reading it reports
  /// why.
  bool has_checkpoint() const;
  /// The file that shows that the directory holds a run or a model; "" if it
  /// holds neither. A checkpoint alone does not count: it is left by a run that
  /// was killed before it wrote its configuration.
  std::string proof() const;

  /// Whether `path` names one of these files, or any file in state/, of a
  /// directory that holds a run or a model. Those in plots/ do not count.
  static bool owns(const std::string& path);

  /// Creates the directory and those of its parents that do not exist. Returns
  /// false if the directory already exists. Throws Error.
  bool create() const;
  /// Writes the configuration. Throws Error.
  void write_config(const std::string& json) const;
  /// Removes temporary files that killed processes left behind.
  void remove_unfinished() const noexcept;

 private:
  std::string path_;
};

/// Prevents two processes from writing to the same run directory. In a
/// distributed run, rank 0 holds the lock. The destructor releases it. File
/// systems without flock() get no protection.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Locks an existing directory. Throws Error if another process holds the
  /// lock.
  void acquire(const RunDirectory& directory);
  /// Creates and locks the directory of a new run. An existing directory
  /// without a run (see RunDirectory::proof) is accepted. Throws RunExists;
  /// Error if the path is not a writable directory or another process holds the
  /// lock.
  void create(const RunDirectory& directory);

 private:
  int fd_ = -1;
};

}  // namespace aft::io
