// Image classification with DeiT's recipe: training with its augmentation,
// top-1 and top-5 accuracy, and loading of trained classifiers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aft/data/data.h"
#include "aft/data/labelled_images.h"
#include "aft/data/loader.h"
#include "aft/io/image.h"
#include "aft/models/image_network.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

/// The data set and the augmentation of its training images; 0 or false
/// disables a step.
struct LabelledConfig {
  std::string path;  ///< see data::LabelledImages::open; "": built in
  int64_t height = 224, width = 224;
  double crop = 0.875;      ///< evaluation: fraction of each side that is kept
  double crop_area = 0.08;  ///< training: minimum area of a random crop
  bool flip = true;         ///< mirror with probability 1/2
  int64_t rand_ops = 2;     ///< RandAugment: operations per image
  double rand_magnitude = 9, rand_std = 0.5;  ///< RandAugment: strength
  double erase = 0.25;                        ///< probability of erasing a box
  double mixup = 0.8, cutmix = 1;  ///< alpha of the Beta distributions
  double smoothing = 0.1;          ///< label smoothing
  int64_t repeats = 1;             ///< times that an image comes in a row
  int64_t valid_images = 1000;     ///< training images held out for validation
  int64_t workers = 2;             ///< threads that read and augment
  std::vector<std::string> classes;  ///< set by a run: names of the outputs
  std::string fingerprint;  ///< set by a run: LabelledImages::fingerprint()

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("path", s.path), f("height", s.height), f("width", s.width);
    f("crop", s.crop), f("crop_area", s.crop_area), f("flip", s.flip);
    f("rand_ops", s.rand_ops), f("rand_magnitude", s.rand_magnitude);
    f("rand_std", s.rand_std), f("erase", s.erase), f("mixup", s.mixup);
    f("cutmix", s.cutmix), f("smoothing", s.smoothing);
    f("repeats", s.repeats), f("valid_images", s.valid_images);
    f("workers", s.workers), f("classes", s.classes);
    f("fingerprint", s.fingerprint);
  }
};

/// The model is a Classifier, or the network that its key "network" names:
/// resnet. For a Classifier, model.rows and model.columns are data.height and
/// data.width in patches, and model.pool and model.positions default to values
/// that suit the mixer. model.classes is the number of classes of the data.
using ClassificationConfig = RunConfig<Json, LabelledConfig>;

/// Creates the network described by the "model" part of a complete
/// configuration, with initial weights. Throws c10::Error.
std::shared_ptr<models::ImageNetwork> make_network(const Json& model);

TaskKind classification_kind();

/// Trains a classifier.
class ClassificationTask : public train::Task {
 public:
  /// The initial weights are drawn with config.train.seed. Throws
  /// data::DataError, c10::Error.
  ClassificationTask(const ClassificationConfig& config,
                     data::LabelledImages dataset);
  torch::nn::Module& model() override { return *model_; }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) override;
  int64_t together() const override { return mixes() ? 2 : 1; }
  using train::Task::validate;
  train::Validation validate(int part, int parts) override;
  int64_t tokens() const override { return 1; }

 private:
  bool mixes() const;
  int64_t example(int64_t place) const;
  /// The index of the image of an example.
  int64_t image_of(int64_t example);

  ClassificationConfig config_;
  std::shared_ptr<const data::LabelledImages> dataset_;
  std::mutex mutex_;  // guards order_, which loader_'s threads also use
  data::Order order_;
  std::shared_ptr<models::ImageNetwork> model_;
  std::unique_ptr<data::Loader> loader_;
};

struct Accuracy {
  int64_t images = 0;
  double loss = 0;            ///< mean, nats
  double top1 = 0, top5 = 0;  ///< fractions in [0, 1]
};

/// Measures the accuracy of a model on one part of a data set. to_model: the
/// model's class for each class of the data, as returned by match_classes
/// (class_names.h). how:
/// height, width and crop as in data::centre_crop, and workers. Throws
/// data::DataError for an image of a class that the model does not know,
/// io::Error for one that cannot be read.
Accuracy evaluate(models::ImageNetwork& model,
                  const data::LabelledImages& dataset,
                  const data::LabelledPart& part,
                  const std::vector<int64_t>& to_model,
                  const LabelledConfig& how, int64_t batch,
                  const ProgressCallback& progress = {});

/// Loads the network of a model directory, in evaluation mode and packed for
/// inference. Throws ConfigError, io::Error.
std::shared_ptr<models::ImageNetwork> load_classifier(
    const std::string& directory, const Json& model);

}  // namespace aft::tasks
