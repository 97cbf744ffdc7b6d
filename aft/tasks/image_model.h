// The models of the image task: a sequence model, which reads one sub-pixel
// after the other, or the network over whole images that the configuration key
// "network" names. Both compute likelihoods and complete images.
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

/// The "model" part of a configuration for images of height x width, with
/// defaults for missing keys. Throws ConfigError.
Json complete_image_model(const Json& given, int64_t height, int64_t width);

class ImageModel {
 public:
  ImageModel() = default;  ///< no model
  /// From the result of complete_image_model, with initial weights. Throws
  /// c10::Error.
  ImageModel(const Json& model, int64_t height, int64_t width);
  /// From a sequence model for images of height x width; its length is 3 height
  /// width.
  ImageModel(models::SequenceModel model, int64_t height, int64_t width);

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  /// Values per image: 3 height width.
  int64_t size() const { return 3 * height_ * width_; }
  /// Enables recomputation of blocks in backward. Throws c10::Error if a
  /// network does not support it.
  void recompute(bool on);
  /// The log-probability of each value of `count` consecutive images, in nats:
  /// [count, size()].
  torch::Tensor log_prob(const uint8_t* images, int64_t count,
                         uint64_t seed = 0) const;
  /// Generates one image of size() values for each element of `given`, starting
  /// with exactly those values (which may be none). All images are generated
  /// together. With different sampling.first, calls use different random
  /// numbers. A sequence model runs on its state; a network is evaluated again
  /// for each value. Throws c10::Error if more values are given than an image
  /// has.
  std::vector<std::vector<uint8_t>> complete(
      const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
      const ProgressCallback& progress = {}) const;

 private:
  std::vector<std::vector<uint8_t>> complete_by_stream(
      const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
      const ProgressCallback& progress) const;
  std::vector<std::vector<uint8_t>> complete_by_network(
      const Sampling& sampling, const std::vector<std::vector<uint8_t>>& given,
      const ProgressCallback& progress) const;

  int64_t height_ = 0, width_ = 0;
  models::SequenceModel sequence_{nullptr};  // exactly one of these two is set
  models::PixelModel* network_ = nullptr;
  std::shared_ptr<torch::nn::Module> module_;  // owns it
};

/// Loads the model of a directory, in evaluation mode. Throws io::Error,
/// c10::Error.
ImageModel load_image_model(const std::string& directory, const Json& model,
                            int64_t height, int64_t width);

}  // namespace aft::tasks
