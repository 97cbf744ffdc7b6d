// Bottleneck residual networks (He et al. 2016) as in torchvision, such as
// ResNet-50: a stem, four stages of blocks
//   x = relu(x + norm(conv1x1(relu(norm(conv3x3(relu(norm(conv1x1(x)))))))))
// whose 3x3 convolution has the stride of its stage, global average pooling,
// and a linear head.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/models/image_network.h"
#include "aft/nn/batch_norm.h"
#include "aft/nn/snapshot.h"

namespace aft::models {

struct ResNetConfig {
  std::string network = "resnet";  ///< its name in configurations
  int64_t layers = 50;             ///< 14, 26, 50, 101 or 152
  int64_t width = 64;  ///< channels of the stem; the head reads 32 width
  int64_t classes = 1000;
  /// The stem is one 3x3 convolution without pooling, for images of 32 x 32.
  bool small = false;

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("network", s.network), f("layers", s.layers), f("width", s.width),
        f("classes", s.classes);
    f("small", s.small);
  }
};

/// A convolution with an odd kernel and no bias, padded so that only the stride
/// reduces the image size, followed by batch norm. Not a module: the owner
/// registers both.
class ConvNorm {
 public:
  /// Creates new modules with initial weights.
  void reset(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1);
  torch::Tensor forward(const torch::Tensor& x);
  /// Merges both into one convolution, which forward uses as described at
  /// nn::Mixer::pack_for_inference.
  void pack_for_inference();

  torch::nn::Conv2d conv{nullptr};
  nn::BatchNorm norm{nullptr};

 private:
  int64_t stride_ = 1, padding_ = 0;
  std::vector<torch::Tensor> sources() const;

  torch::Tensor weight_, bias_;  ///< set by pack_for_inference()
  nn::Snapshot from_;
};

/// The shortcut of a block that changes the shape.
class DownsampleImpl : public torch::nn::Cloneable<DownsampleImpl> {
 public:
  DownsampleImpl(int64_t in, int64_t out, int64_t stride);
  void reset() override;

  ConvNorm conv;  ///< modules 0 and 1

 private:
  int64_t in_, out_, stride_;
};
TORCH_MODULE(Downsample);

class BottleneckImpl : public torch::nn::Cloneable<BottleneckImpl> {
 public:
  static constexpr int64_t kExpansion = 4;
  /// Maps `in` channels to kExpansion * inner channels, and reduces the number
  /// of positions by stride^2.
  BottleneckImpl(int64_t in, int64_t inner, int64_t stride);
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x);
  void pack_for_inference();

  ConvNorm first, second, third;   ///< modules conv1, bn1, conv2, ...
  Downsample downsample{nullptr};  ///< null if the shortcut is the identity

 private:
  int64_t in_, inner_, stride_;
};
TORCH_MODULE(Bottleneck);

/// Blocks of one size; the first applies the stride.
class StageImpl : public torch::nn::Cloneable<StageImpl> {
 public:
  StageImpl(int64_t in, int64_t inner, int64_t stride, int64_t blocks);
  void reset() override;

  std::vector<Bottleneck> blocks;  ///< modules 0, 1, ...

 private:
  int64_t in_, inner_, stride_, count_;
};
TORCH_MODULE(Stage);

/// Parameters have torchvision's names and shapes: conv1.weight, bn1.bias,
/// layer1.0.conv1.weight, layer1.0.downsample.0.weight, ..., fc.weight.
class ResNetImpl : public torch::nn::Cloneable<ResNetImpl>,
                   public ImageNetwork {
 public:
  /// Initialises weights like torchvision, from torch's generator: convolutions
  /// N(0, 2 / (kernel^2 out)), norms 1 and 0, the head torch's default. Throws
  /// c10::Error if the configuration is invalid.
  explicit ResNetImpl(const ResNetConfig& config);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// images [B, 3, H, W], normalised, H and W at least 32 (small: 8), to logits
  /// [B, classes]. Nothing is random: the seed is ignored. Throws c10::Error
  /// for other shapes, and in training if the last stage has a single position
  /// of a single image, which batch norm cannot normalise.
  torch::Tensor forward(const torch::Tensor& images,
                        uint64_t seed = 0) override;
  /// Prepares for faster inference by merging the norms into the convolutions
  /// (see nn::Mixer::pack_for_inference).
  void pack_for_inference() override;
  int64_t classes() const override { return config.classes; }

  ResNetConfig config;
  ConvNorm stem;                  ///< modules conv1 and bn1
  std::vector<Stage> stages;      ///< modules layer1 to layer4
  torch::nn::Linear fc{nullptr};  ///< [classes, 32 width]
};
TORCH_MODULE(ResNet);

}  // namespace aft::models
