// The curves of runs: metrics.jsonl as pictures.
#pragma once

#include <string>
#include <vector>

namespace aft::cli {

/// Reads DIR/metrics.jsonl and replaces DIR/curve.svg: training and validation
/// loss in bits against the step; of classes in nats, and top-1. Does nothing
/// where there is no metric yet. Throws io::Error where it cannot be written.
void write_curve(const std::string& directory);

/// Validation loss in bits (of classes: top-1) of several runs in one picture,
/// at most 8, against the step and against the time of training. Throws
/// std::runtime_error where a run has no validation yet, io::Error where the
/// file cannot be written.
void write_curves(const std::vector<std::string>& directories,
                  const std::string& path);

}  // namespace aft::cli
