// metrics.jsonl, the log of a run: one line of JSON per report.
#pragma once

#include <cstdint>
#include <string>

namespace aft::train {

struct Report;

/// Appends one line. Throws io::Error.
void append_metrics(const std::string& path, const Report& report);

/// Removes the lines of steps after `step`, which training will write again,
/// and an incomplete last line. Returns the training time in seconds from the
/// last remaining line, or 0 if there is none. Throws io::Error.
double forget_metrics(const std::string& path, int64_t step);

}  // namespace aft::train
