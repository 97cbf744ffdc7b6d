// The discretised mixture of logistics over the sub-pixels of an image
// (PixelCNN++), and the base class of networks that predict its parameters.
//
//   p(r, g, b) = sum_k pi_k P_k0(r) P_k1(g | r) P_k2(b | r, g),
//   P_kc(v) = F((v + 1/2 - m_kc) / s_kc) - F((v - 1/2 - m_kc) / s_kc),
// where F(x) = 1 / (1 + exp(-x)). The bins of 0 and 255 extend to infinity.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "aft/models/pixel_model.h"

namespace aft::models {

/// Maps parameters [B, 10 K, H, W] of K components, and values int64 [B, H, W,
/// 3] in [0, 256), to log p(r), log p(g | r) and log p(b | r, g): [B, H, W, 3].
///
/// The 10 K parameters are K logits of pi; then per colour K means, K
/// log-scales (for images in [-1, 1]; clamped to at least -7) and K
/// coefficients c, which pass through tanh: m_1 += c_0 r, m_2 += c_1 r + c_2 g.
/// Finite for finite parameters. Throws c10::Error for other shapes.
torch::Tensor logistic_mixture_log_prob(const torch::Tensor& parameters,
                                        const torch::Tensor& values);

/// The log-probabilities of all values of one channel of a pixel, given the
/// preceding channels: parameters [B, 10 K] and values int64 [B, 3] to [B,
/// 256]. Reads only the values before `channel`. Throws c10::Error.
torch::Tensor logistic_mixture_distribution(const torch::Tensor& parameters,
                                            const torch::Tensor& values,
                                            int64_t channel);

/// A network that predicts the mixture parameters of each pixel from the
/// preceding pixels.
class LogisticMixtureModel : public PixelModel {
 public:
  torch::Tensor log_prob(const torch::Tensor& values,
                         uint64_t seed = 0) override;
  /// Applies no dropout, even in training. Does not compute the rows below
  /// `row`.
  torch::Tensor distribution(const torch::Tensor& values, int64_t row,
                             int64_t column, int64_t channel) override;

 protected:
  /// `name` is the prefix of error messages; `dropout` applies in training.
  LogisticMixtureModel(std::string name, double dropout)
      : name_(std::move(name)), dropout_(dropout) {}

  /// image [B, 4, H, W] to [B, 10 K, H, W]. The channels are red, green and
  /// blue in [-1, 1], and ones. The rows are the upper rows of an image of
  /// `height` rows. The output at a pixel must depend only on the preceding
  /// pixels.
  virtual torch::Tensor mixture(const torch::Tensor& image, int64_t height,
                                double dropout, uint64_t seed) = 0;

 private:
  torch::Tensor image_of(const torch::Tensor& values) const;

  std::string name_;
  double dropout_;
};

}  // namespace aft::models
