#include "aft/tasks/task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>

#include "aft/data/data.h"
#include "aft/io/file.h"
#include "aft/io/json_file.h"
#include "aft/io/run_directory.h"
#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "aft/tasks/classification.h"
#include "aft/tasks/image.h"
#include "aft/tasks/language.h"
#include "aft/tasks/memory_limit.h"
#include "aft/tasks/presets.h"

namespace aft::tasks {

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> all = {language_kind(), image_kind(),
                                            classification_kind()};
  return all;
}

const TaskKind& task_kind(const Json& config) {
  Json name = "language";
  if (config.is_object() && config.contains("task")) name = config["task"];
  std::string known;
  for (const TaskKind& kind : task_kinds()) {
    if (name == kind.name) return kind;
    known += (known.empty() ? "" : ", ") + kind.name;
  }
  throw base::ConfigError("task must be one of " + known + ", got " +
                          base::kind_of(name));
}

Json load_config(const std::string& directory) {
  const std::string path = io::RunDirectory(directory).config();
  if (!io::exists(path)) {
    const auto& all = presets();
    const bool preset =
        std::any_of(all.begin(), all.end(),
                    [&](const Preset& p) { return p.name == directory; });
    throw base::ConfigError(
        path + ": does not exist; expected the directory of a model" +
        (preset ? ", got a preset: train it first, with `aft train " +
                      directory + "`"
                : ""));
  }
  const Json read = io::read_json_file(path);
  try {
    return task_kind(read).complete(read);
  } catch (const base::ConfigError& e) {
    throw base::ConfigError(path + ": " + e.what());
  }
}

Json load_config(const std::string& directory, const std::string& task) {
  const Json config = load_config(directory);
  if (config["task"] != task)
    throw base::ConfigError(
        io::RunDirectory(directory).config() + ": task must be " + task +
        " for this command, got " + config["task"].get<std::string>() + "; " +
        task_kind(config).next);
  return config;
}

std::shared_ptr<torch::nn::Module> sequence_model(const Json& config) {
  return models::SequenceModel(
             config_as<models::SequenceModelConfig>(config.at("model")))
      .ptr();
}

namespace {

/// A message of a module names its own option: "AFTConv: heads must divide dim
/// = 32, got 7". Returns it with the keys of the configuration: "model.heads
/// must divide model.width = 32, got 7". Other messages are unchanged.
std::string with_keys(const std::string& message, const Json& model) {
  const size_t colon = message.find(": "),
               mixer = message.find("mixer must be");
  std::string rest = message;
  if (colon != std::string::npos && colon < message.find(' '))
    rest = message.substr(colon + 2);
  if (rest.rfind("kernel sizes must be", 0) == 0 && model.contains("window"))
    return "model.window must be 1 or more, got " + model["window"].dump();
  if (!model.contains(rest.substr(0, rest.find(' '))) ||
      (rest == message && mixer != 0))
    return message;
  if (const size_t dim = rest.find(" dim = "); dim != std::string::npos)
    rest.replace(dim, 7, " model.width = ");
  return "model." + rest;
}

/// make(), whose errors name keys of the configuration.
template <class Make>
auto with_keys_in_errors(const Json& config, const Make& make)
    -> decltype(make()) {
  try {
    return make();
  } catch (const c10::Error& e) {
    const std::string message = e.what_without_backtrace(),
                      ours = with_keys(message, config.at("model"));
    if (ours == message) throw;
    throw base::ConfigError(ours);
  }
}

}  // namespace

std::shared_ptr<torch::nn::Module> make_model(const Json& config,
                                              const std::string& directory) {
  const io::RunDirectory files(directory);
  return within_memory(
      [&] {
        return with_keys_in_errors(
            config, [&] { return task_kind(config).model(config); });
      },
      !directory.empty() && (files.has_weights() || files.has_checkpoint())
          ? weights_of(directory).file
          : "");
}

std::unique_ptr<train::Task> make_task(Json& config,
                                       const ProgressCallback& progress,
                                       const std::string& weights) {
  return within_memory(
      [&] {
        return with_keys_in_errors(
            config, [&] { return task_kind(config).make(config, progress); });
      },
      weights);
}

namespace {

/// The number that the metadata of a file has for `key`; `otherwise` if it has
/// none.
double number_in(const io::SafeTensors& file, const char* key,
                 double otherwise) {
  const auto at = file.metadata().find(key);
  return at == file.metadata().end() ? otherwise
                                     : std::strtod(at->second.c_str(), nullptr);
}

int64_t step_of(const io::SafeTensors& file) {
  const double step = number_in(file, "step", -1);
  return step >= 0 && step < 0x1p62 ? static_cast<int64_t>(step) : -1;
}

}  // namespace

Weights weights_of(const std::string& directory) {
  const io::RunDirectory files(directory);
  if (!files.has_weights() && !files.has_checkpoint())
    throw io::Error(directory + ": has no weights: neither " + files.weights() +
                    " nor " + files.checkpoint() + " exists");
  Weights best;
  if (files.has_weights())
    best = {files.weights(), false, true,
            step_of(io::SafeTensors::open(files.weights()))};
  if (!files.has_checkpoint()) return best;
  try {
    const io::SafeTensors file = io::SafeTensors::open(files.checkpoint());
    const int64_t step = step_of(file);
    const bool scored = number_in(file, "score", 0) > 0;
    // A checkpoint is only better if no weights were validated after it.
    if (best.file.empty() ||
        (best.step <= step && (scored || number_in(file, "best", 0) == 0)))
      return {files.checkpoint(), true, scored, step};
  } catch (const io::Error&) {
    if (best.file.empty()) throw;  // otherwise, no checkpoint is needed
  }
  return best;
}

void load_weights(const std::string& directory, torch::nn::Module& model) {
  const Weights weights = weights_of(directory);
  models::NamedTensors tensors = models::tensors_of(model);
  if (weights.checkpoint) {
    const io::SafeTensors file = io::SafeTensors::open(weights.file);
    for (auto& [name, x] : tensors)
      name = (file.find("ema." + name) ? "ema." : "model.") + name;
  }
  models::load_tensors(weights.file, tensors, /*more=*/weights.checkpoint);
  model.eval();
}

models::SequenceModel load_sequence_model(
    const std::string& directory, const models::SequenceModelConfig& config) {
  models::SequenceModel model =
      within_memory([&] { return models::SequenceModel(config); },
                    weights_of(directory).file);
  load_weights(directory, *model);
  return model;
}

torch::Device device_of(const torch::nn::Module& model) {
  const std::vector<torch::Tensor> all = model.parameters();
  return all.empty() ? torch::Device(at::kCPU) : all[0].device();
}

torch::Tensor cross_entropy(const torch::Tensor& logits,
                            const torch::Tensor& targets, bool mean) {
  return at::cross_entropy_loss(
      logits.flatten(0, 1), targets.flatten(), {},
      mean ? at::Reduction::Mean : at::Reduction::None);
}

void check_fingerprint(const std::string& data, const std::string& expected,
                       const std::string& found) {
  if (expected.empty() || expected == found) return;
  throw data::DataError(
      data +
      ": differs from the data that the run started with: expected "
      "data.fingerprint " +
      expected + ", got " + found +
      "; pass the original data with `--data`, or accept the new data with "
      "`--set data.fingerprint=`");
}

std::string absolute(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  const std::string out = real ? real : path;
  free(real);
  return out;
}

}  // namespace aft::tasks
