#include "aft/tasks/image_model.h"

#include <ATen/ATen.h>

#include "aft/io/run_directory.h"
#include "aft/models/pixelcnn.h"
#include "aft/models/pixelcnn_pp.h"
#include "aft/models/pixelsnail.h"
#include "aft/tasks/memory_limit.h"

namespace aft::tasks {
namespace {

constexpr int64_t kStart = 256;

/// A network over whole images.
struct Network {
  std::string name;
  Json (*complete)(const Json& given);
  std::pair<std::shared_ptr<torch::nn::Module>, models::PixelModel*> (*make)(
      const Json& model);
};

template <class Config, class Impl>
Network network() {
  return {Config().network,
          [](const Json& given) {
            Config config;
            base::from_json(given, config, "model");
            return base::to_json(config);
          },
          [](const Json& model) {
            const auto made = std::make_shared<Impl>(config_as<Config>(model));
            return std::pair<std::shared_ptr<torch::nn::Module>,
                             models::PixelModel*>(made, made.get());
          }};
}

/// The network of a model configuration; null for a sequence model.
const Network* find(const Json& model) {
  static const std::vector<Network> all = {
      network<models::PixelCNNConfig, models::PixelCNNImpl>(),
      network<models::PixelCNNppConfig, models::PixelCNNppImpl>(),
      network<models::PixelSNAILConfig, models::PixelSNAILImpl>()};
  return find_network(model, all);
}

void check(bool good, const std::string& what) {
  if (!good) throw base::ConfigError(what);
}

}  // namespace

Json complete_image_model(const Json& given, int64_t height, int64_t width) {
  if (const Network* network = find(given)) return network->complete(given);
  models::SequenceModelConfig model;
  model.start = true, model.length = 0;
  base::from_json(given, model, "model");
  const auto follow = [](const char* key, int64_t& value, const char* from,
                         int64_t expected) {
    if (value == 0) value = expected;
    check(value == expected, std::string("model.") + key + " must be " + from +
                                 " = " + std::to_string(expected) +
                                 " (or not be given), got " +
                                 std::to_string(value));
  };
  follow("length", model.length, "3 data.height data.width",
         3 * height * width);
  follow("columns", model.columns, "3 data.width", 3 * width);
  check(model.start, "model.start must be true for images, got false");
  check(model.vocabulary == 256,
        "model.vocabulary must be 256 for images, got " +
            std::to_string(model.vocabulary));
  return base::to_json(model);
}

ImageModel::ImageModel(models::SequenceModel model, int64_t height,
                       int64_t width)
    : height_(height),
      width_(width),
      sequence_(std::move(model)),
      module_(sequence_.ptr()) {
  TORCH_CHECK(sequence_->config.length == size(), "a model of images of ",
              height, " x ", width, " must have model.length = ", size(),
              ", got ", sequence_->config.length);
}

ImageModel::ImageModel(const Json& model, int64_t height, int64_t width)
    : height_(height), width_(width) {
  if (const Network* network = find(model)) {
    std::tie(module_, network_) = network->make(model);
  } else {
    *this = ImageModel(
        models::SequenceModel(config_as<models::SequenceModelConfig>(model)),
        height, width);
  }
}

void ImageModel::recompute(bool on) {
  TORCH_CHECK(!on || !network_,
              "train.recompute must be false for a network over whole images, "
              "got true");
  if (!network_) sequence_->recompute(on);
}

torch::Tensor ImageModel::log_prob(const uint8_t* images, int64_t count,
                                   uint64_t seed) const {
  const torch::Tensor values =
      at::from_blob(const_cast<uint8_t*>(images), {count, size()}, at::kByte)
          .to(device_of(*module_), at::kLong);
  if (network_)
    return network_->log_prob(values.view({count, height_, width_, 3}), seed)
        .reshape({count, size()});
  models::SequenceModel sequence = sequence_;
  const torch::Tensor inputs =
      at::cat({at::full({count, 1}, kStart, values.options()),
               values.narrow(1, 0, size() - 1)},
              1);
  return -cross_entropy(sequence->forward(inputs, seed), values,
                        /*mean=*/false)
              .view({count, size()});
}

std::vector<std::vector<uint8_t>> ImageModel::complete(
    const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
    const ProgressCallback& progress) const {
  for (const auto& g : given)
    TORCH_CHECK(static_cast<int64_t>(g.size()) <= size(),
                "an image of this model has ", size(), " values, but ",
                g.size(), " are given");
  return (network_ ? complete_by_network(sampling, given, progress)
                   : complete_by_stream(sampling, given, progress));
}

std::vector<std::vector<uint8_t>> ImageModel::complete_by_stream(
    const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
    const ProgressCallback& progress) const {
  std::vector<std::vector<int64_t>> prompts;
  for (const auto& g : given) {
    prompts.emplace_back(1, kStart);
    prompts.back().insert(prompts.back().end(), g.begin(), g.end());
  }
  std::vector<std::vector<uint8_t>> out = given;
  Generator generator(sequence_, sampling, std::move(prompts));
  for (int64_t t = 0; t < size(); ++t) {
    const std::vector<int64_t> drawn = generator.next();
    for (size_t i = 0; i < drawn.size(); ++i)
      if (drawn[i] >= 0) out[i].push_back(static_cast<uint8_t>(drawn[i]));
    if (progress) progress(t + 1, size());
  }
  return out;
}

std::vector<std::vector<uint8_t>> ImageModel::complete_by_network(
    const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
    const ProgressCallback& progress) const {
  at::NoGradGuard no_grad;
  // Not unconditionally: other threads may be using the model.
  if (module_->is_training()) module_->eval();
  const int64_t B = static_cast<int64_t>(given.size());
  std::vector<std::vector<uint8_t>> out = given;
  std::vector<uint64_t> random;
  for (int64_t b = 0; b < B; ++b)
    random.push_back(
        base::mix(sampling.seed, sampling.first + static_cast<uint64_t>(b)));
  const torch::Tensor values = at::zeros({B, size()}, at::kLong);
  const torch::Tensor grid = values.view({B, height_, width_, 3});
  auto value = values.accessor<int64_t, 2>();
  for (int64_t t = 0; t < size(); ++t) {
    torch::Tensor logits;  // computed only if an image needs them
    for (int64_t b = 0; b < B; ++b) {
      auto& image = out[static_cast<size_t>(b)];
      if (static_cast<int64_t>(image.size()) == t) {
        if (!logits.defined())
          logits = network_->distribution(grid, t / 3 / width_, t / 3 % width_,
                                          t % 3);
        image.push_back(static_cast<uint8_t>(draw(
            logits[b], sampling, next_random(random[static_cast<size_t>(b)]))));
      }
      value[b][t] = image[static_cast<size_t>(t)];
    }
    if (progress) progress(t + 1, size());
  }
  return out;
}

ImageModel load_image_model(const std::string& directory, const Json& model,
                            int64_t height, int64_t width) {
  ImageModel out =
      within_memory([&] { return ImageModel(model, height, width); },
                    weights_of(directory).file);
  load_weights(directory, *out.module());
  return out;
}

}  // namespace aft::tasks
