// Memory: by how much one call raises the peak of the process. Measured in a
// fresh process of this program (`aft peak-of`), because here freed memory
// stays and would hide it, and because a peak cannot be lowered everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/bench_cases.h"

namespace aft::cli {

/// Bytes by which one `pass` of `side` ("aft", or a rival) raises the peak of
/// resident memory above what its inputs take: results, gradients and scratch.
/// Nothing where it cannot be measured (no /proc, no memory).
std::optional<double> peak_bytes(const Case& c, const std::string& side,
                                 Pass pass);

/// The peak of resident memory of a process that trains two steps of a
/// configuration, config.json's text. Nothing where it cannot be measured.
std::optional<double> training_peak(const std::string& config);

/// The same of a process that classifies `batch` images twice; size 0: the
/// configuration's.
std::optional<double> inference_peak(const std::string& config, int64_t batch,
                                     int64_t size);

/// What those processes do: in bench_classify.cc and bench_train.cc.
void classify_once(const std::string& config, int64_t batch, int64_t size);
void train_two_steps(const std::string& config);

}  // namespace aft::cli
