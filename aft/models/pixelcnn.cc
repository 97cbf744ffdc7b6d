#include "aft/models/pixelcnn.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "aft/base/random.h"
#include "aft/ops/common.h"
#include "aft/ops/pointwise.h"

namespace aft::models {
namespace {

constexpr int64_t kValues = 256;

/// Masks a weight [out, in] whose channels are divided into three parts: zero
/// where a part would see a later one, or itself unless `own`. The rows consist
/// of `halves` times three parts. The cost is small next to the convolution.
torch::Tensor ordered(const torch::Tensor& w, int64_t halves = 1,
                      bool own = true) {
  const int64_t out = w.size(0), in = w.size(1);
  const torch::Tensor mask =
      at::ones({kColours, kColours}, w.options().requires_grad(false))
          .tril(own ? 0 : -1);
  return (w.reshape({halves, kColours, out / halves / kColours, kColours,
                     in / kColours}) *
          mask.view({1, kColours, 1, kColours, 1}))
      .view({out, in});
}

torch::Tensor gate(const torch::Tensor& x) {
  const auto halves = x.chunk(2, 1);
  return at::tanh(halves[0]) * at::sigmoid(halves[1]);
}

torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t rows,
                              int64_t columns, bool bias = true) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, {rows, columns}).bias(bias));
}

}  // namespace

PixelCNNLayerImpl::PixelCNNLayerImpl(int64_t in, int64_t width, int64_t kernel,
                                     bool first)
    : in_(in), width_(width), kernel_(kernel), first_(first) {
  reset();
}

void PixelCNNLayerImpl::reset() {
  const int64_t side = kernel_ / 2;
  // Reads the rows above and its own row, where v holds only what is above.
  vertical = register_module(
      "vertical",
      convolution(in_, 2 * width_, first_ ? side : side + 1, kernel_));
  horizontal =
      register_module("horizontal", convolution(in_, 2 * width_, 1, side + 1));
  link = register_module(
      "link", convolution(2 * width_, 2 * width_, 1, 1, /*bias=*/false));
  out = register_module("out", convolution(width_, width_, 1, 1));
  at::NoGradGuard no_grad;
  torch::Tensor here = horizontal->weight.select(3, side).squeeze(2);
  here.copy_(ordered(here, 2, !first_));
  torch::Tensor own = out->weight.view({width_, width_});
  own.copy_(ordered(own));
}

void PixelCNNLayerImpl::forward(torch::Tensor& v, torch::Tensor& h, bool need_v,
                                double dropout, uint64_t seed) {
  const int64_t side = kernel_ / 2;
  // Padding on one side only masks whole pixels.
  const torch::Tensor above =
      at::constant_pad_nd(v, {side, side, side, first_ ? -1 : 0});
  const torch::Tensor a = at::conv2d(above, vertical->weight, vertical->bias);
  const torch::Tensor here = horizontal->weight.select(3, side).squeeze(2);
  const torch::Tensor weight =
      at::cat({horizontal->weight.narrow(3, 0, side),
               ordered(here, 2, !first_).view({2 * width_, in_, 1, 1})},
              3);
  const torch::Tensor beside = a.narrow(2, a.size(2) - h.size(2), h.size(2));
  const torch::Tensor b =
      at::conv2d(at::constant_pad_nd(h, {side, 0}), weight, horizontal->bias)
          .add_(at::conv2d(beside, link->weight));
  const torch::Tensor joins = at::conv2d(
      gate(b),
      ordered(out->weight.view({width_, width_})).view({width_, width_, 1, 1}),
      out->bias);
  // Channels last, the layout in memory: dropout_add needs contiguous tensors.
  const torch::Tensor residual =
      first_ ? torch::Tensor() : h.permute({0, 2, 3, 1});
  h = ops::dropout_add(residual, joins.permute({0, 2, 3, 1}), dropout, seed)
          .permute({0, 3, 1, 2});
  v = need_v ? gate(a) : torch::Tensor();
}

PixelCNNImpl::PixelCNNImpl(const PixelCNNConfig& c) : config(c) { reset(); }

void PixelCNNImpl::reset() {
  const auto& c = config;
  TORCH_CHECK(c.layers >= 1, "PixelCNN: model.layers must be 1 or more, got ",
              c.layers);
  TORCH_CHECK(c.width >= kColours && c.width % kColours == 0,
              "PixelCNN: model.width must be a multiple of 3, a part for each "
              "of red, green and blue, got ",
              c.width);
  TORCH_CHECK(c.first >= 3 && c.first % 2 == 1,
              "PixelCNN: model.first must be odd and 3 or more, got ", c.first);
  TORCH_CHECK(c.kernel >= 1 && c.kernel % 2 == 1,
              "PixelCNN: model.kernel must be odd, got ", c.kernel);
  TORCH_CHECK(c.dropout >= 0 && c.dropout < 1,
              "PixelCNN: model.dropout must be in [0, 1), got ", c.dropout);
  layers.clear();
  for (int64_t i = 0; i < c.layers; ++i) {
    layers.push_back(register_module(
        "layers_" + std::to_string(i),
        i == 0 ? PixelCNNLayer(kColours, c.width, c.first, true)
               : PixelCNNLayer(c.width, c.width, c.kernel, false)));
  }
  hidden = register_module("hidden", torch::nn::Linear(c.width, c.width));
  head =
      register_module("head", torch::nn::Linear(c.width, kColours * kValues));
  at::NoGradGuard no_grad;
  hidden->weight.copy_(ordered(hidden->weight));
  head->weight.copy_(ordered(head->weight));
}

void PixelCNNImpl::pretty_print(std::ostream& stream) const {
  stream << "PixelCNN(layers=" << config.layers << ", width=" << config.width
         << ", first=" << config.first << ", kernel=" << config.kernel
         << ", dropout=" << config.dropout << ")";
}

void PixelCNNImpl::check(const torch::Tensor& values) const {
  TORCH_CHECK(values.dim() == 4 && values.size(3) == kColours &&
                  values.numel() > 0 && values.scalar_type() == at::kLong,
              "PixelCNN: values must be int64 [B, H, W, 3], got ",
              values.scalar_type(), " ", ops::shape_of(values));
}

torch::Tensor PixelCNNImpl::scaled(const torch::Tensor& values) const {
  // No copy: colours remain the last dimension in memory, the fastest layout
  // for convolutions.
  return (values.to(head->weight.scalar_type()) / 127.5 - 1)
      .permute({0, 3, 1, 2});
}

torch::Tensor PixelCNNImpl::logits(const torch::Tensor& h) const {
  const torch::Tensor x =
      at::linear(h.relu(), ordered(hidden->weight), hidden->bias).relu_();
  return at::linear(x, ordered(head->weight), head->bias)
      .unflatten(-1, {kColours, kValues});
}

torch::Tensor PixelCNNImpl::log_prob(const torch::Tensor& values,
                                     uint64_t seed) {
  check(values);
  TORCH_CHECK(values.ge(0).logical_and_(values.lt(kValues)).all().item<bool>(),
              "PixelCNN: values must be in [0, 256), got values from ",
              values.min().item<int64_t>(), " to ",
              values.max().item<int64_t>());
  const double dropout = is_training() ? config.dropout : 0;
  torch::Tensor h = scaled(values), v = h;
  for (size_t i = 0; i < layers.size(); ++i)
    layers[i]->forward(v, h, i + 1 < layers.size(), dropout,
                       base::mix(seed, i));
  return at::log_softmax(logits(h.permute({0, 2, 3, 1})), -1)
      .gather(-1, values.unsqueeze(-1))
      .squeeze(-1);
}

torch::Tensor PixelCNNImpl::distribution(const torch::Tensor& values,
                                         int64_t row, int64_t column,
                                         int64_t channel) {
  at::NoGradGuard no_grad;
  check(values);
  const int64_t H = values.size(1), W = values.size(2);
  TORCH_CHECK(row >= 0 && row < H && column >= 0 && column < W &&
                  channel >= 0 && channel < kColours,
              "PixelCNN: row, column and channel must be inside ",
              ops::shape_of(values), ", got ", row, ", ", column, " and ",
              channel);
  // Computes only what the pixel can see: its own row of h, and a triangle of v
  // above it that shrinks with every layer. Features near a cut are wrong,
  // because they miss what was cut off, but they are too far away to affect the
  // result.
  int64_t reach = config.reach();
  const int64_t top = std::max<int64_t>(row - reach, 0),
                left = std::max<int64_t>(column - reach, 0),
                right = std::min(column + reach + 1, W);
  int64_t place = column - left;
  torch::Tensor seen = values.narrow(1, top, row + 1 - top)
                           .narrow(2, left, right - left)
                           .clone();
  torch::Tensor last = seen.select(1, row - top);
  last.narrow(1, place + 1, right - column - 1).zero_();
  last.select(1, place).narrow(1, channel, kColours - channel).zero_();
  torch::Tensor v = scaled(seen), h = v.narrow(2, row - top, 1);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i]->forward(v, h, i + 1 < layers.size(), /*dropout=*/0, /*seed=*/0);
    reach -= (i == 0 ? config.first : config.kernel) / 2;
    const int64_t from = std::max<int64_t>(place - reach, 0),
                  columns = std::min(place + reach + 1, h.size(3)) - from;
    h = h.narrow(3, from, columns);
    place -= from;
    if (!v.defined()) continue;
    const int64_t rows = std::min(reach + 1, v.size(2));
    v = v.narrow(2, v.size(2) - rows, rows).narrow(3, from, columns);
  }
  return at::log_softmax(logits(h.flatten(1)).select(1, channel), -1);
}

}  // namespace aft::models
