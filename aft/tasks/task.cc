#include "aft/tasks/task.h"

#include <ATen/ATen.h>

#include <cstdlib>

#include "aft/data/data.h"
#include "aft/io/json_file.h"
#include "aft/io/run_directory.h"
#include "aft/models/weights.h"
#include "aft/tasks/classification.h"
#include "aft/tasks/image.h"
#include "aft/tasks/language.h"
#include "aft/tasks/memory_limit.h"

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

std::shared_ptr<torch::nn::Module> make_model(const Json& config,
                                              const std::string& directory) {
  const io::RunDirectory files(directory);
  return within_memory(
      [&] { return task_kind(config).model(config); },
      !directory.empty() && files.has_weights() ? files.weights() : "");
}

std::unique_ptr<train::Task> make_task(Json& config,
                                       const ProgressCallback& progress,
                                       const std::string& weights) {
  return within_memory([&] { return task_kind(config).make(config, progress); },
                       weights);
}

void load_weights(const std::string& directory, torch::nn::Module& model) {
  models::load_tensors(io::RunDirectory(directory).weights(),
                       models::tensors_of(model));
  model.eval();
}

models::SequenceModel load_sequence_model(
    const std::string& directory, const models::SequenceModelConfig& config) {
  models::SequenceModel model =
      within_memory([&] { return models::SequenceModel(config); },
                    io::RunDirectory(directory).weights());
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
