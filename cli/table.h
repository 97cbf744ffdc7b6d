// Human-readable output: tables for stdout, progress on stderr.
#pragma once

#include <string>
#include <vector>

namespace aft::cli {

/// Formats a table with columns as wide as their longest cell. The first `left`
/// columns are left-aligned, the others right-aligned.
std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows,
                  size_t left);

/// Formats x with at least three significant digits and no exponent: 0.0123,
/// 1.23, 123, 1234.
std::string number(double x);

/// Shows the current item of a list of tasks on stderr: a single line that is
/// overwritten on a terminal, one line per item elsewhere.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Announces the next of `total` items.
  void next(const std::string& what);

 private:
  size_t total_, done_ = 0;
};

}  // namespace aft::cli
