#include "aft/tasks/memory_estimate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "aft/data/data.h"
#include "aft/nn/mixer.h"
#include "aft/tasks/memory_limit.h"

namespace aft::tasks {
double training_bytes(const Json& config, double parameters,
                      int64_t processes) {
  const Json& model = config.at("model");
  const nn::MixerKind& mixer = nn::mixer_traits(model.value("mixer", ""));
  if (mixer.kept_channels == 0) return 0;
  const auto t = config_as<train::TrainConfig>(config.at("train"));
  const auto value = [&](const char* key) { return model.value(key, 0.0); };
  const bool sequence = model.contains("length");
  const double length = sequence ? value("length")
                                 : value("rows") * value("columns"),
               rows = std::ceil(static_cast<double>(t.batch_size) /
                                static_cast<double>(processes)),
               tokens = rows * length, d = value("width"),
               layers = value("layers");
  // Floats per position: those that each layer keeps for backward, and those
  // that backward needs for one layer at a time and for the logits.
  const double kept = d * (mixer.kept_channels + value("mlp"));
  const double passing = kept + 5.0 * (sequence ? value("vocabulary") : 0);
  return 2e8 + 4 * (4 * parameters +
                    tokens * (layers * (t.recompute ? d : kept) + passing));
}

namespace {

constexpr int64_t kFew = 2;  // batch normalisation needs more than one

}  // namespace

double peak_bytes(const std::function<void(int64_t rows)>& run, int64_t rows) {
  const double limit = data::machine_memory();
  const auto measured = [&](int64_t n) {
    const MemoryPeak peak(limit);
    run(n);
    return peak.most();
  };
  try {
    const double few = measured(std::min(rows, kFew));
    if (rows <= kFew) return few;
    const int64_t more = std::min(rows, 2 * kFew);
    const double slope =
        std::max(measured(more) - few, 0.0) / static_cast<double>(more - kFew);
    return few + slope * static_cast<double>(rows - kFew);
  } catch (const TooLarge&) {
    return 2 * limit;
  }
}

namespace {

/// peak_bytes() of forward and backward of a new task, or an upper bound if
/// that is below `enough`, which takes less time.
double measured_pass(train::Task& task, int64_t rows, bool recompute,
                     double enough) {
  torch::nn::Module& model = task.model();
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& b : model.buffers()) before.push_back(b.clone());
  const auto forget = [&] {
    for (torch::Tensor& p : model.parameters())
      p.mutable_grad() = torch::Tensor();
  };
  model.train();
  // Backward adds less than what forward keeps, and the gradients of weights.
  constexpr double kBackward = 3;
  const int64_t few = std::min(rows, kFew);
  double bytes = kBackward * static_cast<double>(rows) /
                 static_cast<double>(few) *
                 peak_bytes([&](int64_t n) { task.loss(0, n, 1); }, few);
  if (recompute || !(bytes < enough))
    bytes = peak_bytes(
        [&](int64_t n) {
          task.loss(0, n, /*seed=*/1).backward();
          forget();
        },
        rows);
  forget();
  at::NoGradGuard no_grad;
  size_t i = 0;
  for (torch::Tensor& b : model.buffers()) b.copy_(before[i++]);
  return bytes;
}

}  // namespace

void refuse_memory(const std::string& what, double bytes, double error,
                   const std::string& advice) {
  const double memory = data::machine_memory();
  if (bytes <= error * memory) return;
  throw base::ConfigError(what + " needs about " + gigabytes(bytes) +
                          ", and this machine has " + gigabytes(memory) +
                          " of memory; " + advice);
}

void check_training_memory(const Json& config, train::Task& task,
                           int64_t processes) {
  double parameters = 0;
  for (const auto& p : task.model().parameters())
    parameters += static_cast<double>(p.numel());
  double bytes = training_bytes(config, parameters, processes), error = 1.3;
  const auto t = config_as<train::TrainConfig>(config.at("train"));
  if (bytes == 0 && t.batch_size > 0) {
    const double constant = 2e8 + 4 * 3 * parameters;  // without gradients
    error = 1.1;
    bytes = constant +
            measured_pass(task, (t.batch_size + processes - 1) / processes,
                          t.recompute,
                          data::machine_memory() - constant - 4 * parameters);
  }
  refuse_memory(
      "training with train.batch_size " + std::to_string(t.batch_size), bytes,
      error,
      "use a smaller train.batch_size, with a larger train.grad_accumulation "
      "for the same result" +
          std::string(config.at("model").contains("network")
                          ? ""
                          : ", or train.recompute=true"));
}

}  // namespace aft::tasks
