// Batch normalisation: per channel, over all other dimensions,
//   y = weight (x - mean) / sqrt(var + eps) + bias,
// with the mean and var of the batch in training, and their running means
// otherwise.
//
// Differs from torch's in one respect: running statistics are updated only
// while gradients are recorded, so that a block recomputed in backward counts
// once.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <utility>

namespace aft::nn {

struct BatchNormOptions {
  explicit BatchNormOptions(int64_t channels) : channels_(channels) {}
  TORCH_ARG(int64_t, channels);
  /// The channels are the last dimension of x; otherwise dimension 1.
  TORCH_ARG(bool, last) = true;
  TORCH_ARG(double, eps) = 1e-5;
  TORCH_ARG(double, momentum) = 0.1;  ///< weight of a new batch
};

/// Parameters: weight and bias [channels], initially 1 and 0. Buffers:
/// running_mean and running_var (unbiased), initially 0 and 1.
class BatchNormImpl : public torch::nn::Cloneable<BatchNormImpl> {
 public:
  explicit BatchNormImpl(const BatchNormOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// x [..., channels] or [B, channels, ...] to the same shape. Throws
  /// c10::Error in training if a channel has fewer than two elements.
  torch::Tensor forward(const torch::Tensor& x);
  /// Returns {a, b} of the evaluation-mode transform y = a x + b, which can be
  /// merged into a preceding linear layer or convolution. Without gradients.
  std::pair<torch::Tensor, torch::Tensor> scale_and_shift() const;

  BatchNormOptions options;
  torch::Tensor weight, bias, running_mean, running_var;
};
TORCH_MODULE(BatchNorm);

}  // namespace aft::nn
