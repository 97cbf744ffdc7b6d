#include "aft/models/pixelsnail.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "aft/base/random.h"
#include "aft/models/checks.h"
#include "aft/nn/heads.h"

namespace aft::models {
namespace {

constexpr int64_t kPlace = 2;
// Queries per tile. A tile computes scores only for keys before its end, so few
// of them are masked.
constexpr int64_t kTile = 128;

/// The row and column of each pixel, each in [-1/2, 1/2): [B, 2, H, W] for an
/// image that holds the upper rows of `height`.
at::Tensor places(const at::Tensor& image, int64_t height) {
  const int64_t B = image.size(0), H = image.size(2), W = image.size(3);
  const auto line = [&](int64_t n, int64_t of) {
    return at::arange(n, image.options()) / of - 0.5;
  };
  return at::stack({line(H, height).view({H, 1}).expand({H, W}),
                    line(W, W).expand({H, W})})
      .expand({B, kPlace, H, W});
}

/// Attention of each pixel to the preceding ones; the first pixel sees none. q
/// and k [B, d, H, W], v [B, dv, H, W] to [B, dv, H, W].
at::Tensor attend_before(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v) {
  const int64_t T = q.size(2) * q.size(3);
  const auto rows = [](const at::Tensor& x, int64_t first, int64_t n) {
    return x.flatten(2).transpose(1, 2).narrow(1, first, n);
  };
  std::vector<at::Tensor> tiles{at::zeros_like(rows(v, 0, 1))};
  for (int64_t first = 1; first < T; first += kTile) {
    const int64_t n = std::min(kTile, T - first), seen = first + n - 1;
    const at::Tensor hidden =
        at::ones({n, seen}, q.options().dtype(at::kBool)).triu_(first);
    tiles.push_back(nn::attend(rows(q, first, n), rows(k, 0, seen),
                               rows(v, 0, seen), hidden,
                               /*empty_rows=*/false));
  }
  return at::cat(tiles, 1).transpose(1, 2).unflatten(2, {q.size(2), q.size(3)});
}

}  // namespace

PixelSNAILImpl::PixelSNAILImpl(const PixelSNAILConfig& c)
    : LogisticMixtureModel("PixelSNAIL", c.dropout), config(c) {
  reset();
}

void PixelSNAILImpl::reset() {
  const auto& c = config;
  check_positive({{"filters", c.filters},
                  {"blocks", c.blocks},
                  {"resnets", c.resnets},
                  {"key", c.key},
                  {"value", c.value},
                  {"mixtures", c.mixtures}});
  check_probabilities({{"dropout", c.dropout}});

  const auto conv = [&](const std::string& name, WeightNormConvOptions o) {
    return register_module(name, WeightNormConv(o));
  };
  const auto resnet = [&](const std::string& name, GatedResnetOptions o) {
    return register_module(name, GatedResnet(o));
  };
  const int64_t F = c.filters;
  above_ = conv(
      "above", WeightNormConvOptions(kColours + 1, F).columns(3).centred(true));
  left_ = conv("left", WeightNormConvOptions(kColours + 1, F).rows(2));
  blocks_.clear();
  for (int64_t i = 0; i < c.blocks; ++i) {
    const std::string name = "blocks_" + std::to_string(i) + "_";
    const int64_t content = kColours + F + kPlace, query = F + kPlace;
    Block b;
    for (int64_t j = 0; j < c.resnets; ++j)
      b.resnets.push_back(resnet(name + "resnets_" + std::to_string(j),
                                 GatedResnetOptions(F).rows(2).columns(2)));
    b.content = resnet(name + "content", GatedResnetOptions(content));
    b.key_value = conv(name + "key_value",
                       WeightNormConvOptions(content, c.key + c.value));
    b.query_content = resnet(name + "query_content", GatedResnetOptions(query));
    b.query = conv(name + "query", WeightNormConvOptions(query, c.key));
    b.join = resnet(name + "join", GatedResnetOptions(F).side(c.value));
    blocks_.push_back(std::move(b));
  }
  head_ = conv("head", WeightNormConvOptions(F, 10 * c.mixtures));
}

void PixelSNAILImpl::pretty_print(std::ostream& stream) const {
  stream << "PixelSNAIL(filters=" << config.filters
         << ", blocks=" << config.blocks << ", resnets=" << config.resnets
         << ", key=" << config.key << ", value=" << config.value
         << ", mixtures=" << config.mixtures << ")";
}

torch::Tensor PixelSNAILImpl::mixture(const torch::Tensor& image,
                                      int64_t height, double dropout,
                                      uint64_t seed) {
  const int64_t key = config.key, value = config.value;
  const torch::Tensor place = places(image, height),
                      colours = image.narrow(1, 0, kColours);
  uint64_t done = 0;
  const auto run = [&](GatedResnet& block, const torch::Tensor& x,
                       const torch::Tensor& a = {}) {
    return block->forward(x, a, dropout, base::mix(seed, done++));
  };
  torch::Tensor x = shifted_down(above_(image)) + shifted_right(left_(image));
  for (Block& b : blocks_) {
    for (GatedResnet& r : b.resnets) x = run(r, x);
    const torch::Tensor kv =
        b.key_value(run(b.content, at::cat({colours, x, place}, 1)));
    const torch::Tensor q =
        b.query(run(b.query_content, at::cat({x, place}, 1)));
    x = run(b.join, x,
            attend_before(q, kv.narrow(1, 0, key), kv.narrow(1, key, value)));
  }
  return head_(at::elu(x));
}

}  // namespace aft::models
