#include "aft/tasks/memory_estimate.h"

#include <cmath>

#include "aft/data/data.h"
#include "aft/nn/mixer.h"

namespace aft::tasks {
namespace {

std::string in_gigabytes(double bytes) {
  return base::shown(std::round(bytes / 1e8) / 10) + " GB";
}

}  // namespace

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

void check_training_memory(const Json& config, const torch::nn::Module& model,
                           int64_t processes) {
  constexpr double kError = 1.3;  // of the estimate
  double parameters = 0;
  for (const auto& p : model.parameters())
    parameters += static_cast<double>(p.numel());
  const double bytes = training_bytes(config, parameters, processes);
  if (bytes <= kError * data::machine_memory()) return;
  throw base::ConfigError(
      "training needs about " + in_gigabytes(bytes) +
      " with train.batch_size " + config["train"]["batch_size"].dump() +
      ", and this machine has " + in_gigabytes(data::machine_memory()) +
      " of memory; use a smaller train.batch_size, with a larger "
      "train.grad_accumulation for the same result, or train.recompute=true");
}

}  // namespace aft::tasks
