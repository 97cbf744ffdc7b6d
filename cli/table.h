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

/// Formats x with at least this many significant digits and no exponent:
/// 0.0123, 1.23, 123, 1234.
std::string number(double x, int digits = 3);

/// The columns of the terminal on stderr, for a line that is overwritten. 0:
/// print plain lines, since stderr is not a terminal or, by the environment
/// variable TERM, one that cannot overwrite.
size_t terminal_columns();

/// A part of a line that is overwritten.
struct Field {
  std::string text;
  int importance;  ///< of fields with the same one, the last is dropped first
};

/// Joins fields with two blanks. Drops the least important ones, but not the
/// first, until the line is shorter than `columns`. 0: drops none.
std::string fitted(std::vector<Field> fields, size_t columns);

/// Overwrites the current line of a terminal with `line`, truncated to its
/// `columns`, without a newline.
void overwrite_line(const std::string& line, size_t columns);

/// Shows the current item of a list of tasks on stderr: a single line that is
/// overwritten on a terminal, one line per item elsewhere.
class Progress {
 public:
  /// overwrite: false if other output follows each item, on a terminal too.
  explicit Progress(size_t total, bool overwrite = true)
      : total_(total), overwrite_(overwrite) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Announces the next of `total` items.
  void next(const std::string& what);

 private:
  size_t total_, done_ = 0;
  bool overwrite_;
};

}  // namespace aft::cli
