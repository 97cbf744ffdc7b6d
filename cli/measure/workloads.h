// The workloads that measurements of a model time: one training step, one batch
// of classified images, or a few generated symbols per call. Configurations
// must be complete (cli/model.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "aft/models/image_network.h"
#include "aft/models/pixel_model.h"
#include "aft/models/sequence_model.h"
#include "aft/tasks/task.h"

namespace aft::cli {

/// Returns the configuration of `what` (see choose_config) with `sets` applied,
/// changed to train on built-in data.
base::Json config_on_built_in_data(const std::string& what,
                                   std::vector<std::string> sets);

/// A model with initial weights in training.
class TimedTraining {
 public:
  explicit TimedTraining(base::Json config);
  void run() { trainer_.advance(); }
  torch::nn::Module& model() { return task_->model(); }
  /// Tokens per step; for classifiers, images per step.
  int64_t tokens() const { return tokens_; }

 private:
  std::unique_ptr<train::Task> task_;
  train::Trainer trainer_;
  int64_t tokens_;
};

/// A classifier ready for inference, and images for it.
class TimedClassifier {
 public:
  /// weights: a model directory, or "" for initial weights. size 0: the size in
  /// the configuration.
  TimedClassifier(const base::Json& config, const std::string& weights,
                  int64_t batch, int64_t size);
  void run();
  int64_t parameters() const { return parameters_; }
  /// Floating-point operations per image in matrix products, which any
  /// implementation needs. 0: unknown.
  double flops() const { return flops_; }

 private:
  std::shared_ptr<models::ImageNetwork> model_;
  int64_t parameters_ = 0;
  double flops_ = 0;
  at::Tensor images_;
};

/// One stream of a sequence model in the middle of its text or image, or a
/// network over images that computes single values.
class TimedGeneration {
 public:
  /// weights: as above.
  TimedGeneration(const base::Json& config, const std::string& weights);
  void run();
  /// Symbols per run.
  int64_t symbols() const { return symbols_; }

 private:
  void step(models::SequenceModelState& state);

  std::shared_ptr<torch::nn::Module> model_;
  models::SequenceModelImpl* sequence_;  // null for a network
  int64_t symbols_ = 3;
  models::SequenceModelState state_;
  at::Tensor image_;  // for a network
};

}  // namespace aft::cli
