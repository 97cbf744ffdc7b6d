// PixelCNN++: two streams of gated residual blocks. One sees the rows above,
// the other also the pixels to the left. They go down to coarser resolutions
// and up again, with a skip connection from each block to its counterpart. The
// output is a mixture of logistics per pixel.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/models/logistic_mixture.h"
#include "aft/models/weight_norm.h"

namespace aft::models {

struct PixelCNNppConfig {
  std::string network = "pixelcnn++";  ///< its name in configurations
  int64_t filters = 160;               ///< channels of each stream
  int64_t resnets = 5;  ///< gated residual blocks per resolution and direction
  int64_t resolutions = 3;  ///< each half the previous one
  int64_t mixtures = 10;    ///< logistics per pixel
  double dropout = 0.5;

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("network", s.network), f("filters", s.filters), f("resnets", s.resnets);
    f("resolutions", s.resolutions), f("mixtures", s.mixtures);
    f("dropout", s.dropout);
  }
};

/// Takes images of any size. Internally pads them with zeros below and to the
/// right until 2^(resolutions - 1) divides rows and columns.
class PixelCNNppImpl : public torch::nn::Cloneable<PixelCNNppImpl>,
                       public LogisticMixtureModel {
 public:
  /// Initialises weights from torch's generator: normal directions, g 1 (0.1
  /// before a gate), biases 0. Throws c10::Error if the configuration is
  /// invalid.
  explicit PixelCNNppImpl(const PixelCNNppConfig& config);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  PixelCNNppConfig config;

 protected:
  torch::Tensor mixture(const torch::Tensor& image, int64_t height,
                        double dropout, uint64_t seed) override;

 private:
  /// One module for the stream that sees the rows above, one for the other.
  struct Resnets {
    GatedResnet above{nullptr}, left{nullptr};
  };
  struct Convs {
    WeightNormConv above{nullptr}, left{nullptr};
  };
  Resnets resnets(const std::string& name, bool down);
  Convs convs(const std::string& name, bool up);

  WeightNormConv above_{nullptr}, left_above_{nullptr}, left_{nullptr},
      head_{nullptr};
  std::vector<Resnets> down_, up_;
  std::vector<Convs> halve_, twice_;
};
TORCH_MODULE(PixelCNNpp);

}  // namespace aft::models
