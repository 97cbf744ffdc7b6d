#include "aft/nn/batch_norm.h"

#include <ATen/ATen.h>

#include "aft/ops/common.h"

namespace aft::nn {

BatchNormImpl::BatchNormImpl(const BatchNormOptions& o) : options(o) {
  reset();
}

void BatchNormImpl::reset() {
  const int64_t C = options.channels();
  TORCH_CHECK(C >= 1, "BatchNorm: channels must be 1 or more, got ", C);
  TORCH_CHECK(options.eps() > 0, "BatchNorm: eps must be greater than 0, got ",
              options.eps());
  TORCH_CHECK(options.momentum() >= 0 && options.momentum() <= 1,
              "BatchNorm: momentum must be in [0, 1], got ",
              options.momentum());
  weight = register_parameter("weight", at::ones({C}));
  bias = register_parameter("bias", at::zeros({C}));
  running_mean = register_buffer("running_mean", at::zeros({C}));
  running_var = register_buffer("running_var", at::ones({C}));
}

void BatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "BatchNorm(channels=" << options.channels()
         << ", last=" << (options.last() ? "true" : "false")
         << ", eps=" << options.eps() << ", momentum=" << options.momentum()
         << ")";
}

torch::Tensor BatchNormImpl::forward(const torch::Tensor& x) {
  const int64_t C = options.channels();
  TORCH_CHECK(
      x.dim() >= 2 && x.size(options.last() ? -1 : 1) == C,
      "BatchNorm: x must be ",
      options.last() ? "[..., channels] = [..., " : "[B, channels, ...] = [B, ",
      C, options.last() ? "]" : ", ...]", ", got ", ops::shape_of(x));
  TORCH_CHECK(
      !is_training() || x.numel() > C,
      "BatchNorm: training needs two or more elements per channel, got ",
      ops::shape_of(x));
  const bool count = !is_training() || at::GradMode::is_enabled();
  const torch::Tensor y =
      at::batch_norm(options.last() ? x.reshape({-1, C}) : x, weight, bias,
                     count ? running_mean : torch::Tensor(),
                     count ? running_var : torch::Tensor(), is_training(),
                     options.momentum(), options.eps(), /*cudnn_enabled=*/true);
  return y.view(x.sizes());
}

std::pair<torch::Tensor, torch::Tensor> BatchNormImpl::scale_and_shift() const {
  at::NoGradGuard no_grad;
  const torch::Tensor a = weight / (running_var + options.eps()).sqrt();
  return {a, bias - running_mean * a};
}

}  // namespace aft::nn
