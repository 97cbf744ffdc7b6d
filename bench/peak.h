// Measures memory: by how much one call raises the peak of the process. Runs in
// a new process of this program (`aft peak-of`), because this process keeps
// freed memory, which would hide the increase, and because not every system can
// reset the peak.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/cases.h"

namespace aft::cli {

/// Bytes by which one `pass` of `side` ("aft" or a rival) raises the peak
/// resident memory above its inputs: results, gradients and scratch. Returns
/// nullopt if it cannot be measured (no /proc, out of memory).
std::optional<double> peak_bytes(const Case& c, const std::string& side,
                                 Pass pass);

/// The measurement of one system in a separate process.
struct Measured {
  double peak = 0;    ///< peak resident memory in bytes
  double ms = 0;      ///< median time per step or batch; 0: not measured
  std::string error;  ///< why the measurement failed; empty on success
};

/// Trains a configuration (the text of config.json) for two steps, then times
/// `repeat` more, in a separate process.
Measured measure_training(const std::string& config, int repeat);
/// Like measure_training, for the classification of `batch` images. size 0: the
/// size in the configuration. weights: a model directory, or "" for initial
/// weights.
Measured measure_inference(const std::string& config, int64_t batch,
                           int64_t size, int repeat,
                           const std::string& weights = "");

/// Measures forward and backward of one mixer of nn::mixer_kinds. Returns the
/// peak in bytes above its input, the milliseconds, and the milliseconds of its
/// linear layers alone. On failure returns an empty vector and sets `error`.
std::vector<double> measure_mixer(const std::string& kind, int64_t T, int64_t d,
                                  int repeat, std::string& error);
/// The work of that process; defined in bench/mixers.cc.
void mix_once(const std::string& kind, int64_t T, int64_t d, int repeat);
/// By how much a call raises the peak memory of this process, in bytes.
double raise_of_peak(const std::function<void()>& call);

/// The work of those processes, one step or batch per call; defined in
/// bench/train.cc and bench/classify.cc.
std::function<void()> training_steps(const std::string& config);
std::function<void()> inference_batches(const std::string& config,
                                        int64_t batch, int64_t size,
                                        const std::string& weights);

}  // namespace aft::cli
