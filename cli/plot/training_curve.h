// The curves of runs: metrics.jsonl as pictures.
#pragma once

#include <string>
#include <vector>

#include "cli/figures/page.h"

namespace aft::cli {

inline constexpr size_t kMostCurves = 16;  ///< in one picture

/// Reads DIR/metrics.jsonl and replaces DIR/curve.svg: training and validation
/// loss in bits against the step; of classes in nats, and top-1. Does nothing
/// where there is no metric yet. Throws io::Error where it cannot be written.
void write_curve(const std::string& directory);

/// What write_curve draws; no panels where there is no metric yet.
Chart run_chart(const std::string& directory);

/// Validation loss in bits (of classes: top-1) of several runs in one picture,
/// at most kMostCurves, against the step and against the time of
/// training. Throws std::runtime_error where a run has no validation yet.
Chart runs_chart(const std::vector<std::string>& directories);

/// A chart as a whole SVG file.
std::string svg(const Chart& chart);

}  // namespace aft::cli
