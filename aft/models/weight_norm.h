// Convolutions with weight normalisation, shifted so that they see nothing
// below and, of their own row, nothing to the right; and the gated residual
// block that PixelCNN++ and PixelSNAIL are made of:
//   y = W * x + b, W = g v / |v| for each output channel,
//   block(x, a) = x + y1 sigmoid(y2), [y1; y2] = conv2(f(conv1(f(x)) + W
//   f(a))).
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace aft::models {

/// Zeros around a picture.
struct Padding {
  int64_t top = 0, left = 0, right = 0;
};

/// The nonlinearity, f(x) = elu(x), or with `both` signs its channels twice,
/// [elu(x); elu(-x)], surrounded by zeros: x [B, C, H, W] to
/// [B, C or 2 C, top + H, left + W + right]. Differentiable once.
torch::Tensor padded_elu(const torch::Tensor& x, bool both,
                         const Padding& padding = {});

struct WeightNormConvOptions {
  WeightNormConvOptions(int64_t in, int64_t out) : in_(in), out_(out) {}
  TORCH_ARG(int64_t, in);
  TORCH_ARG(int64_t, out);
  TORCH_ARG(int64_t, rows) = 1;     ///< of the kernel: its own and those above
  TORCH_ARG(int64_t, columns) = 1;  ///< of the kernel: its own and to the left
  /// Columns are half to the left and half to the right instead.
  TORCH_ARG(bool, centred) = false;
  /// 2: of every second row and column; `up`: twice as many instead, by a
  /// transposed convolution.
  TORCH_ARG(int64_t, stride) = 1;
  TORCH_ARG(bool, up) = false;
  /// First g: how large results are, relative to the input. Fixed, where the
  /// papers choose g and bias by the results of a first batch.
  TORCH_ARG(double, scale) = 1;
};

/// Parameters: v [out, in, rows, columns] ([in, out, ...] where `up`), first
/// N(0, 0.05^2), g and bias [out], first `scale` and 0.
class WeightNormConvImpl : public torch::nn::Cloneable<WeightNormConvImpl> {
 public:
  explicit WeightNormConvImpl(const WeightNormConvOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// x [B, in, H, W] to [B, out, H, W]; with a stride H and W, which must be
  /// multiples of it, become H / stride, or H * stride where `up`.
  torch::Tensor forward(const torch::Tensor& x);
  /// The same of an x that is surrounded by padding() already.
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
  TORCH_ARG(bool, both) = false;  ///< f is [elu(x); elu(-x)], otherwise elu
  // Of the convolutions, as WeightNormConvOptions.
  TORCH_ARG(int64_t, rows) = 1;
  TORCH_ARG(int64_t, columns) = 1;
  TORCH_ARG(bool, centred) = false;
};

class GatedResnetImpl : public torch::nn::Cloneable<GatedResnetImpl> {
 public:
  explicit GatedResnetImpl(const GatedResnetOptions& options);
  void reset() override;
  /// x [B, filters, H, W] to the same; a [B, side, H, W], undefined where the
  /// options have none.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& a,
                        double dropout, uint64_t seed);

  GatedResnetOptions options;
  WeightNormConv conv1{nullptr}, conv2{nullptr};
  WeightNormConv side{nullptr};  ///< null where there is no a
};
TORCH_MODULE(GatedResnet);

/// x [B, C, H, W] moved by a row or a column, zeros in place of the first.
torch::Tensor shifted_down(const torch::Tensor& x);
torch::Tensor shifted_right(const torch::Tensor& x);

}  // namespace aft::models
