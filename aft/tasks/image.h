// Autoregressive image modelling: an image is the sequence of its sub-pixels,
// row by row, with red, green and blue of each pixel, and each is predicted
// from those before it. Training and likelihood; image_model.h generates
// images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/data/data.h"
#include "aft/data/raw_images.h"
#include "aft/tasks/image_model.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

struct ImageDataConfig {
  std::string path;  ///< see data::RawImages::open; "": built in
  int64_t height = 32, width = 32;
  bool flip = true;    ///< training: mirror with probability 1/2
  int64_t shift = 10;  ///< training: add an integer in [-shift, shift]
  int64_t valid_images =
      100;                  ///< last training images, held out for validation
  std::string fingerprint;  ///< set by a run: data::RawImages::fingerprint()

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("path", s.path), f("height", s.height), f("width", s.width);
    f("flip", s.flip), f("shift", s.shift), f("valid_images", s.valid_images);
    f("fingerprint", s.fingerprint);
  }
};

/// For a sequence model, model.length is 3 height width, model.start is true
/// and model.vocabulary is 256; symbol 256 marks the start, before the first
/// sub-pixel.
using ImageConfig = RunConfig<Json, ImageDataConfig>;

TaskKind image_kind();

/// Trains a model on images.
class ImageTask : public train::Task {
 public:
  /// The initial weights are drawn with config.train.seed. Throws
  /// data::DataError, c10::Error.
  ImageTask(const ImageConfig& config, data::RawImages dataset);
  torch::nn::Module& model() override { return *model_.module(); }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) override;
  using train::Task::validate;
  train::Validation validate(int part, int parts) override;
  int64_t tokens() const override { return model_.size(); }

 private:
  ImageConfig config_;
  data::RawImages dataset_;
  data::Order order_;
  ImageModel model_;
};

/// The mean loss in nats per sub-pixel. Throws c10::Error if there are no
/// images or their size differs from the model's.
double evaluate(const ImageModel& model, const data::ImagePart& images,
                int64_t batch, const ProgressCallback& progress = {});

}  // namespace aft::tasks
