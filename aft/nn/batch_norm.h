// Batch normalisation: for each channel, over all else,
//   y = weight (x - mean) / sqrt(var + eps) + bias,
// mean and var of the batch in training, and their running means otherwise.
//
// As torch's, but for one thing: running statistics move only where gradients
// are recorded, so that a block that backward computes again counts once.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <utility>

namespace aft::nn {

struct BatchNormOptions {
  explicit BatchNormOptions(int64_t channels) : channels_(channels) {}
  TORCH_ARG(int64_t, channels);
  /// Channels are the last dimension of x; otherwise dimension 1.
  TORCH_ARG(bool, last) = true;
  TORCH_ARG(double, eps) = 1e-5;
  TORCH_ARG(double, momentum) = 0.1;  ///< how much of the running means is new
};

/// Parameters: weight and bias [channels], first 1 and 0. Buffers: running_mean
/// and running_var (unbiased), first 0 and 1.
class BatchNormImpl : public torch::nn::Cloneable<BatchNormImpl> {
 public:
  explicit BatchNormImpl(const BatchNormOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// x [..., channels], or [B, channels, ...], to the same. Throws c10::Error
  /// in training where a channel has fewer than two numbers.
  torch::Tensor forward(const torch::Tensor& x);
  /// {a, b} of what evaluation does, y = a x + b: a linear layer or convolution
  /// before it may take it over. Without gradients.
  std::pair<torch::Tensor, torch::Tensor> scale_and_shift() const;

  BatchNormOptions options;
  torch::Tensor weight, bias, running_mean, running_var;
};
TORCH_MODULE(BatchNorm);

}  // namespace aft::nn
