#include "aft/tasks/task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "aft/io/safetensors.h"
#include "aft/tasks/classification.h"
#include "aft/tasks/data.h"
#include "aft/tasks/image.h"
#include "aft/tasks/language.h"
#include "aft/train/checkpoint.h"

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
  throw models::ConfigError("task must be one of " + known + ", got " +
                            models::kind_of(name));
}

Json load_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const Json read = models::read_json_file(path);
  try {
    return task_kind(read).complete(read);
  } catch (const models::ConfigError& e) {
    throw models::ConfigError(path + ": " + e.what());
  }
}

Json load_config(const std::string& directory, const std::string& task) {
  const Json config = load_config(directory);
  if (config["task"] != task)
    throw models::ConfigError(
        directory + "/config.json: task must be " + task + " here, got " +
        config["task"].get<std::string>() + "; " + task_kind(config).next);
  return config;
}

std::shared_ptr<torch::nn::Module> sequence_model(const Json& config) {
  return models::SequenceModel(
             config_as<models::SequenceModelConfig>(config.at("model")))
      .ptr();
}

double least_weights(const Json& model, std::string* sizes) {
  const auto size = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (!model.contains(key) || !model[key].is_number()) continue;
      if (sizes)
        *sizes += (sizes->empty() ? "model." : ", model.") + std::string(key) +
                  " " + model[key].dump();
      return std::max(0., model[key].get<double>());
    }
    return 0.;
  };
  const auto says = [&](const char* key, const Json& value) {
    return model.contains(key) && model[key] == value;
  };
  const double width = size({"width", "filters"}),
               layers = size({"layers", "resnets"}),
               length = model.contains("length")
                            ? size({"length"})
                            : size({"rows"}) * size({"columns"});
  // Of a layer: a matrix from its width to its width, or the two of an MLP, or
  // a convolution; and what its mixer knows of positions.
  const double kernel = size({"kernel"}), mlp = size({"mlp"});
  double each = width * width * std::max({1., 2 * mlp, kernel * kernel});
  if (says("mixer", "aft-full") || says("mixer", "aft-local"))
    each += length * (says("dense", true) ? length : 2 * size({"rank"}));
  if (says("mixer", "aft-conv"))
    each += size({"heads"}) *
            std::pow(size({"window"}), model.contains("rows") ? 2 : 1);
  if (says("mixer", "synthesizer") || says("mixer", "lambda")) each += length;
  if (says("mixer", "performer")) each += size({"features"});
  if (says("mixer", "reformer")) each += size({"rounds"});
  each += width * size({"value"});
  const double repeated =
      std::max(1., size({"resolutions"})) * std::max(1., size({"blocks"}));
  // Once: a row for each symbol or class, for each position, for each number of
  // a patch or of the first kernel, of a mixture.
  const double rows = size({"vocabulary", "classes"}) +
                      (says("positions", true) ? length : 0) +
                      3 * std::pow(size({"patch"}), 2) +
                      std::pow(size({"first"}), 2) + size({"mixtures"});
  // A first layer of another kind has no such kernel.
  const double like = kernel > 0 ? std::max(0., layers - 1) : layers;
  return sizeof(float) * (like * repeated * each + width * rows);
}

void check_weights(const std::string& directory, const Json& model,
                   const std::string& name) {
  // Up to here a model is made: load_weights knows which tensor is wrong.
  constexpr double kCheap = 1 << 26;
  const std::string path = directory + "/" + name;
  const io::SafeTensors file = io::SafeTensors::open(path);
  double there = 0;
  for (const io::TensorView& x : file.tensors())
    there += static_cast<double>(x.bytes);
  std::string sizes;
  const double least = least_weights(model, &sizes);
  if (least > std::max(there, kCheap))
    throw io::Error(path + ": must have at least " + models::shown(least) +
                    " bytes of weights (" + sizes + " in config.json), got " +
                    models::shown(there));
}

void load_weights(const std::string& directory, torch::nn::Module& model) {
  train::load_tensors(directory + "/model.safetensors",
                      train::tensors_of(model));
  model.eval();
}

models::SequenceModel load_model(const std::string& directory,
                                 const models::SequenceModelConfig& config) {
  check_weights(directory, models::to_json(config));
  models::SequenceModel model(config);
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
  throw DataError(
      data + ": is not what the run began with: expected data.fingerprint " +
      expected + ", got " + found +
      "; `--data` gives the right one, `--set data.fingerprint=` goes on "
      "anyway");
}

std::string absolute(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  const std::string out = real ? real : path;
  free(real);
  return out;
}

}  // namespace aft::tasks
