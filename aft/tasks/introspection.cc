#include "aft/tasks/introspection.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "aft/nn/aft.h"
#include "aft/nn/attention.h"

namespace aft::tasks {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// exp(w) of rows [t0, t1) and all T keys; NaN at masked positions. window < 0
/// means no window.
template <class Layer>
torch::Tensor rows_of(const Layer& m, int64_t t0, int64_t t1, int64_t window,
                      bool window_only) {
  const int64_t T = m.options.max_len();
  torch::Tensor w;
  if (m.w.defined()) {
    w = m.w.narrow(0, t0, t1 - t0).exp();
  } else if (m.u.defined()) {
    w = at::matmul(m.u.narrow(0, t0, t1 - t0), m.v.t()).exp_();
  } else {
    w = at::ones({t1 - t0, T});  // the window is 0
  }
  const torch::Tensor ahead =
      at::arange(T).unsqueeze(0) - at::arange(t0, t1).unsqueeze(1);
  if (window >= 0)
    w = w.masked_fill(ahead.abs().ge(window), window_only ? 0 : 1);
  if (m.options.causal()) w = w.masked_fill(ahead.gt(0), kNothing);
  return w;
}

template <class Layer>
Biases pair_biases(const Layer& m, int64_t most, int64_t window,
                   bool window_only) {
  const int64_t T = m.options.max_len(), block = (T + most - 1) / most,
                n = (T + block - 1) / block;
  Biases out{at::empty({1, n, n}), false, block};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t0 = i * block, t1 = std::min(T, t0 + block);
    const torch::Tensor w = rows_of(m, t0, t1, window, window_only);
    out.values[0][i] = at::constant_pad_nd(w, {0, n * block - T}, kNothing)
                           .view({t1 - t0, n, block})
                           .nanmean({0, 2});
  }
  return out;
}

/// Reshapes x [B, positions, channels] to [B, channels, rows, columns], without
/// the class token.
torch::Tensor on_grid(const torch::Tensor& x, int64_t token, int64_t rows,
                      int64_t columns) {
  return x.narrow(1, token, rows * columns)
      .transpose(1, 2)
      .reshape({x.size(0), x.size(2), rows, columns});
}

/// Calls look(layer, block, input of its mixer) for each block of a model.
template <class F>
void walk(models::ClassifierImpl& model, const torch::Tensor& images,
          const F& look) {
  at::NoGradGuard no_grad;
  torch::Tensor x = model.embed(images);
  const std::vector<int64_t> grid{images.size(2) / model.config.patch,
                                  images.size(3) / model.config.patch};
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    nn::Block& block = model.blocks[i];
    look(i, *block->mixer, block->norm1(x));
    x = block->forward(x, 0, grid);
  }
}

}  // namespace

Biases position_biases(const nn::Mixer& mixer, int64_t most) {
  at::NoGradGuard no_grad;
  if (const auto* full = dynamic_cast<const nn::AFTFullImpl*>(&mixer))
    return pair_biases(*full, most, -1, false);
  if (const auto* local = dynamic_cast<const nn::AFTLocalImpl*>(&mixer))
    return pair_biases(*local, most, local->options.window(),
                       local->options.window_only());
  if (const auto* conv = dynamic_cast<const nn::AFTConvImpl*>(&mixer))
    return {conv->bias().expm1(), true, 1};
  return {};
}

std::vector<torch::Tensor> keys_of(models::ClassifierImpl& model,
                                   const torch::Tensor& images) {
  const int64_t patch = model.config.patch;
  std::vector<torch::Tensor> out;
  walk(model, images, [&](size_t, nn::Mixer& mixer, const torch::Tensor& x) {
    auto* aft = dynamic_cast<nn::AFTLayer*>(&mixer);
    TORCH_CHECK(aft, "showing keys needs a model with an AFT mixer, got ",
                model.config.mixer.name);
    out.push_back(on_grid(aft->key(x), model.token.defined() ? 1 : 0,
                          images.size(2) / patch, images.size(3) / patch));
  });
  return out;
}

RelativeAttention::RelativeAttention(models::ClassifierImpl& model)
    : model_(model) {
  TORCH_CHECK(model.config.mixer.traits().attention,
              "relative attention needs a model with the mixer attention, got ",
              model.config.mixer.name);
}

void RelativeAttention::add(const torch::Tensor& images) {
  const int64_t rows = images.size(2) / model_.config.patch,
                columns = images.size(3) / model_.config.patch,
                N = rows * columns, across = 2 * columns - 1;
  if (images_ == 0) {
    rows_ = rows, columns_ = columns;
    const torch::Tensor at = at::arange(N), y = at.div(columns, "floor"),
                        x = at.remainder(columns);
    // Key position minus query position, shifted to start at 0.
    const auto offset = [](const torch::Tensor& of, int64_t most) {
      return of.unsqueeze(0) - of.unsqueeze(1) + most;
    };
    index_ = (offset(y, rows - 1) * across + offset(x, columns - 1)).flatten();
    sums_ = at::zeros(
        {model_.config.layers, model_.config.mixer.get<int64_t>("heads"),
         (2 * rows - 1) * across},
        at::kDouble);
  }
  TORCH_CHECK(rows == rows_ && columns == columns_,
              "relative attention needs images of one size: expected ", rows_,
              "x", columns_, " patches, got ", rows, "x", columns);
  const int64_t token = model_.token.defined() ? 1 : 0;
  walk(model_, images,
       [&](size_t layer, nn::Mixer& mixer, const torch::Tensor& x) {
         const torch::Tensor seen = dynamic_cast<nn::AttentionImpl&>(mixer)
                                        .weights(x)
                                        .narrow(2, token, N)
                                        .narrow(3, token, N)
                                        .sum(0, /*keepdim=*/false, at::kDouble);
         sums_[static_cast<int64_t>(layer)].index_add_(1, index_,
                                                       seen.flatten(1));
       });
  images_ += images.size(0);
}

torch::Tensor RelativeAttention::mean(Divisor divisor) const {
  TORCH_CHECK(images_ > 0, "relative attention needs at least one image");
  const torch::Tensor queries =
      divisor == Divisor::kPairs
          ? at::bincount(index_).to(at::kDouble)
          : at::full({}, static_cast<double>(rows_ * columns_), at::kDouble);
  return (sums_ / (queries * static_cast<double>(images_)))
      .view({sums_.size(0), sums_.size(1), 2 * rows_ - 1, 2 * columns_ - 1});
}

}  // namespace aft::tasks
