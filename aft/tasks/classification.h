// Image classification by DeiT's recipe: training with its augmentation,
// top-1 and top-5 accuracy, and the classes of single pictures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aft/io/image.h"
#include "aft/models/image_network.h"
#include "aft/tasks/data.h"
#include "aft/tasks/labelled.h"
#include "aft/tasks/loader.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

/// Which pictures, and what is done to those for training; 0 or false switches
/// a part off.
struct LabelledConfig {
  std::string path;  ///< LabelledPictures::open; "": built in
  int64_t height = 224, width = 224;
  double crop = 0.875;      ///< evaluation: the share of a side that stays
  double crop_area = 0.08;  ///< training: least area of a random crop
  bool flip = true;         ///< half of them mirrored
  int64_t rand_ops = 2;     ///< RandAugment: operations for a picture,
  double rand_magnitude = 9, rand_std = 0.5;  ///< and how strong they are
  double erase = 0.25;                        ///< probability of an erased box
  double mixup = 0.8, cutmix = 1;             ///< of the Beta distributions
  double smoothing = 0.1;                     ///< of the labels
  int64_t repeats = 1;               ///< times that a picture comes in a row
  int64_t valid_images = 1000;       ///< of those for training, for validation
  int64_t workers = 2;               ///< threads that read and augment
  std::vector<std::string> classes;  ///< of a run: what the logits stand for
  std::string fingerprint;  ///< of a run: LabelledPictures::fingerprint()

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

/// The model is a Classifier, or what its key "network" names: resnet. Of a
/// Classifier model.rows and model.columns are data.height and data.width in
/// patches, and model.pool and model.positions follow the mixer where they are
/// not named. model.classes is what the data have.
using ClassificationConfig = RunConfig<Json, LabelledConfig>;

/// The network of the part "model" of a complete configuration, with first
/// weights. Throws c10::Error.
std::shared_ptr<models::ImageNetwork> make_network(const Json& model);

TaskKind classification_kind();

/// A picture as the network reads it: to [3, height, width], each channel less
/// ImageNet's mean, over its standard deviation. The picture has that size.
void normalise(const io::Image& image, float* to);

/// Evaluation: scaled, bicubic, so that height / crop x width / crop is
/// covered, and the centre of height x width cut out, as torchvision and timm
/// do it (for a square: short side floor(size / crop)). Throws io::Error.
io::Image centre(const io::Image& image, int64_t height, int64_t width,
                 double crop);

/// Training: crop, mirror, RandAugment, normalisation, erasing, all chosen by
/// random. to [3, config.height, config.width]. Throws io::Error.
void augment(const LabelledConfig& config, const io::Image& image,
             uint64_t random, float* to);

/// Training a classifier.
class ClassificationTask : public train::Task {
 public:
  /// The model's first weights come from config.train.seed. Throws DataError,
  /// c10::Error.
  ClassificationTask(const ClassificationConfig& config,
                     LabelledPictures pictures);
  torch::nn::Module& model() override { return *model_; }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) override;
  int64_t together() const override { return mixes() ? 2 : 1; }
  using train::Task::validate;
  train::Validation validate(int part, int parts) override;
  int64_t tokens() const override { return 1; }

 private:
  bool mixes() const;
  int64_t example(int64_t place) const;
  /// The picture of an example.
  int64_t picture(int64_t example);

  ClassificationConfig config_;
  std::shared_ptr<const LabelledPictures> pictures_;
  std::mutex mutex_;  // of order_, which loader_'s threads ask too
  Order order_;
  std::shared_ptr<models::ImageNetwork> model_;
  std::unique_ptr<Loader> loader_;
};

struct Accuracy {
  int64_t images = 0;
  double loss = 0;            ///< nats, mean
  double top1 = 0, top5 = 0;  ///< shares in [0, 1]
};

/// How well a model names the pictures of one part. to_model: the model's class
/// for each class of the pictures, as match_classes gives it. how: height,
/// width and crop as in centre(), and workers. Throws DataError for a picture
/// of a class that the model does not know, io::Error for one that cannot be
/// read.
Accuracy evaluate(models::ImageNetwork& model, const LabelledPictures& pictures,
                  const LabelledPart& part,
                  const std::vector<int64_t>& to_model,
                  const LabelledConfig& how, int64_t batch,
                  const Progress& progress = {});

/// The model's class for each class of data, by name: the same, or one is the
/// first word of the other ("n01440764", "n01440764 tench, Tinca tinca");
/// "class i", which has no name, is the i-th. -1 for a class that the model
/// does not know.
std::vector<int64_t> match_classes(const std::vector<std::string>& data,
                                   const std::vector<std::string>& model);

/// The network of a model directory. In evaluation mode, folded. Throws
/// ConfigError, io::Error.
std::shared_ptr<models::ImageNetwork> load_classifier(
    const std::string& directory, const Json& model);

}  // namespace aft::tasks
