#include "aft/tasks/image.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>

#include "aft/nn/block.h"
#include "aft/tasks/picture_files.h"

namespace aft::tasks {
namespace {

constexpr int64_t kStart = 256;

Json complete(const Json& given) {
  ImageConfig config;
  config.task = "image";
  auto& model = config.model;
  model.start = true, model.length = 0;
  models::from_json(given, config);
  const auto check = [](bool good, const std::string& what) {
    if (!good) throw models::ConfigError(what);
  };
  const int64_t height = config.data.height, width = config.data.width;
  for (const auto& [name, side] :
       {std::pair<std::string, int64_t>{"height", height}, {"width", width}}) {
    check(side >= 1 && side <= 4096,
          "data." + name + " must be 1 to 4096, got " + std::to_string(side));
  }
  const int64_t length = 3 * height * width;
  if (model.length == 0) model.length = length;
  check(model.length == length,
        "model.length must be 3 data.height data.width = " +
            std::to_string(length) + " (or not be named), got " +
            std::to_string(model.length));
  check(model.start, "model.start must be true for images, got false");
  check(model.vocabulary == 256,
        "model.vocabulary must be 256 for images, got " +
            std::to_string(model.vocabulary));
  check(
      config.data.shift >= 0 && config.data.shift <= 255,
      "data.shift must be 0 to 255, got " + std::to_string(config.data.shift));
  return models::to_json(config);
}

std::unique_ptr<train::Task> make(Json& json, const Progress& progress) {
  ImageConfig config = config_as<ImageConfig>(json);
  auto& data = config.data;
  Pictures pictures = Pictures::open(data.path, data.height, data.width,
                                     data.valid_images, progress);
  const std::string found = pictures.fingerprint();
  check_fingerprint(data.path.empty() ? "the built-in pictures" : data.path,
                    data.fingerprint, found);
  if (!data.path.empty()) data.path = absolute(data.path);
  data.fingerprint = found;
  json = models::to_json(config);
  return std::make_unique<ImageTask>(config, std::move(pictures));
}

/// What the model reads and what it should say, [B, T] each, from the values of
/// pictures.
std::pair<torch::Tensor, torch::Tensor> sequences(const uint8_t* pictures,
                                                  int64_t B, int64_t T) {
  const torch::Tensor targets =
      at::from_blob(const_cast<uint8_t*>(pictures), {B, T}, at::kByte)
          .to(at::kLong);
  return {at::cat({at::full({B, 1}, kStart, targets.options()),
                   targets.narrow(1, 0, T - 1)},
                  1),
          targets};
}

}  // namespace

TaskKind image_kind() {
  return {"image",
          "bits/dim",
          "`aft sample DIR` draws pictures, `aft complete DIR` completes some",
          {"height", "width", "valid_images"},
          /*derived=*/{"length"},
          complete,
          make,
          sequence_model};
}

void augment(const PicturesConfig& config, const uint8_t* from, uint64_t random,
             uint8_t* to) {
  const int64_t width = config.width;
  const bool flip = config.flip && (random & 1) != 0;
  const uint64_t values = 2 * static_cast<uint64_t>(config.shift) + 1;
  const int add =
      static_cast<int>((random >> 1) % values) - static_cast<int>(config.shift);
  for (int64_t y = 0; y < config.height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* pixel =
          from + 3 * (y * width + (flip ? width - 1 - x : x));
      for (int c = 0; c < 3; ++c)
        *to++ = static_cast<uint8_t>(std::clamp(pixel[c] + add, 0, 255));
    }
  }
}

ImageTask::ImageTask(const ImageConfig& config, Pictures pictures)
    : config_(config),
      pictures_(std::move(pictures)),
      order_(pictures_.train().count,
             static_cast<uint64_t>(config.train.seed)) {
  check_parts(config.data.path, pictures_.train().count,
              pictures_.valid().count);
  torch::manual_seed(static_cast<uint64_t>(config.train.seed));
  model_ = models::SequenceModel(config.model);
  model_->recompute(config.train.recompute);
}

torch::Tensor ImageTask::loss(int64_t first, int64_t count, uint64_t seed) {
  const PicturePart part = pictures_.train();
  std::vector<uint8_t> batch(static_cast<size_t>(count * part.size));
  const uint64_t own = nn::mix(static_cast<uint64_t>(config_.train.seed), 3);
  for (int64_t i = 0; i < count; ++i) {
    augment(config_.data, part[order_.at(first + i)],
            nn::mix(own, static_cast<uint64_t>(first + i)),
            batch.data() + i * part.size);
  }
  const auto [inputs, targets] = sequences(batch.data(), count, part.size);
  return cross_entropy(model_->forward(inputs, seed), targets, /*mean=*/true);
}

train::Validation ImageTask::validate() {
  const double loss = evaluate(model_, pictures_.valid(), config_.train.batch);
  return {loss, loss, {}};
}

double evaluate(models::SequenceModel model, const PicturePart& pictures,
                int64_t batch, const Progress& progress) {
  TORCH_CHECK(pictures.count >= 1, "evaluation needs a picture or more");
  TORCH_CHECK(pictures.size == model->config.length, "a model for pictures of ",
              model->config.length, " values cannot judge pictures of ",
              pictures.size);
  at::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  double total = 0;
  for (int64_t i = 0; i < pictures.count;) {
    const int64_t B = std::min(batch, pictures.count - i);
    const auto [inputs, targets] = sequences(pictures[i], B, pictures.size);
    total += cross_entropy(model->forward(inputs), targets, /*mean=*/false)
                 .sum(at::kDouble)
                 .item<double>();
    i += B;
    if (progress) progress(i, pictures.count);
  }
  model->train(was_training);
  return total / static_cast<double>(pictures.count * pictures.size);
}

std::vector<std::vector<uint8_t>> complete_pictures(
    models::SequenceModel model, const Sampling& sampling,
    const std::vector<std::vector<uint8_t>>& given, const Progress& progress) {
  const int64_t T = model->config.length;
  std::vector<std::vector<int64_t>> prompts;
  for (const auto& g : given) {
    TORCH_CHECK(static_cast<int64_t>(g.size()) <= T,
                "a picture of this model has ", T, " values, but ", g.size(),
                " are given");
    prompts.emplace_back(1, kStart);
    prompts.back().insert(prompts.back().end(), g.begin(), g.end());
  }
  std::vector<std::vector<uint8_t>> out = given;
  Generator generator(std::move(model), sampling, std::move(prompts));
  for (int64_t t = 0; t < T; ++t) {
    const std::vector<int64_t> drawn = generator.next();
    for (size_t i = 0; i < drawn.size(); ++i)
      if (drawn[i] >= 0) out[i].push_back(static_cast<uint8_t>(drawn[i]));
    if (progress) progress(t + 1, T);
  }
  return out;
}

}  // namespace aft::tasks
