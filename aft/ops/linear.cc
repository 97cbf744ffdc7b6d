#include "aft/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "aft/ops/common.h"

namespace aft::ops {

PackedWeights::PackedWeights(const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK(weight.defined() && weight.dim() == 2,
              "aft::PackedWeights: weight must be [outputs, inputs], got ",
              weight.defined() ? shape_of(weight) : "nothing");
  TORCH_CHECK(
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0) &&
                          bias.scalar_type() == weight.scalar_type() &&
                          bias.device() == weight.device()),
      "aft::PackedWeights: bias must be ", weight.scalar_type(), " [",
      weight.size(0), "] on ", weight.device(), " like weight, got ",
      bias.scalar_type(), " ", shape_of(bias), " on ", bias.device());
  const bool known =
      weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kDouble;
  if (!weight.device().is_cpu() || !known) return;
  at::NoGradGuard no_grad;
  outputs_ = weight.size(0), inputs_ = weight.size(1);
  const at::Tensor w = weight.detach().contiguous();
  packed_ = at::empty({kernels::packed_size(outputs_, inputs_)}, w.options());
  if (bias.defined()) bias_ = bias.detach().clone().contiguous();
  AT_DISPATCH_FLOATING_TYPES(w.scalar_type(), "aft::PackedWeights", [&] {
    kernels::linear_kernels<scalar_t>().pack(outputs_, inputs_,
                                             w.data_ptr<scalar_t>(),
                                             packed_.data_ptr<scalar_t>());
  });
}

void PackedWeights::run(const at::Tensor& x,
                        const std::vector<const PackedWeights*>& layers,
                        kernels::Then then,
                        const std::vector<at::Tensor>& outputs) {
  const at::Tensor from = x.contiguous();
  const int64_t inputs = layers[0]->inputs_,
                rows = inputs > 0 ? from.numel() / inputs : 0;
  constexpr int64_t kGrain = 48;  // minimum number of rows per thread
  // Rows that stay in the cache while the weights of all layers are read.
  const int64_t block = layers.size() == 1 ? rows : 2 * kGrain;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::PackedWeights", [&] {
    const auto& kernel = kernels::linear_kernels<scalar_t>();
    const scalar_t* in = from.data_ptr<scalar_t>();
    at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r += block) {
        for (size_t i = 0; i < layers.size(); ++i) {
          const PackedWeights& layer = *layers[i];
          kernel.run(std::min(block, end - r), layer.outputs_, inputs,
                     in + r * inputs, inputs,
                     layer.packed_.data_ptr<scalar_t>(),
                     data<scalar_t>(layer.bias_), then,
                     outputs[i].data_ptr<scalar_t>() + r * layer.outputs_,
                     layer.outputs_);
        }
      }
    });
  });
}

std::vector<int64_t> PackedWeights::shape(const at::Tensor& x) const {
  TORCH_CHECK(defined(), "aft::PackedWeights: the weights are not packed");
  TORCH_CHECK(x.defined() && x.device().is_cpu() &&
                  x.scalar_type() == packed_.scalar_type() && x.dim() >= 1 &&
                  x.size(-1) == inputs_,
              "aft::PackedWeights: x must be ", packed_.scalar_type(),
              " [..., ", inputs_, "] on cpu, got ",
              x.defined() ? c10::str(x.scalar_type(), " ", shape_of(x), " on ",
                                     x.device())
                          : "nothing");
  std::vector<int64_t> all = x.sizes().vec();
  all.back() = outputs_;
  return all;
}

at::Tensor PackedWeights::operator()(const at::Tensor& x,
                                     kernels::Then then) const {
  const std::vector<int64_t> all = shape(x);
  const at::Tensor y = at::empty(all, packed_.options());
  run(x, {this}, then, {y});
  return y;
}

std::vector<at::Tensor> PackedWeights::together(
    const at::Tensor& x, const std::vector<const PackedWeights*>& layers) {
  std::vector<at::Tensor> y;
  for (const PackedWeights* layer : layers) {
    const std::vector<int64_t> all = layer->shape(x);
    y.push_back(at::empty(all, layer->packed_.options()));
  }
  if (!y.empty()) run(x, layers, kernels::Then::kStore, y);
  return y;
}

void PackedWeights::add(const at::Tensor& x, at::Tensor& into) const {
  const std::vector<int64_t> all = shape(x);
  TORCH_CHECK(into.defined() && into.sizes() == all && into.is_contiguous() &&
                  into.scalar_type() == packed_.scalar_type() &&
                  into.device().is_cpu(),
              "aft::PackedWeights: into must be contiguous ",
              packed_.scalar_type(), " ", at::IntArrayRef(all), " on cpu, got ",
              into.defined() ? c10::str(into.scalar_type(), " ", shape_of(into),
                                        " on ", into.device())
                             : "nothing");
  run(x, {this}, kernels::Then::kAdd, {into});
}

}  // namespace aft::ops
