// What all tasks have in common, and the list of them: a configuration in JSON
// to something that the trainer trains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aft/models/config.h"
#include "aft/models/sequence_model.h"
#include "aft/train/trainer.h"

namespace aft::tasks {

using models::Json;

/// config.json, and a preset.
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

/// Told of long work: how much of it is done. May be empty.
using Progress = std::function<void(int64_t done, int64_t all)>;

struct TaskKind {
  std::string name;  ///< config.json's "task"
  std::string unit;  ///< the loss in bits is called so: bpc, bits/dim; "": by
                     ///< no name
  std::string next;  ///< what to do with a trained model DIR: "`aft ...`"
  std::vector<std::string> fixed;    ///< keys of data that a run cannot change
  std::vector<std::string> derived;  ///< keys of model that follow from others
  /// The configuration with every key that it does not name at its default.
  /// Throws ConfigError: unknown keys, values of a wrong kind.
  Json (*complete)(const Json& config);
  /// Opens the data, makes the model with its first weights, and writes into
  /// the (complete) configuration what identifies the data. Throws ConfigError,
  /// DataError, c10::Error; DataError where the configuration has identified
  /// other data.
  std::unique_ptr<train::Task> (*make)(Json& config, const Progress& progress);
  /// The model of a complete configuration, with first weights. Throws
  /// c10::Error.
  std::shared_ptr<torch::nn::Module> (*model)(const Json& config);
};

const std::vector<TaskKind>& task_kinds();
/// Of a configuration, by its key "task"; language where it has none. Throws
/// ConfigError.
const TaskKind& task_kind(const Json& config);

/// A configuration that complete() has seen, as a struct.
template <class Config>
Config config_as(const Json& config) {
  Config c;
  models::from_json(config, c);
  return c;
}

/// The configuration of a model directory, complete. Throws ConfigError, which
/// names the file.
Json load_config(const std::string& directory);
/// The same for a command on one task: another one is a ConfigError.
Json load_config(const std::string& directory, const std::string& task);

/// TaskKind::model of the tasks on sequences.
std::shared_ptr<torch::nn::Module> sequence_model(const Json& config);

/// The entry of `all`, a task's networks, that the key "network" of a model's
/// configuration names; null where there is no such key. Throws ConfigError.
template <class Network>
const Network* find_network(const Json& model,
                            const std::vector<Network>& all) {
  if (!model.is_object() || !model.contains("network")) return nullptr;
  std::string known;
  for (const Network& network : all) {
    if (model["network"] == network.name) return &network;
    known += (known.empty() ? "" : ", ") + network.name;
  }
  throw models::ConfigError("model.network must be one of " + known +
                            " (or not be named), got " +
                            models::kind_of(model["network"]));
}

/// TaskKind::model, where it takes no more memory than the machine has; of a
/// directory that has model.safetensors, no more than such weights need. Throws
/// ConfigError, io::Error, c10::Error.
std::shared_ptr<torch::nn::Module> make_model(
    const Json& config, const std::string& directory = "");
/// TaskKind::make within the same limits; `weights`: a safetensors file that
/// the model will get, or "".
std::unique_ptr<train::Task> make_task(Json& config,
                                       const Progress& progress = {},
                                       const std::string& weights = "");
/// Reads the weights of a model directory into `model`, which is in evaluation
/// mode from then on. Throws io::Error, also for weights that are not finite.
void load_weights(const std::string& directory, torch::nn::Module& model);
/// A model of sequences with the weights of a directory. Throws io::Error,
/// c10::Error.
models::SequenceModel load_model(const std::string& directory,
                                 const models::SequenceModelConfig& config);

/// Where the weights of a model are, and its inputs must be.
torch::Device device_of(const torch::nn::Module& model);
/// Mean or one by one, in nats: logits [B, T, vocabulary], targets [B, T].
torch::Tensor cross_entropy(const torch::Tensor& logits,
                            const torch::Tensor& targets, bool mean);

/// Throws DataError unless `expected` is "" or what was found.
void check_fingerprint(const std::string& data, const std::string& expected,
                       const std::string& found);
/// The path from the root, where it is one that exists.
std::string absolute(const std::string& path);

}  // namespace aft::tasks
