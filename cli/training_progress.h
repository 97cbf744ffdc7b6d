// The line that says how training goes: one that is overwritten on a terminal,
// one a report elsewhere.
#pragma once

#include <string>

#include "aft/train/trainer.h"

namespace aft::cli {

class TrainLine {
 public:
  /// unit: of the loss in bits, "" where it has none and examples are counted;
  /// drawn: positions of kernels are drawn from softmax(w).
  TrainLine(std::string unit, bool drawn);
  ~TrainLine() { close(); }
  TrainLine(const TrainLine&) = delete;
  TrainLine& operator=(const TrainLine&) = delete;

  void show(const train::Report& report, bool reported);
  /// Ends the line on a terminal.
  void close();

 private:
  std::string validation(const train::Report& report) const;

  const std::string unit_;
  const bool drawn_, terminal_;
  bool open_ = false;
};

}  // namespace aft::cli
