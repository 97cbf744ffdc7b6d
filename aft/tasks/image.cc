#include "aft/tasks/image.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>

#include "aft/data/augment.h"
#include "aft/data/image_files.h"
#include "aft/nn/block.h"

namespace aft::tasks {
namespace {

Json complete_image_config(const Json& given) {
  ImageConfig config;
  config.task = "image", config.model = Json::object();
  base::from_json(given, config);
  const auto check = [](bool good, const std::string& what) {
    if (!good) throw base::ConfigError(what);
  };
  const auto& data = config.data;
  for (const auto& [name, side] :
       {std::pair{"height", data.height}, std::pair{"width", data.width}}) {
    check(side >= 1 && side <= 4096, std::string("data.") + name +
                                         " must be 1 to 4096, got " +
                                         std::to_string(side));
  }
  check(data.shift >= 0 && data.shift <= 255,
        "data.shift must be 0 to 255, got " + std::to_string(data.shift));
  config.model = complete_image_model(config.model, data.height, data.width);
  const Json out = base::to_json(config);
  base::check_sizes(out["model"]);
  return out;
}

/// With initial weights.
ImageModel make_model(const ImageConfig& config) {
  return ImageModel(config.model, config.data.height, config.data.width);
}

std::unique_ptr<train::Task> make_image_task(Json& json,
                                             const ProgressCallback& progress) {
  ImageConfig config = config_as<ImageConfig>(json);
  auto& data = config.data;
  data::RawImages dataset = data::RawImages::open(
      data.path, data.height, data.width, data.valid_images, progress);
  const std::string found = dataset.fingerprint();
  check_fingerprint(data.path.empty() ? "the built-in images" : data.path,
                    data.fingerprint, found);
  if (!data.path.empty()) data.path = absolute(data.path);
  data.fingerprint = found;
  json = base::to_json(config);
  return std::make_unique<ImageTask>(config, std::move(dataset));
}

std::shared_ptr<torch::nn::Module> make_image_model(const Json& config) {
  return make_model(config_as<ImageConfig>(config)).module();
}

}  // namespace

TaskKind image_kind() {
  return {
      "image",
      "bits/dim",
      "`aft sample DIR` generates images, `aft complete DIR` completes masked "
      "ones",
      {"height", "width", "valid_images"},
      {"fingerprint"},
      /*derived=*/{"length", "columns"},
      complete_image_config,
      make_image_task,
      make_image_model};
}

ImageTask::ImageTask(const ImageConfig& config, data::RawImages dataset)
    : config_(config),
      dataset_(std::move(dataset)),
      order_(dataset_.train().count, static_cast<uint64_t>(config.train.seed)) {
  data::check_parts(config.data.path, dataset_.train().count,
                    dataset_.valid().count);
  torch::manual_seed(static_cast<uint64_t>(config.train.seed));
  model_ = make_model(config);
  model_.recompute(config.train.recompute);
}

torch::Tensor ImageTask::loss(int64_t first, int64_t count, uint64_t seed) {
  const data::ImagePart part = dataset_.train();
  std::vector<uint8_t> batch(static_cast<size_t>(count * part.size));
  const uint64_t own = base::mix(static_cast<uint64_t>(config_.train.seed), 3);
  for (int64_t i = 0; i < count; ++i) {
    const ImageDataConfig& data = config_.data;
    data::flip_and_shift(part[order_.at(first + i)], data.height, data.width,
                         data.flip, data.shift,
                         base::mix(own, static_cast<uint64_t>(first + i)),
                         batch.data() + i * part.size);
  }
  return -model_.log_prob(batch.data(), count, seed).mean();
}

train::Validation ImageTask::validate(int part, int parts) {
  data::ImagePart some = dataset_.valid();
  const int64_t begin = some.count * part / parts,
                end = some.count * (part + 1) / parts;
  if (begin == end) return {0, 0, {}, 0};
  some.data += begin * some.size, some.count = end - begin;
  const double loss = evaluate(model_, some, config_.train.batch_size);
  return {loss, loss, {}, static_cast<double>(end - begin)};
}

double evaluate(const ImageModel& model, const data::ImagePart& images,
                int64_t batch, const ProgressCallback& progress) {
  TORCH_CHECK(images.count >= 1, "evaluation needs at least one image");
  TORCH_CHECK(images.size == model.size(), "a model for images of ",
              model.size(), " values cannot evaluate images of ", images.size);
  at::NoGradGuard no_grad;
  const bool was_training = model.module()->is_training();
  model.module()->eval();
  double total = 0;
  for (int64_t i = 0; i < images.count;) {
    const int64_t B = std::min(batch, images.count - i);
    total -= model.log_prob(images[i], B).sum(at::kDouble).item<double>();
    i += B;
    if (progress) progress(i, images.count);
  }
  model.module()->train(was_training);
  return total / static_cast<double>(images.count * images.size);
}

}  // namespace aft::tasks
