// Training progress on stderr: a single line on a terminal, which is
// overwritten and shortened to its width; one line per report elsewhere.
#pragma once

#include <string>

#include "aft/train/trainer.h"

namespace aft::cli {

class TrainingProgress {
 public:
  /// unit: the unit of the loss in bits, for example "bpc"; empty if the task
  /// has none, and then the rate counts images instead of tokens.
  /// drawn: kernel positions are sampled from softmax(w) during training.
  TrainingProgress(std::string unit, bool drawn);
  ~TrainingProgress() { close(); }
  TrainingProgress(const TrainingProgress&) = delete;
  TrainingProgress& operator=(const TrainingProgress&) = delete;

  void show(const train::Report& report, bool reported);
  /// Terminates the current line on a terminal.
  void close();

 private:
  std::string validation(const train::Report& report) const;

  const std::string unit_;
  const bool drawn_;
  bool open_ = false;
};

}  // namespace aft::cli
