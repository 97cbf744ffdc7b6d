// Memory: by how much one call raises the peak of the process. Measured in a
// fresh process of this program (`aft peak-of`), because here freed memory
// stays and would hide it, and because a peak cannot be lowered everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_cases.h"

namespace aft::cli {

/// Bytes by which one `pass` of `side` ("aft", or a rival) raises the peak of
/// resident memory above what its inputs take: results, gradients and scratch.
/// Nothing where it cannot be measured (no /proc, no memory).
std::optional<double> peak_bytes(const Case& c, const std::string& side,
                                 Pass pass);

/// One system in a process of its own.
struct Measured {
  double peak = 0;    ///< of resident memory, bytes
  double ms = 0;      ///< of a step, or a batch: the median; 0: not asked for
  std::string error;  ///< why there is nothing; "": there is
};

/// A process that trains a configuration, config.json's text, for two steps,
/// and `repeat` more with a clock.
Measured measure_training(const std::string& config, int repeat);
/// The same of one that classifies `batch` images; size 0: the configuration's;
/// weights: a model directory, or "" for first ones.
Measured measure_inference(const std::string& config, int64_t batch,
                           int64_t size, int repeat,
                           const std::string& weights = "");

/// A mixer of nn::mixer_kinds alone, forward and backward: the peak in bytes
/// above its input, milliseconds, and those of its linear layers alone.
/// Nothing, and an error, where it fails.
std::vector<double> measure_mixer(const std::string& kind, int64_t T, int64_t d,
                                  int repeat, std::string& error);
/// What that process does: in bench_mixers.cc.
void mix_once(const std::string& kind, int64_t T, int64_t d, int repeat);
/// By how much a call raises the peak of this process.
double raise_of_peak(const std::function<void()>& call);

/// What those processes do, a step or a batch at each call: in bench_train.cc
/// and bench_classify.cc.
std::function<void()> training_steps(const std::string& config);
std::function<void()> inference_batches(const std::string& config,
                                        int64_t batch, int64_t size,
                                        const std::string& weights);

}  // namespace aft::cli
