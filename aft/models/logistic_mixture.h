// The discretised mixture of logistics over the sub-pixels of a picture
// (PixelCNN++), and what the networks that predict its parameters share.
//
//   p(r, g, b) = sum_k pi_k P_k0(r) P_k1(g | r) P_k2(b | r, g),
//   P_kc(v) = F((v + 1/2 - m_kc) / s_kc) - F((v - 1/2 - m_kc) / s_kc),
// F(x) = 1 / (1 + exp(-x)); the bins of 0 and 255 are open outwards.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "aft/models/pixel_model.h"

namespace aft::models {

/// parameters [B, 10 K, H, W] of K components and values int64 [B, H, W, 3] in
/// [0, 256) to log p(r), log p(g | r) and log p(b | r, g), [B, H, W, 3].
///
/// Of the 10 K: K logits of pi, then for each colour K means and K log-scales
/// (of pictures in [-1, 1]; the latter -7 or more) and K coefficients c, as
/// tanh: m_1 += c_0 r, m_2 += c_1 r + c_2 g. Finite for finite parameters.
/// Throws c10::Error for other shapes.
torch::Tensor logistic_mixture_log_prob(const torch::Tensor& parameters,
                                        const torch::Tensor& values);

/// The log-probabilities of all values of one channel of a pixel given those of
/// its channels before: parameters [B, 10 K] and values int64 [B, 3], of which
/// only those before `channel` are read, to [B, 256]. Throws c10::Error.
torch::Tensor logistic_mixture_distribution(const torch::Tensor& parameters,
                                            const torch::Tensor& values,
                                            int64_t channel);

/// A network that says the parameters of the mixture of each pixel from the
/// pixels before it.
class LogisticMixtureModel : public PixelModel {
 public:
  torch::Tensor log_prob(const torch::Tensor& values,
                         uint64_t seed = 0) override;
  /// Nothing is dropped, in training neither. The rows below are not computed.
  torch::Tensor distribution(const torch::Tensor& values, int64_t row,
                             int64_t column, int64_t channel) override;

 protected:
  /// `name` opens the errors; `dropout` is that of training.
  LogisticMixtureModel(std::string name, double dropout)
      : name_(std::move(name)), dropout_(dropout) {}

  /// image [B, 4, H, W], red, green and blue in [-1, 1] and a channel of ones,
  /// the upper rows of a picture of `height` rows, to [B, 10 K, H, W]; what
  /// comes out at a pixel depends on the pixels before it alone.
  virtual torch::Tensor mixture(const torch::Tensor& image, int64_t height,
                                double dropout, uint64_t seed) = 0;

 private:
  torch::Tensor image_of(const torch::Tensor& values) const;

  std::string name_;
  double dropout_;
};

}  // namespace aft::models
