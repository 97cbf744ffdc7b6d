// The models of the image task by the names of their configuration: a model of
// sequences, which reads sub-pixel after sub-pixel, or, where the key "network"
// says so, a network over pictures. Likelihood and completion with either.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aft/models/pixel_model.h"
#include "aft/models/sequence_model.h"
#include "aft/tasks/generator.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

/// The part "model" of a configuration for pictures of height x width, with
/// every key that it does not name at its default. Throws ConfigError.
Json complete_picture_model(const Json& given, int64_t height, int64_t width);

class PictureModel {
 public:
  PictureModel() = default;  ///< none
  /// From what complete_picture_model returned, with first weights. Throws
  /// c10::Error.
  PictureModel(const Json& model, int64_t height, int64_t width);
  /// Of pictures of height x width; model.length is 3 height width.
  PictureModel(models::SequenceModel model, int64_t height, int64_t width);

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  /// Values of a picture: 3 height width.
  int64_t size() const { return 3 * height_ * width_; }
  /// Blocks are computed again in backward. Throws c10::Error where a network
  /// cannot.
  void recompute(bool on);
  /// The log-probability of each value of `count` pictures, which lie one after
  /// the other, in nats: [count, size()].
  torch::Tensor log_prob(const uint8_t* pictures, int64_t count,
                         uint64_t seed = 0) const;
  /// A picture for each of `given`, of size() values, that begins with exactly
  /// those given (any number, none too). They run together; pictures of
  /// different calls draw their own random numbers where sampling.first says
  /// so. A model of sequences runs on its state; a network is computed anew for
  /// each value. Throws c10::Error where more is given than a picture has.
  std::vector<std::vector<uint8_t>> complete(
      const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
      const Progress& progress = {}) const;

 private:
  std::vector<std::vector<uint8_t>> stream(
      const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
      const Progress& progress) const;
  std::vector<std::vector<uint8_t>> redo(
      const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
      const Progress& progress) const;

  int64_t height_ = 0, width_ = 0;
  models::SequenceModel sequence_{nullptr};  // one of these two
  models::PixelModel* network_ = nullptr;
  std::shared_ptr<torch::nn::Module> module_;  // which holds it
};

/// The model of a directory. In evaluation mode. Throws io::Error, c10::Error.
PictureModel load_picture_model(const std::string& directory, const Json& model,
                                int64_t height, int64_t width);

}  // namespace aft::tasks
