// Training curves: charts of the metrics of runs.
#pragma once

#include <string>
#include <vector>

#include "cli/plot/page.h"

namespace aft::cli {

inline constexpr size_t kMostCurves = 16;  ///< per chart

/// Reads the metrics of a run and replaces its curve: training and validation
/// loss in the unit of the task (TaskKind::unit) against the step; for
/// classifiers the loss in nats, and top-1.
/// Does nothing if there are no metrics yet. Throws io::Error if the file
/// cannot be written.
void write_curve(const std::string& directory);

/// The chart that write_curve draws; without panels if there are no metrics
/// yet.
Chart run_chart(const std::string& directory);

/// The validation loss in the unit of the task (for classifiers: top-1) of at
/// most kMostCurves runs, against the step and against training time. Throws
/// UsageError if they are of different tasks and std::runtime_error if a run
/// has no validation results yet.
Chart runs_chart(const std::vector<std::string>& directories);

}  // namespace aft::cli
