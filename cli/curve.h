// The curve of a run: metrics.jsonl as a picture.
#pragma once

#include <string>

namespace aft::cli {

/// Reads DIR/metrics.jsonl and replaces DIR/curve.svg: training and validation
/// loss in bits against the step. Does nothing where there is no metric yet.
void write_curve(const std::string& directory);

}  // namespace aft::cli
