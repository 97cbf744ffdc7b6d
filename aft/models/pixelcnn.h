// The gated PixelCNN (van den Oord et al. 2016). It has two stacks: v sees the
// rows above, h also the pixels to the left. Each layer computes
//   a = vertical(v)        v = gate(a)          gate([x, y]) = tanh(x) sigm(y)
//   b = horizontal(h) + link(a)                 h = h + out(gate(b))
// Then relu, linear, relu, linear give 256 logits each for red, green and blue.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/models/pixel_model.h"

namespace aft::models {

struct PixelCNNConfig {
  std::string network = "pixelcnn";  ///< its name in configurations
  int64_t layers = 15;               ///< including the first
  int64_t width = 144;  ///< channels of each stack, a multiple of 3
  int64_t first = 7;    ///< side of the first layer's kernel; odd, at least 3
  int64_t kernel = 3;   ///< side of the other layers' kernels; odd
  double dropout = 0;   ///< of the branch added to h

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("network", s.network), f("layers", s.layers), f("width", s.width),
        f("first", s.first);
    f("kernel", s.kernel), f("dropout", s.dropout);
  }
  /// The number of rows above, and of columns to each side, that the network
  /// sees.
  int64_t reach() const { return first / 2 + (layers - 1) * (kernel / 2); }
};

/// Channels, and likewise each half of a gate, are divided into red, green and
/// blue parts. At its own pixel, a part sees itself and the parts before it
/// (mask B); in the first layer, it does not see itself (mask A). The masked
/// weights are kept at zero.
class PixelCNNLayerImpl : public torch::nn::Cloneable<PixelCNNLayerImpl> {
 public:
  /// in: number of input channels. first: use mask A, let v see only the rows
  /// above its own, and omit the residual connection.
  PixelCNNLayerImpl(int64_t in, int64_t width, int64_t kernel, bool first);
  void reset() override;
  /// Replaces v and h [B, in, H, W] by [B, width, H, W]. v becomes undefined
  /// unless need_v. h may have fewer rows than v: the last ones. If dropout >
  /// 0, seed determines what is dropped.
  void forward(torch::Tensor& v, torch::Tensor& h, bool need_v, double dropout,
               uint64_t seed);

  torch::nn::Conv2d vertical{nullptr};    ///< [2 width, in, rows, kernel]
  torch::nn::Conv2d horizontal{nullptr};  ///< [2 width, in, 1, kernel / 2 + 1]
  torch::nn::Conv2d link{nullptr};        ///< [2 width, 2 width, 1, 1], no bias
  torch::nn::Conv2d out{nullptr};         ///< [width, width, 1, 1]

 private:
  int64_t in_, width_, kernel_;
  bool first_;
};
TORCH_MODULE(PixelCNNLayer);

/// Time O(B H W layers width^2 kernel^2), with no loop over pixels.
/// distribution() computes only the part of the image that its pixel can see.
class PixelCNNImpl : public torch::nn::Cloneable<PixelCNNImpl>,
                     public PixelModel {
 public:
  /// Uses torch's default initial weights for convolutions. Throws c10::Error
  /// if the configuration is invalid.
  explicit PixelCNNImpl(const PixelCNNConfig& config);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// H and W may be any positive sizes. On the CPU, the log-probability of a
  /// sub-pixel is bit-exactly independent of what follows it.
  torch::Tensor log_prob(const torch::Tensor& values,
                         uint64_t seed = 0) override;
  /// Applies no dropout, even in training. The values of this sub-pixel and
  /// those after it may be arbitrary.
  torch::Tensor distribution(const torch::Tensor& values, int64_t row,
                             int64_t column, int64_t channel) override;

  PixelCNNConfig config;
  std::vector<PixelCNNLayer> layers;
  torch::nn::Linear hidden{nullptr};  ///< [width, width], mask B
  torch::nn::Linear head{nullptr};    ///< [3 256, width], mask B

 private:
  void check(const torch::Tensor& values) const;
  /// Scales values [B, H, W, 3] to [-1, 1], as [B, 3, H, W].
  torch::Tensor scaled(const torch::Tensor& values) const;
  /// h [..., width] to the logits [..., 3, 256].
  torch::Tensor logits(const torch::Tensor& h) const;
};
TORCH_MODULE(PixelCNN);

}  // namespace aft::models
