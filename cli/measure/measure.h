// Measures memory and time in a new process of this program (its hidden command
// `measure`): this process keeps freed memory, which would hide an increase,
// and not every system can reset the peak.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/measure/cases.h"

namespace aft::cli {

/// Bytes by which one `pass` of `side` ("aft" or a rival) raises the peak
/// resident memory above its inputs: results, gradients and scratch. Returns
/// nullopt if it cannot be measured (no /proc, out of memory).
std::optional<double> peak_bytes(const Case& c, const std::string& side,
                                 Pass pass);

/// The measurement of one system in a separate process.
struct Measured {
  double peak = 0;    ///< peak resident memory in bytes
  double ms = 0;      ///< median time per call; 0: not measured
  double units = 0;   ///< tokens, images or symbols per call
  std::string error;  ///< why the measurement failed; empty on success

  /// Units per second; 0: not measured.
  double rate() const { return ms > 0 ? 1e3 * units / ms : 0; }
};

/// Trains a complete configuration (as text) for two steps, then times `repeat`
/// more.
Measured measure_training(const std::string& config, int repeat);
/// Like measure_training, for the classification of `batch` images. size 0: the
/// size in the configuration. weights: a model directory, or "" for initial
/// weights.
Measured measure_inference(const std::string& config, int64_t batch,
                           int64_t size, int repeat,
                           const std::string& weights = "");
/// Like measure_training, for the generation of symbols.
Measured measure_generation(const std::string& config, int repeat,
                            const std::string& weights = "");

/// The end of an error message of measure_training() with --batch: " (--batch
/// sets train.batch_size)" if it names that key.
std::string batch_hint(const std::string& error, int64_t batch);

/// Runs `measure <arguments>` with this program's number of threads and returns
/// the numbers that it prints. On failure returns an empty vector and sets
/// `error`.
std::vector<double> run_measurement(std::vector<std::string> arguments,
                                    std::string& error);
/// Adds the hidden command `measure`. Returns it for further subcommands.
CLI::App* add_measure(CLI::App& app);
/// By how much a call raises the peak memory of this process, in bytes.
double peak_increase(const std::function<void()>& call);

}  // namespace aft::cli
