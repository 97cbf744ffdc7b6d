// Autoregressive images: a picture is the sequence of its sub-pixels, row by
// row, red, green, blue of each pixel, and each is predicted from those before
// it. Training and likelihood; picture_model.h draws.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/tasks/data.h"
#include "aft/tasks/picture_model.h"
#include "aft/tasks/pictures.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

struct PicturesConfig {
  std::string path;  ///< Pictures::open; "": built in
  int64_t height = 32, width = 32;
  bool flip = true;            ///< training pictures: half of them mirrored
  int64_t shift = 10;          ///< an integer in [-shift, shift] added to all
  int64_t valid_images = 100;  ///< of the last for training, for validation
  std::string fingerprint;     ///< of a run: Pictures::fingerprint()

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("path", s.path), f("height", s.height), f("width", s.width);
    f("flip", s.flip), f("shift", s.shift), f("valid_images", s.valid_images);
    f("fingerprint", s.fingerprint);
  }
};

/// A model of sequences has model.length 3 height width, model.start true and
/// model.vocabulary 256: symbol 256 stands before the first sub-pixel.
using ImageConfig = RunConfig<Json, PicturesConfig>;

TaskKind image_kind();

/// A training picture as the paper augments it: mirrored or not, one integer
/// added to all sub-pixels, clipped to [0, 255]. from and to: [height, width,
/// 3], not the same; random chooses.
void augment(const PicturesConfig& config, const uint8_t* from, uint64_t random,
             uint8_t* to);

/// Training a model on pictures.
class ImageTask : public train::Task {
 public:
  /// The model's first weights come from config.train.seed. Throws DataError,
  /// c10::Error.
  ImageTask(const ImageConfig& config, Pictures pictures);
  torch::nn::Module& model() override { return *model_.module(); }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) override;
  using train::Task::validate;
  train::Validation validate(int part, int parts) override;
  int64_t tokens() const override { return model_.size(); }

 private:
  ImageConfig config_;
  Pictures pictures_;
  Order order_;
  PictureModel model_;
};

/// The mean loss of pictures in nats a sub-pixel. Throws c10::Error for none,
/// or where their size is not the model's.
double evaluate(const PictureModel& model, const PicturePart& pictures,
                int64_t batch, const Progress& progress = {});

}  // namespace aft::tasks
