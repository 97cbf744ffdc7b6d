#include "aft/models/pixelcnn_pp.h"

#include <ATen/ATen.h>

#include <string>

#include "aft/base/random.h"
#include "aft/models/checks.h"

namespace aft::models {
namespace {

constexpr int64_t kMostResolutions = 16;

}  // namespace

PixelCNNppImpl::PixelCNNppImpl(const PixelCNNppConfig& c)
    : LogisticMixtureModel("PixelCNNpp", c.dropout), config(c) {
  reset();
}

void PixelCNNppImpl::reset() {
  const auto& c = config;
  check_positive({{"filters", c.filters},
                  {"resnets", c.resnets},
                  {"mixtures", c.mixtures},
                  {"resolutions", c.resolutions}});
  TORCH_CHECK(c.resolutions <= kMostResolutions,
              "model.resolutions must be at most ", kMostResolutions, ", got ",
              c.resolutions);
  check_probabilities({{"dropout", c.dropout}});

  const WeightNormConvOptions image(4, c.filters);
  const auto conv = [&](const std::string& name, WeightNormConvOptions o) {
    return register_module(name, WeightNormConv(o));
  };
  auto first = image;
  above_ = conv("above", first.rows(2).columns(3).centred(true));
  first = image;
  left_above_ = conv("left_above", first.columns(3).centred(true));
  first = image;
  left_ = conv("left", first.rows(2));
  down_.clear(), up_.clear(), halve_.clear(), twice_.clear();
  for (int64_t r = 0; r < c.resolutions; ++r) {
    const std::string at = "_" + std::to_string(r);
    if (r > 0) halve_.push_back(convs("halve" + at, /*up=*/false));
    for (int64_t i = 0; i < c.resnets; ++i)
      down_.push_back(resnets("down" + at + "_" + std::to_string(i), true));
  }
  for (int64_t r = c.resolutions - 1; r >= 0; --r) {
    const std::string at = "_" + std::to_string(r);
    // One more block if a change of resolution has a skip connection as well.
    const int64_t n = c.resnets + (r + 1 < c.resolutions ? 1 : 0);
    for (int64_t i = 0; i < n; ++i)
      up_.push_back(resnets("up" + at + "_" + std::to_string(i), false));
    if (r > 0) twice_.push_back(convs("twice" + at, /*up=*/true));
  }
  head_ = conv("head", WeightNormConvOptions(c.filters, 10 * c.mixtures));
}

PixelCNNppImpl::Resnets PixelCNNppImpl::resnets(const std::string& name,
                                                bool down) {
  // The left stream also reads the above stream. On the way up, both also read
  // their skip connections.
  const int64_t F = config.filters;
  const auto o = GatedResnetOptions(F).both(true).rows(2);
  auto above = o, left = o;
  above.columns(3).centred(true).side(down ? 0 : F);
  left.columns(2).side(down ? F : 2 * F);
  return {register_module(name + "_above", GatedResnet(above)),
          register_module(name + "_left", GatedResnet(left))};
}

PixelCNNppImpl::Convs PixelCNNppImpl::convs(const std::string& name, bool up) {
  const auto o = WeightNormConvOptions(config.filters, config.filters)
                     .rows(2)
                     .stride(2)
                     .up(up);
  auto above = o, left = o;
  above.columns(3).centred(true), left.columns(2);
  return {register_module(name + "_above", WeightNormConv(above)),
          register_module(name + "_left", WeightNormConv(left))};
}

void PixelCNNppImpl::pretty_print(std::ostream& stream) const {
  stream << "PixelCNNpp(filters=" << config.filters
         << ", resnets=" << config.resnets
         << ", resolutions=" << config.resolutions
         << ", mixtures=" << config.mixtures << ")";
}

torch::Tensor PixelCNNppImpl::mixture(const torch::Tensor& image,
                                      int64_t /*height*/, double dropout,
                                      uint64_t seed) {
  const int64_t H = image.size(2), W = image.size(3),
                multiple = int64_t{1} << (config.resolutions - 1);
  const auto missing = [&](int64_t n) {
    return (multiple - n % multiple) % multiple;
  };
  torch::Tensor x = image;
  if (missing(H) + missing(W) > 0)
    x = at::constant_pad_nd(x, {0, missing(W), 0, missing(H)});

  uint64_t blocks = 0;
  const auto next_seed = [&] { return base::mix(seed, blocks++); };
  torch::Tensor above = shifted_down(above_(x)),
                left = shifted_down(left_above_(x)) + shifted_right(left_(x));
  std::vector<torch::Tensor> aboves{above}, lefts{left};
  const auto keep = [&] { aboves.push_back(above), lefts.push_back(left); };
  size_t block = 0;
  for (int64_t r = 0; r < config.resolutions; ++r) {
    if (r > 0) {
      Convs& half = halve_[r - 1];
      above = half.above->forward(above), left = half.left->forward(left);
      keep();
    }
    for (int64_t i = 0; i < config.resnets; ++i, ++block) {
      above = down_[block].above->forward(above, {}, dropout, next_seed());
      left = down_[block].left->forward(left, above, dropout, next_seed());
      keep();
    }
  }
  aboves.pop_back(), lefts.pop_back();
  block = 0;
  for (int64_t r = config.resolutions - 1; r >= 0; --r) {
    const int64_t n = config.resnets + (r + 1 < config.resolutions ? 1 : 0);
    for (int64_t i = 0; i < n; ++i, ++block) {
      above =
          up_[block].above->forward(above, aboves.back(), dropout, next_seed());
      left = up_[block].left->forward(left, at::cat({above, lefts.back()}, 1),
                                      dropout, next_seed());
      aboves.pop_back(), lefts.pop_back();
    }
    if (r > 0) {
      Convs& two = twice_[config.resolutions - 1 - r];
      above = two.above->forward(above), left = two.left->forward(left);
    }
  }
  const torch::Tensor y = head_(at::elu(left));
  return y.narrow(2, 0, H).narrow(3, 0, W);
}

}  // namespace aft::models
