// `aft bench`: memory and speed of training and inference of a model on this
// machine, each measured in a separate process.
#include <ATen/Parallel.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "aft/base/counted.h"
#include "cli/commands.h"
#include "cli/measure/measure.h"
#include "cli/measure/workloads.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::vector<std::string> models, sets;
  int64_t batch = 0;
  int repeat = 3, threads = 0;
  bool json = false;
};

/// Limits of the default batch, so that a step of a large model takes seconds.
constexpr int64_t kMostTokens = 8192, kMostImages = 32;

struct ModelCost {
  std::string name, task;
  int64_t parameters = 0, batch = 0;
  Measured training, inference;

  const char* training_unit() const {
    return task == "classification" ? "images" : "tokens";
  }
  const char* inference_unit() const {
    return task == "classification" ? "images"
           : task == "image"        ? "values"
                                    : "bytes";
  }
};

/// The size of one training example in units of the batch limit: its tokens, or
/// 1 for an image to classify.
int64_t tokens_per_example(const base::Json& config) {
  if (config["task"] == "classification") return 1;
  if (config["task"] == "language") return config["model"]["length"];
  return 3 * config["data"]["height"].get<int64_t>() *
         config["data"]["width"].get<int64_t>();
}

ModelCost measure(const std::string& name, const Options& o) {
  base::Json config = config_on_built_in_data(name, o.sets);
  // Memory and speed depend on the batch of one forward pass.
  config["train"]["grad_accumulation"] = 1;
  int64_t batch = config["train"]["batch_size"];
  ModelCost cost;
  cost.name = name, cost.task = config["task"];
  const bool images = cost.task == "classification";
  batch = o.batch > 0
              ? o.batch
              : std::min(batch, std::max<int64_t>(
                                    1, (images ? kMostImages : kMostTokens) /
                                           tokens_per_example(config)));
  config["train"]["batch_size"] = cost.batch = batch;
  const std::string weights = is_directory(name) ? name : "",
                    text = config.dump();
  // Also throws if the configuration is invalid.
  for (const auto& p : tasks::make_model(config, weights)->parameters())
    cost.parameters += p.numel();
  const auto checked = [&](const Measured& m) {
    if (!m.error.empty())
      throw std::runtime_error("bench: " + name + ": " + m.error +
                               batch_hint(m.error, o.batch));
    return m;
  };
  cost.training = checked(measure_training(text, o.repeat));
  cost.inference =
      checked(images ? measure_inference(text, batch, 0, o.repeat, weights)
                     : measure_generation(text, o.repeat, weights));
  return cost;
}

nlohmann::ordered_json to_json(const ModelCost& c) {
  return {{"model", c.name},
          {"task", c.task},
          {"parameters", c.parameters},
          {"threads", at::get_num_threads()},
          {"batch", c.batch},
          {"training_bytes", c.training.peak},
          {"training_unit", c.training_unit()},
          {"training_per_second", c.training.rate()},
          {"inference_bytes", c.inference.peak},
          {"inference_unit", c.inference_unit()},
          {"inference_per_second", c.inference.rate()}};
}

void run(const Options& o) {
  std::vector<std::string> models = o.models;
  if (models.empty())
    models = {"text-aft-local-4x128", "image-aft-local-4x128",
              "classify-aft-conv-4x96"};
  auto json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows;
  {
    Progress progress(models.size());
    for (const std::string& name : models) {
      progress.next(name);
      const ModelCost c = measure(name, o);
      json.push_back(to_json(c));
      rows.push_back(
          {c.name, count(static_cast<double>(c.parameters)),
           std::to_string(c.batch), count(c.training.peak) + "B",
           count(c.training.rate()) + " " + c.training_unit() + "/s",
           count(c.inference.peak) + "B",
           count(c.inference.rate()) + " " + c.inference_unit() + "/s"});
    }
  }
  if (o.json) {
    std::cout << json.dump(2) << '\n';
    return;
  }
  std::cout << table({"model", "parameters", "batch", "training memory",
                      "training", "inference memory", "inference"},
                     rows, 1)
            << "\n"
            << base::counted(at::get_num_threads(), "thread")
            << ", float; memory: peak of a process\n";
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "bench", "Measure speed and memory of models on this machine");
  command->add_option("models", o->models,
                      "Presets, JSON files or model directories; default: a "
                      "small preset per task");
  add_count(*command, "--batch", o->batch,
            "Examples per step; default: the model's, or fewer if a step would "
            "take long",
            int64_t{1}, int64_t{1} << 20);
  add_count(*command, "--repeat", o->repeat, "Timed repetitions; default: 3");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->add_flag("--json", o->json, "Print a JSON array instead of a table");
  command->footer(
      "Training: steps (forward, backward, AdamW) on built-in data. Inference: "
      "generation of one stream of bytes (text) or\n"
      "sub-pixel values (images), classification of a batch of images. "
      "Times are medians; no files are written.\n"
      "To compare systems, use `aft compare --speed` or the program "
      "`aft-bench`.\n"
      "\n"
      "Examples:\n"
      "  aft bench\n"
      "  aft bench runs/text\n"
      "  aft bench enwik8-aft-local-12x512 enwik8-transformer-12x512 --batch "
      "1");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
