// The directory of a run, which belongs to one process at a time.
#pragma once

#include <string>

namespace aft::cli {

/// With several processes rank 0 has it: two would write over each other.
class Claim {
 public:
  Claim() = default;
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// A directory that is there. Throws std::runtime_error where another process
  /// has it.
  void take(const std::string& directory);
  /// A new one; one that holds a run, or what is left of one, is refused. A run
  /// that was killed before it had its config.json, which comes after its first
  /// checkpoint, is none: its call may simply be repeated. Throws UsageError
  /// for a run, std::runtime_error for what is no directory to write to.
  void make(const std::string& directory);

 private:
  int fd_ = -1;
};

}  // namespace aft::cli
