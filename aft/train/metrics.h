// The metrics of a run (RunDirectory::metrics()): a log in JSON, one line per
// report. This file owns the format; nothing else reads or writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace aft::train {

/// One line.
struct Metrics {
  int64_t step = 0;
  double loss = 0;  ///< mean training loss since the previous line, nats
  double rate = 0, norm = 0;  ///< learning rate, gradient norm
  double seconds = 0;         ///< training time so far
  double tokens_per_second = 0;
  std::optional<double> validation;  ///< validation loss, nats
  /// Further values of the validation by name: top1 and top5 as fractions;
  /// kernel_entropy in nats and kernel_top as a fraction.
  std::vector<std::pair<std::string, double>> values;
  /// The validation of weights where training was stopped; an uninterrupted run
  /// does not have it.
  bool stopped = false;

  /// The value of that name, or 0.
  double value(const std::string& name) const;
};

/// Appends one line. Throws io::Error.
void append_metrics(const std::string& path, const Metrics& metrics);

/// Reads all lines; skips lines that are not valid, such as an incomplete last
/// one. Missing values are 0. Returns no lines if the file does not exist.
/// Throws io::Error.
std::vector<Metrics> read_metrics(const std::string& path);

/// Removes the lines of steps after `step`, which training will write again,
/// those with `stopped`, and invalid ones. Returns the last remaining line, or
/// Metrics(). Throws io::Error.
Metrics truncate_metrics(const std::string& path, int64_t step);

}  // namespace aft::train
