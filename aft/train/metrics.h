// metrics.jsonl: what a run says of itself, one line of JSON a report.
#pragma once

#include <cstdint>
#include <string>

namespace aft::train {

struct Report;

/// Writes a line behind the others. Throws io::Error.
void append_metrics(const std::string& path, const Report& report);

/// Drops the lines of steps after `step`, which come again, and a torn last
/// one. Returns the seconds of training of the last line that stays; 0 where
/// there is none. Throws io::Error.
double forget_metrics(const std::string& path, int64_t step);

}  // namespace aft::train
