// The gated PixelCNN (van den Oord et al. 2016). Two stacks: v sees the rows
// above, h these and the pixels to the left. A layer:
//   a = vertical(v)        v = gate(a)          gate([x, y]) = tanh(x) sigm(y)
//   b = horizontal(h) + link(a)                 h = h + out(gate(b))
// Then relu, linear, relu, linear to 256 logits for each of red, green, blue.
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
  int64_t layers = 15;               ///< the first among them
  int64_t width = 144;  ///< channels of each stack, a multiple of 3
  int64_t first = 7;    ///< side of the first layer's kernel, odd, 3 or more
  int64_t kernel = 3;   ///< side of the others' kernel, odd
  double dropout = 0;   ///< of what joins h

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("network", s.network), f("layers", s.layers), f("width", s.width),
        f("first", s.first);
    f("kernel", s.kernel), f("dropout", s.dropout);
  }
  /// How many rows above, and columns to each side, the network sees.
  int64_t reach() const { return first / 2 + (layers - 1) * (kernel / 2); }
};

/// Channels are in three parts, red, green, blue, and at its own pixel a part
/// sees only those before it and itself (the mask called B); in the first layer
/// not itself (mask A). In the halves of a gate likewise. Weights that would
/// see more are kept as zeros.
class PixelCNNLayerImpl : public torch::nn::Cloneable<PixelCNNLayerImpl> {
 public:
  /// in: channels of what it reads. first: mask A, only the rows above its own
  /// for v, and no residual.
  PixelCNNLayerImpl(int64_t in, int64_t width, int64_t kernel, bool first);
  void reset() override;
  /// Replaces v and h [B, in, H, W] by [B, width, H, W]; v becomes undefined
  /// where it is not needed after. h may have fewer rows than v: the last ones.
  /// dropout > 0: seed chooses what is dropped.
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

/// Time O(B H W layers width^2 kernel^2), nothing of it one pixel after the
/// other. distribution() computes only what its place can see.
class PixelCNNImpl : public torch::nn::Cloneable<PixelCNNImpl>,
                     public PixelModel {
 public:
  /// First weights are torch's own for convolutions. Throws c10::Error for a
  /// configuration that makes no sense.
  explicit PixelCNNImpl(const PixelCNNConfig& config);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// Any H and W of 1 or more. What comes after a sub-pixel does not change a
  /// bit of its log-probability (on the CPU).
  torch::Tensor log_prob(const torch::Tensor& values,
                         uint64_t seed = 0) override;
  /// Nothing is dropped, in training neither. Values at the place and after it
  /// may be any numbers.
  torch::Tensor distribution(const torch::Tensor& values, int64_t row,
                             int64_t column, int64_t channel) override;

  PixelCNNConfig config;
  std::vector<PixelCNNLayer> layers;
  torch::nn::Linear hidden{nullptr};  ///< [width, width], mask B
  torch::nn::Linear head{nullptr};    ///< [3 256, width], mask B

 private:
  void check(const torch::Tensor& values) const;
  /// values [B, H, W, 3] to numbers in [-1, 1], [B, 3, H, W].
  torch::Tensor scaled(const torch::Tensor& values) const;
  /// h [..., width] to the logits [..., 3, 256].
  torch::Tensor logits(const torch::Tensor& h) const;
};
TORCH_MODULE(PixelCNN);

}  // namespace aft::models
