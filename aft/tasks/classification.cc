#include "aft/tasks/classification.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "aft/base/counted.h"
#include "aft/data/augment.h"
#include "aft/data/image_files.h"
#include "aft/data/image_input.h"
#include "aft/io/run_directory.h"
#include "aft/models/classifier.h"
#include "aft/models/resnet.h"
#include "aft/tasks/class_names.h"
#include "aft/tasks/memory_limit.h"

namespace aft::tasks {
namespace {

constexpr int64_t kClasses = 1000;  // default

void check(bool good, const std::string& what) {
  if (!good) throw base::ConfigError(what);
}

void check_data(const LabelledConfig& data) {
  const auto within = [](const char* name, double x, double low, double high) {
    check(x >= low && x <= high,
          std::string("data.") + name + " must be in [" + base::shown(low) +
              ", " + base::shown(high) + "], got " + base::shown(x));
  };
  within("height", static_cast<double>(data.height), 1, 4096);
  within("width", static_cast<double>(data.width), 1, 4096);
  within("crop", data.crop, 0.05, 1), within("erase", data.erase, 0, 1);
  within("crop_area", data.crop_area, 0, 1);
  within("rand_ops", static_cast<double>(data.rand_ops), 0, 100);
  within("rand_magnitude", data.rand_magnitude, 0, 10);
  within("rand_std", data.rand_std, 0, 10);
  within("mixup", data.mixup, 0, 100), within("cutmix", data.cutmix, 0, 100);
  within("smoothing", data.smoothing, 0, 0.999);
  within("repeats", static_cast<double>(data.repeats), 1, 100);
  within("workers", static_cast<double>(data.workers), 1, 256);
}

/// Sets model.classes, if it is not given (0), from the data.
void follow_classes(int64_t& classes, const LabelledConfig& data) {
  const int64_t known = static_cast<int64_t>(data.classes.size());
  if (classes == 0) classes = known > 0 ? known : kClasses;
  check(known == 0 || classes == known,
        "model.classes must be the number of data.classes, " +
            std::to_string(known) + " (or not be given), got " +
            std::to_string(classes));
}

Json complete_classifier(const Json& given, const LabelledConfig& data) {
  models::ClassifierConfig model;
  // Read the mixer first: it determines defaults.
  base::from_json(given, model, "model");
  model.follow_mixer();
  model.rows = model.columns = model.classes = 0;
  base::from_json(given, model, "model");
  check(model.patch >= 1,
        "model.patch must be 1 or more, got " + std::to_string(model.patch));
  const auto patches = [&](const char* key, int64_t& value, const char* from,
                           int64_t side) {
    check(side % model.patch == 0, std::string("data.") + from +
                                       " must be a multiple of model.patch = " +
                                       std::to_string(model.patch) + ", got " +
                                       std::to_string(side));
    if (value == 0) value = side / model.patch;
    check(value == side / model.patch,
          std::string("model.") + key + " must be data." + from +
              " / model.patch = " + std::to_string(side / model.patch) +
              " (or not be given), got " + std::to_string(value));
  };
  patches("rows", model.rows, "height", data.height);
  patches("columns", model.columns, "width", data.width);
  follow_classes(model.classes, data);
  return base::to_json(model);
}

/// The networks other than Classifier.
struct Network {
  std::string name;
  Json (*complete)(const Json& given, const LabelledConfig& data);
  std::shared_ptr<models::ImageNetwork> (*make)(const Json& model);
};

template <class Config, class Impl>
Network network() {
  return {Config().network,
          [](const Json& given, const LabelledConfig& data) {
            Config config;
            config.classes = 0;
            base::from_json(given, config, "model");
            follow_classes(config.classes, data);
            return base::to_json(config);
          },
          [](const Json& model) -> std::shared_ptr<models::ImageNetwork> {
            return std::make_shared<Impl>(config_as<Config>(model));
          }};
}

const Network* find(const Json& model) {
  static const std::vector<Network> all = {
      network<models::ResNetConfig, models::ResNetImpl>()};
  return find_network(model, all);
}

Json complete_classification_config(const Json& given) {
  ClassificationConfig config;
  config.task = "classification", config.model = Json::object();
  base::from_json(given, config);
  check_data(config.data);
  const Network* network = find(config.model);
  config.model = network ? network->complete(config.model, config.data)
                         : complete_classifier(config.model, config.data);
  const Json out = base::to_json(config);
  base::check_sizes(out["model"]);
  return out;
}

std::unique_ptr<train::Task> make_classification_task(Json& json,
                                                      const ProgressCallback&) {
  ClassificationConfig config = config_as<ClassificationConfig>(json);
  auto& data = config.data;
  data::LabelledImages dataset = data::LabelledImages::open(
      data.path, data.valid_images, std::max(data.height, data.width));
  const std::string found = dataset.fingerprint();
  const std::string name = dataset.path();
  check_fingerprint(name, data.fingerprint, found);
  // Their names may have more words than those of the data (adopt_classes).
  if (data.classes.empty()) data.classes = dataset.classes();
  std::vector<int64_t> same(data.classes.size());
  std::iota(same.begin(), same.end(), int64_t{0});
  if (match_classes(dataset.classes(), data.classes) != same)
    throw data::DataError(
        name + ": expected the " + base::counted(data.classes.size(), "class") +
        " that the run started with (data.classes), got " +
        base::counted(dataset.classes().size(), "other class"));
  if (!data.path.empty()) data.path = absolute(data.path);
  data.fingerprint = found;
  const int64_t C = static_cast<int64_t>(data.classes.size());
  if (C < 2)
    throw data::DataError(name +
                          ": expected folders of two classes or more (--data "
                          "or data.path), got " +
                          std::to_string(C) +
                          (C == 1 ? ", '" + data.classes[0] + "'" : ""));
  const int64_t named = config.model["classes"];
  check(named == C || named == kClasses,
        "model.classes must be the number of classes of the data, " +
            std::to_string(C) + " (or not be given), got " +
            std::to_string(named));
  config.model["classes"] = C;
  check(
      (data.mixup == 0 && data.cutmix == 0) || config.train.batch_size % 2 == 0,
      "train.batch_size must be even for data.mixup and data.cutmix, which "
      "pair images, got " +
          std::to_string(config.train.batch_size));
  json = base::to_json(config);
  return std::make_unique<ClassificationTask>(config, std::move(dataset));
}

std::shared_ptr<torch::nn::Module> make_classification_model(
    const Json& config) {
  return make_network(config.at("model"));
}

}  // namespace

TaskKind classification_kind() {
  return {"classification",
          "",
          "`aft classify DIR photo.jpg` classifies an image",
          {"height", "width", "valid_images", "classes"},
          {"fingerprint", "crop"},
          /*derived=*/{"rows", "columns", "classes"},
          complete_classification_config,
          make_classification_task,
          make_classification_model};
}

std::shared_ptr<models::ImageNetwork> make_network(const Json& model) {
  if (const Network* network = find(model)) return network->make(model);
  return models::Classifier(config_as<models::ClassifierConfig>(model)).ptr();
}

ClassificationTask::ClassificationTask(const ClassificationConfig& config,
                                       data::LabelledImages dataset)
    : config_(config),
      dataset_(std::make_shared<data::LabelledImages>(std::move(dataset))),
      order_(
          std::max<int64_t>(static_cast<int64_t>(dataset_->train().size()), 1),
          static_cast<uint64_t>(config.train.seed), config.data.repeats) {
  data::check_parts(config.data.path,
                    static_cast<int64_t>(dataset_->train().size()),
                    static_cast<int64_t>(dataset_->valid().size()));
  torch::manual_seed(static_cast<uint64_t>(config.train.seed));
  model_ = make_network(config.model);
  if (auto* classifier = model_->as<models::ClassifierImpl>()) {
    classifier->recompute(config.train.recompute);
  } else {
    check(!config.train.recompute,
          "train.recompute must be false for this network, got true");
  }
  const uint64_t own = base::mix(static_cast<uint64_t>(config.train.seed), 3);
  loader_ = std::make_unique<data::Loader>(
      3 * config.data.height * config.data.width,
      [this, own](int64_t place, float* to) {
        const int64_t number = example(place), chosen = image_of(number);
        const LabelledConfig& data = config_.data;
        data::training_input(dataset_->read(chosen), data.height, data.width,
                             {data.crop_area, 1, data.flip, data.rand_ops,
                              data.rand_magnitude, data.rand_std, data.erase},
                             base::mix(own, static_cast<uint64_t>(number)), to);
        return dataset_->label(chosen);
      },
      config.data.workers);
}

bool ClassificationTask::mixes() const {
  return config_.data.mixup > 0 || config_.data.cutmix > 0;
}

/// Maps a position in the infinite order to an example. When images are mixed,
/// the first and last examples of a batch become neighbours, then the second
/// and second last, and so on. Partners are then adjacent, and repeats of an
/// image are not mixed with each other.
int64_t ClassificationTask::example(int64_t place) const {
  if (!mixes()) return place;
  const int64_t B = config_.train.batch_size, at = place % B;
  return place - at + (at % 2 == 0 ? at / 2 : B - 1 - at / 2);
}

int64_t ClassificationTask::image_of(int64_t example) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return dataset_->train()[static_cast<size_t>(order_.at(example))];
}

torch::Tensor ClassificationTask::loss(int64_t first, int64_t count,
                                       uint64_t seed) {
  const auto& data = config_.data;
  const int64_t C = model_->classes();
  const data::LabelledBatch batch = loader_->get(first, count);
  const torch::Tensor images =
      batch.values.view({count, 3, data.height, data.width});
  base::Random draw(base::mix(seed, 11));
  const data::Mix mix =
      data::draw_mix(data.height, data.width, data.mixup, data.cutmix, draw);
  data::apply_mix(mix, images.data_ptr<float>(), count, data.height,
                  data.width);
  // Target probabilities with label smoothing and mixing.
  const double off = data.smoothing / static_cast<double>(C);
  torch::Tensor target = at::full({count, C}, off, at::kFloat);
  auto shares = target.accessor<float, 2>();
  const auto add = [&](int64_t row, int64_t from, double share) {
    shares[row][batch.labels[static_cast<size_t>(from)]] +=
        static_cast<float>((1 - data.smoothing) * share);
  };
  for (int64_t i = 0; i < count; ++i) {
    add(i, i, mix.lambda);
    // The same partner as in data::apply_mix.
    add(i, std::min(i ^ 1, count - 1), 1 - mix.lambda);
  }
  const torch::Device device = device_of(*model_);
  const torch::Tensor logits = model_->forward(images.to(device), seed);
  return -(logits.log_softmax(-1) * target.to(device)).sum(-1).mean();
}

train::Validation ClassificationTask::validate(int part, int parts) {
  std::vector<int64_t> same(dataset_->classes().size());
  for (size_t i = 0; i < same.size(); ++i) same[i] = static_cast<int64_t>(i);
  const data::LabelledPart& all = dataset_->valid();
  const int64_t n = static_cast<int64_t>(all.size()), begin = n * part / parts,
                end = n * (part + 1) / parts;
  if (begin == end) return {0, 0, {{"top1", 0}, {"top5", 0}}, 0};
  const Accuracy a = evaluate(
      *model_, *dataset_, {all.begin() + begin, all.begin() + end}, same,
      config_.data, std::max<int64_t>(config_.train.batch_size, 16));
  // Fewest errors first; the loss breaks ties.
  return {a.loss,
          1 - a.top1 + 1e-6 * std::min(a.loss, 1e3),
          {{"top1", a.top1}, {"top5", a.top5}},
          static_cast<double>(end - begin)};
}

Accuracy evaluate(models::ImageNetwork& model,
                  const data::LabelledImages& dataset,
                  const data::LabelledPart& part,
                  const std::vector<int64_t>& to_model,
                  const LabelledConfig& how, int64_t batch,
                  const ProgressCallback& progress) {
  const int64_t all = static_cast<int64_t>(part.size());
  TORCH_CHECK(all >= 1, "evaluation needs at least one image");
  for (const int64_t i : part) {
    const size_t label = static_cast<size_t>(dataset.label(i));
    if (to_model[label] < 0)
      throw data::DataError(
          dataset.name(i) + ": its class '" + dataset.classes()[label] +
          "' is not one of the model's " + std::to_string(model.classes()) +
          " (data.classes of its config.json)");
  }
  at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  data::Loader loader(
      3 * how.height * how.width,
      [&](int64_t i, float* to) {
        const int64_t index = part[static_cast<size_t>(i)];
        data::evaluation_input(dataset.read(index), how.height, how.width,
                               how.crop, to);
        return to_model[static_cast<size_t>(dataset.label(index))];
      },
      how.workers, all);
  const torch::Device device = device_of(model);
  Accuracy out;
  out.images = all;
  const int64_t k = std::min<int64_t>(5, model.classes());
  for (int64_t i = 0; i < all;) {
    const int64_t B = std::min(batch, all - i);
    const data::LabelledBatch pack = loader.get(i, B);
    const torch::Tensor images =
        pack.values.view({B, 3, how.height, how.width}).to(device);
    const torch::Tensor logits = model.forward(images),
                        labels = at::tensor(pack.labels, at::kLong).to(device);
    const torch::Tensor right =
        std::get<1>(logits.topk(k)).eq(labels.unsqueeze(1));
    out.top1 += right.select(1, 0).sum().item<double>();
    out.top5 += right.sum().item<double>();
    out.loss += at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum)
                    .item<double>();
    i += B;
    if (progress) progress(i, all);
  }
  model.train(was_training);
  const double n = static_cast<double>(all);
  out.top1 /= n, out.top5 /= n, out.loss /= n;
  return out;
}

std::shared_ptr<models::ImageNetwork> load_classifier(
    const std::string& directory, const Json& model) {
  std::shared_ptr<models::ImageNetwork> network;
  try {
    network = within_memory([&] { return make_network(model); },
                            weights_of(directory).file);
  } catch (const c10::Error& e) {
    throw base::ConfigError(io::RunDirectory(directory).config() + ": " +
                            e.what_without_backtrace());
  }
  load_weights(directory, *network);
  network->pack_for_inference();
  return network;
}

}  // namespace aft::tasks
