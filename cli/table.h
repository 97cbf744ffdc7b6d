// Output for people: tables on stdout, progress on stderr.
#pragma once

#include <string>
#include <vector>

namespace aft::cli {

/// Columns as wide as they must be. The first `left` columns are aligned left,
/// the others right, as numbers are.
std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows,
                  size_t left);

/// Three or more significant digits, no exponent: 0.0123, 1.23, 123, 1234.
std::string number(double x);

/// x beside what it should be: "1.23 >= 1.00 met"; target 0: x alone.
std::string verdict(double x, double target, bool at_most);

/// What is being done: one line that is overwritten on a terminal, a line each
/// elsewhere.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The next of `total` things begins.
  void next(const std::string& what);

 private:
  size_t total_, done_ = 0;
};

}  // namespace aft::cli
