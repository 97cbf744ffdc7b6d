// How much memory training needs.
#pragma once

#include "aft/tasks/task.h"

namespace aft::tasks {

/// Estimates the bytes that a training process needs on the CPU: the program,
/// weights, gradients, two moments, and the activations that the layers keep
/// for backward. Fitted to measurements of `aft-bench train`; the error is at
/// most 30 %. config: complete. processes: they share each batch. 0: unknown,
/// for networks and some mixers.
double training_bytes(const Json& config, double parameters,
                      int64_t processes = 1);

/// Throws ConfigError if training certainly needs more memory than this machine
/// has: the message gives the estimate.
void check_training_memory(const Json& config, const torch::nn::Module& model,
                           int64_t processes);

}  // namespace aft::tasks
