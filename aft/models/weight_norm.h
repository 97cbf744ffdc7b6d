// Weight-normalised causal convolutions, whose outputs depend on no pixels
// below and, unless `centred`, on none to the right; and the gated residual
// block of PixelCNN++ and PixelSNAIL:
//   y = W * x + b, W = g v / |v| per output channel,
//   block(x, a) = x + y1 sigmoid(y2),
//   [y1; y2] = conv2(f(conv1(f(x)) + W f(a))).
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace aft::models {

/// Zero padding around an image.
struct Padding {
  int64_t top = 0, left = 0, right = 0;
};

/// The nonlinearity f, zero-padded: elu(x), or if `both`, [elu(x); elu(-x)]
/// with twice the channels. x [B, C, H, W] to [B, C or 2 C, top + H, left + W +
/// right]. Differentiable once.
torch::Tensor padded_elu(const torch::Tensor& x, bool both,
                         const Padding& padding = {});

struct WeightNormConvOptions {
  WeightNormConvOptions(int64_t in, int64_t out) : in_(in), out_(out) {}
  TORCH_ARG(int64_t, in);
  TORCH_ARG(int64_t, out);
  TORCH_ARG(int64_t, rows) = 1;     ///< of the kernel: current and above
  TORCH_ARG(int64_t, columns) = 1;  ///< of the kernel: current and to the left
  /// Centre the columns on the current one instead.
  TORCH_ARG(bool, centred) = false;
  /// 2: downsample rows and columns by two; with `up`, upsample by two with a
  /// transposed convolution.
  TORCH_ARG(int64_t, stride) = 1;
  TORCH_ARG(bool, up) = false;
  /// Initial g: the scale of the output relative to the input. It is fixed
  /// here; the papers initialise g and bias from the outputs of a first batch.
  TORCH_ARG(double, scale) = 1;
};

/// Parameters: v [out, in, rows, columns] ([in, out, ...] if `up`), initialised
/// from N(0, 0.05^2); g and bias [out], initially `scale` and 0.
class WeightNormConvImpl : public torch::nn::Cloneable<WeightNormConvImpl> {
 public:
  explicit WeightNormConvImpl(const WeightNormConvOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// x [B, in, H, W] to [B, out, H, W]. With a stride, H and W become H /
  /// stride and W / stride, and must be multiples of it; if `up`, H * stride
  /// and W * stride.
  torch::Tensor forward(const torch::Tensor& x);
  /// forward for an x that is already padded by padding().
  torch::Tensor valid(const torch::Tensor& x);
  Padding padding() const;

  WeightNormConvOptions options;
  torch::Tensor v, g, bias;
};
TORCH_MODULE(WeightNormConv);

struct GatedResnetOptions {
  explicit GatedResnetOptions(int64_t filters) : filters_(filters) {}
  TORCH_ARG(int64_t, filters);    ///< channels of x
  TORCH_ARG(int64_t, side) = 0;   ///< channels of a; 0: no a
  TORCH_ARG(bool, both) = false;  ///< f is [elu(x); elu(-x)] instead of elu
  // Options of the convolutions, as in WeightNormConvOptions.
  TORCH_ARG(int64_t, rows) = 1;
  TORCH_ARG(int64_t, columns) = 1;
  TORCH_ARG(bool, centred) = false;
};

class GatedResnetImpl : public torch::nn::Cloneable<GatedResnetImpl> {
 public:
  explicit GatedResnetImpl(const GatedResnetOptions& options);
  void reset() override;
  /// x [B, filters, H, W] to the same shape. a: [B, side, H, W], or undefined
  /// if side is 0.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& a,
                        double dropout, uint64_t seed);

  GatedResnetOptions options;
  WeightNormConv conv1{nullptr}, conv2{nullptr};
  WeightNormConv side{nullptr};  ///< null if there is no a
};
TORCH_MODULE(GatedResnet);

/// Shifts x [B, C, H, W] by one row or column; the first becomes zeros.
torch::Tensor shifted_down(const torch::Tensor& x);
torch::Tensor shifted_right(const torch::Tensor& x);

}  // namespace aft::models
