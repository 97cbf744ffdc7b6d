// PixelSNAIL: blocks of gated residual convolutions and one causal attention
// over all preceding pixels, at full resolution. The output is a mixture of
// logistics per pixel.
//
//   x = resnets(x), a_t = sum_{j < t} softmax_j(q_t . k_j / sqrt(key)) v_j,
// with q computed from (x, position), k and v from (image, x, position); then x
// = resnet(x, a).
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/models/logistic_mixture.h"
#include "aft/models/weight_norm.h"

namespace aft::models {

struct PixelSNAILConfig {
  std::string network = "pixelsnail";  ///< its name in configurations
  int64_t filters = 256;
  int64_t blocks = 12;    ///< each with one attention layer
  int64_t resnets = 4;    ///< gated residual convolutions per block
  int64_t key = 16;       ///< channels of queries and keys
  int64_t value = 128;    ///< channels of values
  int64_t mixtures = 10;  ///< logistics per pixel
  double dropout = 0.5;

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("network", s.network), f("filters", s.filters), f("blocks", s.blocks),
        f("resnets", s.resnets);
    f("key", s.key), f("value", s.value), f("mixtures", s.mixtures);
    f("dropout", s.dropout);
  }
};

/// Takes images of any size. Memory grows with the square of the number of
/// pixels.
class PixelSNAILImpl : public torch::nn::Cloneable<PixelSNAILImpl>,
                       public LogisticMixtureModel {
 public:
  /// Initialises weights like PixelCNNpp. Throws c10::Error if the
  /// configuration is invalid.
  explicit PixelSNAILImpl(const PixelSNAILConfig& config);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  PixelSNAILConfig config;

 protected:
  torch::Tensor mixture(const torch::Tensor& image, int64_t height,
                        double dropout, uint64_t seed) override;

 private:
  struct Block {
    std::vector<GatedResnet> resnets;
    GatedResnet content{nullptr}, query_content{nullptr}, join{nullptr};
    WeightNormConv key_value{nullptr}, query{nullptr};
  };

  WeightNormConv above_{nullptr}, left_{nullptr}, head_{nullptr};
  std::vector<Block> blocks_;
};
TORCH_MODULE(PixelSNAIL);

}  // namespace aft::models
