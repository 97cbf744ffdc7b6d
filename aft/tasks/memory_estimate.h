// How much memory training and inference need.
#pragma once

#include <functional>

#include "aft/tasks/task.h"

namespace aft::tasks {

/// Estimates the bytes that a training process needs on the CPU: the program,
/// weights, gradients, two moments, and the activations that the layers keep
/// for backward. Fitted to measurements of `aft-bench train`; the error is at
/// most 30 %. config: complete. processes: they share each batch. 0: unknown,
/// for networks and some mixers.
double training_bytes(const Json& config, double parameters,
                      int64_t processes = 1);

/// The bytes that the CPU tensors of run(rows) take at a time, extrapolated
/// linearly from at most 4 rows. More than the machine has if these few already
/// need more. 0 without install_memory_limit().
double peak_bytes(const std::function<void(int64_t rows)>& run, int64_t rows);

/// Throws ConfigError if training certainly needs more memory than this machine
/// has: the message gives the estimate. Where training_bytes() is unknown,
/// measures forward and backward of a few examples. `task` is new, and is as
/// before.
void check_training_memory(const Json& config, train::Task& task,
                           int64_t processes = 1);

/// Throws ConfigError if `bytes`, which the estimate for `what` can exceed by
/// the factor `error`, are certainly more than this machine has.
void refuse_memory(const std::string& what, double bytes, double error,
                   const std::string& advice);

}  // namespace aft::tasks
