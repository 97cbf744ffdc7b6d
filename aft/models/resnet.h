// Residual networks of bottlenecks (He et al. 2016) as torchvision builds them,
// ResNet-50 among them: a stem, four stages of blocks
//   x = relu(x + norm(conv1x1(relu(norm(conv3x3(relu(norm(conv1x1(x)))))))))
// whose 3x3 convolution has the stride of its stage, the mean over all places,
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

namespace aft::models {

struct ResNetConfig {
  std::string network = "resnet";  ///< its name in configurations
  int64_t layers = 50;             ///< 14, 26, 50, 101 or 152
  int64_t width = 64;  ///< channels of the stem; the head reads 32 times that
  int64_t classes = 1000;
  bool small = false;  ///< the stem is one 3x3 convolution and no pooling, for
                       ///< pictures of 32 px

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("network", s.network), f("layers", s.layers), f("width", s.width),
        f("classes", s.classes);
    f("small", s.small);
  }
};

/// A convolution of an odd kernel without bias, padded so that only the stride
/// shrinks the picture, and the batch norm after it. Not a module: who owns it
/// registers both.
class ConvNorm {
 public:
  /// New modules with first weights. What is folded stays: so a clone has it.
  void reset(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1);
  torch::Tensor forward(const torch::Tensor& x);
  /// Makes one convolution of both, and gives back the memory of the weights.
  /// From then on forward throws c10::Error where gradients are recorded.
  void fold();

  torch::nn::Conv2d conv{nullptr};
  nn::BatchNorm norm{nullptr};

 private:
  int64_t stride_ = 1, padding_ = 0;
  torch::Tensor weight_, bias_;  ///< once folded
};

/// What stands beside a block that changes the shape.
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
  /// `in` channels to kExpansion `inner`, in places fewer by stride^2.
  BottleneckImpl(int64_t in, int64_t inner, int64_t stride);
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x);
  void fold();

  ConvNorm first, second, third;   ///< modules conv1, bn1, conv2, ...
  Downsample downsample{nullptr};  ///< empty where x joins as it is

 private:
  int64_t in_, inner_, stride_;
};
TORCH_MODULE(Bottleneck);

/// Blocks of one size, the first of which has the stride.
class StageImpl : public torch::nn::Cloneable<StageImpl> {
 public:
  StageImpl(int64_t in, int64_t inner, int64_t stride, int64_t blocks);
  void reset() override;

  std::vector<Bottleneck> blocks;  ///< modules 0, 1, ...

 private:
  int64_t in_, inner_, stride_, count_;
};
TORCH_MODULE(Stage);

/// Names and shapes of parameters are torchvision's: conv1.weight, bn1.bias,
/// layer1.0.conv1.weight, layer1.0.downsample.0.weight, ..., fc.weight.
class ResNetImpl : public torch::nn::Cloneable<ResNetImpl>,
                   public ImageNetwork {
 public:
  /// First weights as torchvision's, from torch's generator: of convolutions
  /// N(0, 2 / (kernel^2 out)), of norms 1 and 0, of the head torch's own.
  /// Throws c10::Error for a configuration that makes no sense.
  explicit ResNetImpl(const ResNetConfig& config);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// images [B, 3, H, W], normalised, H and W 32 or more (small: 8 or more), to
  /// logits [B, classes]. Nothing is random: the seed is not looked at. Throws
  /// c10::Error for other shapes, and in training where the last stage has one
  /// place of one image: there is nothing to normalise with.
  torch::Tensor forward(const torch::Tensor& images,
                        uint64_t seed = 0) override;
  /// For inference only from then on, faster: norms become part of the
  /// convolutions. Afterwards forward throws c10::Error where gradients are
  /// recorded.
  void fold() override;
  int64_t classes() const override { return config.classes; }

  ResNetConfig config;
  ConvNorm stem;                  ///< modules conv1 and bn1
  std::vector<Stage> stages;      ///< modules layer1 to layer4
  torch::nn::Linear fc{nullptr};  ///< [classes, 32 width]
};
TORCH_MODULE(ResNet);

}  // namespace aft::models
