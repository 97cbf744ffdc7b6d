#include "cli/measure/workloads.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "aft/models/classifier.h"
#include "aft/tasks/memory_estimate.h"
#include "cli/model.h"

namespace aft::cli {

base::Json config_on_built_in_data(const std::string& what,
                                   std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"data.path=", "data.fingerprint="});
  base::Json config = choose_config(what, sets);
  if (config["task"] == "language") config["data"]["mode"] = "bytes";
  return config;
}

TimedTraining::TimedTraining(base::Json config)
    : task_(tasks::make_task(config)),
      trainer_((tasks::check_training_memory(config, *task_), *task_),
               train_config(config), "") {
  const train::TrainConfig recipe = train_config(config);
  tokens_ = recipe.batch_size * recipe.grad_accumulation * task_->tokens();
  task_->model().train();
}

TimedClassifier::TimedClassifier(const base::Json& config,
                                 const std::string& weights, int64_t batch,
                                 int64_t size)
    : model_(std::dynamic_pointer_cast<models::ImageNetwork>(
          tasks::make_model(config, weights))) {
  const int64_t height =
                    size > 0 ? size : config["data"]["height"].get<int64_t>(),
                width =
                    size > 0 ? size : config["data"]["width"].get<int64_t>();
  for (const auto& p : model_->parameters()) parameters_ += p.numel();
  if (const auto* blocks = model_->as<models::ClassifierImpl>()) {
    const models::ClassifierConfig& c = blocks->config;
    const double T = static_cast<double>(height / c.patch * (width / c.patch));
    for (const auto& m : model_->modules()) {
      const auto* linear = m->as<torch::nn::Linear>();
      if (!linear) continue;
      const double rows = linear == blocks->head.get() ? 1 : T;
      flops_ += 2 * static_cast<double>(linear->weight.numel()) * rows;
    }
    if (c.mixer.traits().attention)
      flops_ += 4 * T * T * static_cast<double>(c.width * c.layers);
  }
  if (!weights.empty()) tasks::load_weights(weights, *model_);
  model_->eval();
  model_->pack_for_inference();
  const auto draw = [&](int64_t n) {
    images_ = at::randn({n, 3, height, width});
  };
  tasks::refuse_memory("inference with --batch " + std::to_string(batch),
                       2e8 + tasks::peak_bytes(
                                 [&](int64_t n) {
                                   draw(n);
                                   run();
                                   images_ = at::Tensor();
                                 },
                                 batch),
                       1.1, "use a smaller --batch");
  draw(batch);
}

void TimedClassifier::run() {
  at::NoGradGuard no_grad;
  model_->forward(images_);
}

TimedGeneration::TimedGeneration(const base::Json& config,
                                 const std::string& weights)
    : model_(tasks::make_model(config, weights)),
      sequence_(model_->as<models::SequenceModelImpl>()) {
  if (!weights.empty()) tasks::load_weights(weights, *model_);
  model_->eval();
  if (sequence_) {
    state_ = sequence_->start(1);
    const int64_t half = std::max<int64_t>(1, sequence_->config.length / 2),
                  context = std::min<int64_t>(512, half);
    symbols_ = std::min<int64_t>(32, half);
    while (state_.position < context) step(state_);
  } else {
    const int64_t height = config["data"]["height"],
                  width = config["data"]["width"];
    image_ = at::zeros({1, height, width, 3}, at::kLong);
  }
}

void TimedGeneration::run() {
  if (!sequence_) {
    auto& network = dynamic_cast<models::PixelModel&>(*model_);
    for (int64_t channel = 0; channel < symbols(); ++channel)
      network.distribution(image_, image_.size(1) / 2, image_.size(2) / 2,
                           channel);
    return;
  }
  models::SequenceModelState state = state_.clone();
  for (int64_t i = 0; i < symbols(); ++i) step(state);
}

void TimedGeneration::step(models::SequenceModelState& state) {
  const int64_t symbol = state.position * 7 % sequence_->config.vocabulary;
  sequence_->step(at::full({1}, symbol, at::kLong), state);
}

}  // namespace aft::cli
