// The list of tasks and what they share: turns a JSON configuration into a task
// for the trainer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aft/base/config.h"
#include "aft/data/data.h"
#include "aft/models/sequence_model.h"
#include "aft/train/trainer.h"

namespace aft::tasks {

using base::Json;

/// The structure of a configuration.
template <class Model, class Data>
struct RunConfig {
  std::string task;
  Model model;
  Data data;
  train::TrainConfig train;

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("task", s.task), f("model", s.model), f("data", s.data);
    f("train", s.train);
  }
};

/// The keys of a configuration that were renamed.
inline base::Renames renamed_keys() {
  return base::renames(RunConfig<Json, Json>());
}

using data::ProgressCallback;

struct TaskKind {
  std::string name;  ///< value of the key "task"
  std::string unit;  ///< name of the loss in bits: bpc, bits/dim; "": none
  std::string next;  ///< next command for a trained model DIR: "`aft ...`"
  std::vector<std::string> fixed;    ///< keys of data that a run cannot change
  std::vector<std::string> judged;   ///< keys of data that scores depend on
  std::vector<std::string> derived;  ///< keys of model that follow from others
  /// Fills in defaults for missing keys. Throws ConfigError for unknown keys
  /// and values of the wrong type.
  Json (*complete)(const Json& config);
  /// Opens the data, creates the model with initial weights, and records the
  /// identity of the data in the (complete) configuration. Throws ConfigError,
  /// data::DataError, c10::Error; data::DataError also if the configuration
  /// already identifies other data.
  std::unique_ptr<train::Task> (*make)(Json& config,
                                       const ProgressCallback& progress);
  /// Creates the model of a complete configuration, with initial weights.
  /// Throws c10::Error.
  std::shared_ptr<torch::nn::Module> (*model)(const Json& config);
};

const std::vector<TaskKind>& task_kinds();
/// The task that the key "task" names; language if there is no such key. Throws
/// ConfigError.
const TaskKind& task_kind(const Json& config);

/// Converts a complete configuration to a struct.
template <class Config>
Config config_as(const Json& config) {
  Config c;
  base::from_json(config, c);
  return c;
}

/// Loads the complete configuration of a model directory. Throws ConfigError,
/// which names the file.
Json load_config(const std::string& directory);
/// The same, for commands that support one task: any other is a ConfigError.
Json load_config(const std::string& directory, const std::string& task);

/// TaskKind::model of tasks whose model is a sequence model.
std::shared_ptr<torch::nn::Module> sequence_model(const Json& config);

/// The entry of `all`, the networks of a task, that the key "network" of a
/// model configuration names; null if there is no such key. Throws ConfigError.
template <class Network>
const Network* find_network(const Json& model,
                            const std::vector<Network>& all) {
  if (!model.is_object() || !model.contains("network")) return nullptr;
  std::string known;
  for (const Network& network : all) {
    if (model["network"] == network.name) return &network;
    known += (known.empty() ? "" : ", ") + network.name;
  }
  throw base::ConfigError("model.network must be one of " + known +
                          " (or not be given), got " +
                          base::kind_of(model["network"]));
}

/// TaskKind::model with limited memory: at most what the machine has or, for a
/// directory with weights, what such weights need. Throws ConfigError,
/// io::Error, c10::Error.
std::shared_ptr<torch::nn::Module> make_model(
    const Json& config, const std::string& directory = "");
/// TaskKind::make with the same limits. `weights`: a safetensors file that will
/// be loaded into the model, or "".
std::unique_ptr<train::Task> make_task(Json& config,
                                       const ProgressCallback& progress = {},
                                       const std::string& weights = "");
/// The weights of a model directory that commands use.
struct Weights {
  std::string file;
  bool checkpoint = false;  ///< with the names of the trainer's checkpoint
  bool best = false;        ///< no validated weights of this run are better
  int64_t step = -1;        ///< of training; -1: unknown, not trained here
};
/// The best weights by validation: those that training keeps or, if a run was
/// stopped at better ones or has not been validated yet, its checkpoint. Throws
/// io::Error if there are none.
Weights weights_of(const std::string& directory);
/// Loads weights_of() a model directory into `model` and switches it to
/// evaluation mode. Throws io::Error, also for weights that are not finite.
void load_weights(const std::string& directory, torch::nn::Module& model);
/// Creates a sequence model and loads the weights of a directory. Throws
/// io::Error, c10::Error.
models::SequenceModel load_sequence_model(
    const std::string& directory, const models::SequenceModelConfig& config);

/// The device of a model's weights, on which its inputs must be.
torch::Device device_of(const torch::nn::Module& model);
/// Cross entropy in nats, as a mean or per position: logits [B, T, vocabulary],
/// targets [B, T].
torch::Tensor cross_entropy(const torch::Tensor& logits,
                            const torch::Tensor& targets, bool mean);

/// Throws data::DataError unless `expected` is "" or equals `found`.
void check_fingerprint(const std::string& data, const std::string& expected,
                       const std::string& found);
/// The absolute path if `path` exists; otherwise `path` itself.
std::string absolute(const std::string& path);

}  // namespace aft::tasks
