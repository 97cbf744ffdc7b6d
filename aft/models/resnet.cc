#include "aft/models/resnet.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <array>
#include <map>
#include <string>

#include "aft/ops/common.h"

namespace aft::models {
namespace {

/// Blocks per stage. The number of layers includes the stem and the head.
const std::map<int64_t, std::array<int64_t, 4>>& sizes() {
  static const std::map<int64_t, std::array<int64_t, 4>> all = {
      {14, {1, 1, 1, 1}},
      {26, {2, 2, 2, 2}},
      {50, {3, 4, 6, 3}},
      {101, {3, 4, 23, 3}},
      {152, {3, 8, 36, 3}}};
  return all;
}

}  // namespace

void ConvNorm::reset(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  stride_ = stride, padding_ = kernel / 2;
  weight_ = bias_ = torch::Tensor();
  from_ = {};
  conv = torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                               .stride(stride_)
                               .padding(padding_)
                               .bias(false));
  norm = nn::BatchNorm(nn::BatchNormOptions(out).last(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut,
                                   torch::kReLU);
}

torch::Tensor ConvNorm::forward(const torch::Tensor& x) {
  if (weight_.defined() && from_.valid(sources()))
    return at::conv2d(x, weight_, bias_, stride_, padding_);
  return norm->forward(at::conv2d(x, conv->weight, {}, stride_, padding_));
}

std::vector<torch::Tensor> ConvNorm::sources() const {
  return {conv->weight, norm->weight, norm->bias, norm->running_mean,
          norm->running_var};
}

void ConvNorm::pack_for_inference() {
  at::NoGradGuard no_grad;
  const auto [scale, shift] = norm->scale_and_shift();
  weight_ = conv->weight * scale.view({-1, 1, 1, 1});
  bias_ = shift;
  from_ = nn::Snapshot(sources());
}

DownsampleImpl::DownsampleImpl(int64_t in, int64_t out, int64_t stride)
    : in_(in), out_(out), stride_(stride) {
  reset();
}

void DownsampleImpl::reset() {
  conv.reset(in_, out_, 1, stride_);
  register_module("0", conv.conv);
  register_module("1", conv.norm);
}

BottleneckImpl::BottleneckImpl(int64_t in, int64_t inner, int64_t stride)
    : in_(in), inner_(inner), stride_(stride) {
  reset();
}

void BottleneckImpl::reset() {
  const int64_t out = kExpansion * inner_;
  first.reset(in_, inner_, 1);
  second.reset(inner_, inner_, 3, stride_);
  third.reset(inner_, out, 1);
  int number = 0;
  for (const ConvNorm* c : {&first, &second, &third}) {
    ++number;
    register_module("conv" + std::to_string(number), c->conv);
    register_module("bn" + std::to_string(number), c->norm);
  }
  downsample = nullptr;
  if (in_ != out || stride_ != 1)
    downsample = register_module("downsample", Downsample(in_, out, stride_));
}

torch::Tensor BottleneckImpl::forward(const torch::Tensor& x) {
  // relu_ can work in place: the gradient of a norm does not need its output.
  torch::Tensor y = first.forward(x).relu_();
  y = second.forward(y).relu_();
  y = third.forward(y);
  return y.add_(downsample ? downsample->conv.forward(x) : x).relu_();
}

void BottleneckImpl::pack_for_inference() {
  for (ConvNorm* c : {&first, &second, &third}) c->pack_for_inference();
  if (downsample) downsample->conv.pack_for_inference();
}

StageImpl::StageImpl(int64_t in, int64_t inner, int64_t stride, int64_t blocks)
    : in_(in), inner_(inner), stride_(stride), count_(blocks) {
  reset();
}

void StageImpl::reset() {
  blocks.clear();
  for (int64_t i = 0; i < count_; ++i) {
    blocks.push_back(register_module(
        std::to_string(i),
        i == 0 ? Bottleneck(in_, inner_, stride_)
               : Bottleneck(BottleneckImpl::kExpansion * inner_, inner_, 1)));
  }
}

ResNetImpl::ResNetImpl(const ResNetConfig& c) : config(c) { reset(); }

void ResNetImpl::reset() {
  const auto& c = config;
  const auto size = sizes().find(c.layers);
  TORCH_CHECK(size != sizes().end(),
              "ResNet: model.layers must be 14, 26, 50, 101 or 152, got ",
              c.layers);
  TORCH_CHECK(c.width >= 1, "ResNet: model.width must be 1 or more, got ",
              c.width);
  TORCH_CHECK(c.classes >= 1, "ResNet: model.classes must be 1 or more, got ",
              c.classes);
  stem.reset(3, c.width, c.small ? 3 : 7, c.small ? 1 : 2);
  register_module("conv1", stem.conv);
  register_module("bn1", stem.norm);
  stages.clear();
  int64_t in = c.width;
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t inner = c.width << i, blocks = size->second.at(i);
    stages.push_back(register_module("layer" + std::to_string(i + 1),
                                     Stage(in, inner, i == 0 ? 1 : 2, blocks)));
    in = BottleneckImpl::kExpansion * inner;
  }
  fc = register_module("fc", torch::nn::Linear(in, c.classes));
}

void ResNetImpl::pretty_print(std::ostream& stream) const {
  stream << "ResNet(layers=" << config.layers << ", width=" << config.width
         << ", classes=" << config.classes
         << ", small=" << (config.small ? "true" : "false") << ")";
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images,
                                  uint64_t /*seed*/) {
  const int64_t least = config.small ? 8 : 32;
  TORCH_CHECK(images.dim() == 4 && images.size(1) == 3 &&
                  images.size(2) >= least && images.size(3) >= least,
              "ResNet: images must be [B, 3, H, W] with H and W ", least,
              " or more, got ", ops::shape_of(images));
  // Channels last slowed training by a fifth to a third, and did not speed up
  // evaluation.
  torch::Tensor x = stem.forward(images.contiguous()).relu_();
  if (!config.small) x = at::max_pool2d(x, 3, 2, 1);
  for (Stage& stage : stages)
    for (Bottleneck& b : stage->blocks) x = b->forward(x);
  return fc(x.mean({2, 3}));
}

void ResNetImpl::pack_for_inference() {
  stem.pack_for_inference();
  for (Stage& stage : stages)
    for (Bottleneck& b : stage->blocks) b->pack_for_inference();
}

}  // namespace aft::models
