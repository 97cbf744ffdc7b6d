// Small runs of each task, in one process or several (as threads), on any
// device.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "aft/models/weights.h"
#include "aft/tasks/task.h"
#include "aft/train/trainer.h"
#include "tests/scratch.h"
#include "tests/train/ranks.h"

namespace aft::train {

using base::Json;

inline const Json kTrain = {
    {"steps", 20},          {"batch_size", 8}, {"grad_accumulation", 2},
    {"warmup_steps", 3},    {"ema", 0.9},      {"validate_every", 7},
    {"report_every", 1},    {"save_every", 6}, {"schedule", "constant"},
    {"learning_rate", 1e-3}};

inline Json language(const std::string& mixer = "aft-local") {
  return {{"task", "language"},
          {"model",
           {{"mixer", mixer},
            {"layers", 2},
            {"width", 16},
            {"length", 24},
            {"window", 4},
            {"rank", 3},
            {"heads", 4},
            {"dropout", 0.2}}},
          {"data", {{"valid_bytes", 300}}},
          {"train", kTrain}};
}

inline Json classification() {
  return {{"task", "classification"},
          {"model",
           {{"mixer", "aft-conv"},
            {"layers", 2},
            {"width", 16},
            {"heads", 4},
            {"window", 3},
            {"patch", 4},
            {"gumbel", 0.5},
            {"dropout", 0.1},
            {"drop_path", 0.3}}},
          {"data",
           {{"height", 16},
            {"width", 16},
            {"valid_images", 21},
            {"repeats", 3},
            {"rand_ops", 1},
            {"mixup", 0.8},
            {"cutmix", 1.0}}},
          {"train", kTrain}};
}

inline Json images() {
  return {{"task", "image"},
          {"model",
           {{"mixer", "aft-simple"},
            {"layers", 1},
            {"width", 16},
            {"dropout", 0.1}}},
          {"data", {{"height", 4}, {"width", 4}, {"valid_images", 5}}},
          {"train", kTrain}};
}

inline Json few(Json config, int64_t steps = 6) {
  config["train"]["steps"] = steps, config["train"]["validate_every"] = 4;
  return config;
}

/// Networks that can replace the model of images().
inline Json pixel_networks() {
  return {{{"network", "pixelcnn"}, {"layers", 2}, {"width", 6}},
          {{"network", "pixelcnn++"},
           {"filters", 4},
           {"resnets", 1},
           {"mixtures", 2}},
          {{"network", "pixelsnail"},
           {"filters", 4},
           {"blocks", 1},
           {"resnets", 1},
           {"mixtures", 2},
           {"key", 2},
           {"value", 2}}};
}

struct Trained {
  Json config;
  std::unique_ptr<Task> task;
  TrainConfig recipe;
  explicit Trained(Json given) : config(std::move(given)) {
    const tasks::TaskKind& kind = tasks::task_kind(config);
    config = kind.complete(config);
    task = kind.make(config, {});
    base::from_json(config.at("train"), recipe, "train");
  }
};

/// All parameters and buffers, concatenated.
inline torch::Tensor weights(Task& task) {
  std::vector<torch::Tensor> all;
  for (const auto& item : models::tensors_of(task.model()))
    all.push_back(
        item.second.detach().cpu().flatten().to(torch::kDouble).clone());
  return torch::cat(all);
}

inline std::vector<Json> metrics(const std::string& directory) {
  std::ifstream in(directory + "/metrics.jsonl");
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);)
    out.push_back(Json::parse(line));
  return out;
}

/// Trains with N processes to the end or for `steps` steps. Returns rank 0's
/// weights.
inline torch::Tensor train(const Json& config, int N,
                           const std::string& directory, int64_t steps = 1000,
                           torch::Device device = torch::kCPU) {
  // Initial weights come from a generator that threads would share.
  std::vector<std::unique_ptr<Trained>> runs;
  for (int r = 0; r < N; ++r) runs.push_back(std::make_unique<Trained>(config));
  std::vector<torch::Tensor> ends(static_cast<size_t>(N));
  const auto body = [&](Group* g) {
    const size_t r = g ? static_cast<size_t>(g->rank()) : 0;
    Trained& run = *runs[r];
    if (!device.is_cpu()) run.task->model().to(device);
    // Only rank 0 has a directory to write to.
    Trainer trainer(*run.task, run.recipe,
                    r == 0 ? directory : "/nowhere/at/all", g);
    bool there = r == 0 && trainer.has_checkpoint();
    if (g) there = g->any(there);
    if (there) trainer.resume();
    int64_t taken = 0;
    Hooks hooks;
    // Any rank may stop the run.
    hooks.stop = [&] { return ++taken >= steps && r + 1 == runs.size(); };
    trainer.run(hooks);
    ends[r] = weights(*run.task);
    if (g) g->leave();
  };
  if (N == 1)
    body(nullptr);
  else
    in_ranks(N, 60, [&](Group& g) { body(&g); });
  for (const torch::Tensor& end : ends) {
    EXPECT_TRUE(end.defined() && torch::equal(end, ends[0])) << "ranks differ";
  }
  return ends[0];
}

/// Expects that training with each of these numbers of processes on that device
/// equals training with one on the CPU.
inline void expect_alike(const Json& config, std::initializer_list<int> sizes,
                         torch::Device device = torch::kCPU,
                         double most = 2e-4) {
  const std::string one = new_folder();
  const torch::Tensor alone = train(config, 1, one);
  const std::vector<Json> curve = metrics(one);
  ASSERT_EQ(curve.size(), config["train"]["steps"].get<size_t>());
  for (const int N : sizes) {
    SCOPED_TRACE(std::to_string(N) + " processes");
    const std::string several = new_folder();
    const torch::Tensor together = train(config, N, several, 1000, device);
    // Weights are about 0.3, and they change by up to 20 times 1e-3.
    EXPECT_LT((together - alone).abs().max().item<double>(), most);
    EXPECT_LT((together - alone).abs().mean().item<double>(), 3e-6);
    const std::vector<Json> other = metrics(several);
    ASSERT_EQ(other.size(), curve.size());
    for (size_t i = 0; i < curve.size(); ++i) {
      for (const char* key : {"loss", "norm", "validation", "top1"}) {
        ASSERT_EQ(curve[i].contains(key), other[i].contains(key));
        if (!curve[i].contains(key)) continue;
        const double x = curve[i][key], y = other[i][key];
        EXPECT_NEAR(x, y, 1e-4 * std::abs(x) + 1e-6)
            << key << " of step " << i + 1;
      }
    }
  }
}

}  // namespace aft::train
