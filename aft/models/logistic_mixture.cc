#include "aft/models/logistic_mixture.h"

#include <ATen/ATen.h>

#include <vector>

#include "aft/ops/common.h"

namespace aft::models {
namespace {

constexpr double kHalfRange = 127.5;  // values per unit of network input
constexpr double kLeastLogScale = -7;

/// The log-probability of value v in each component. v, mean and log_scale
/// broadcast; mean is in units of values.
///
/// F(a) - F(b) = F(a) F(-b) (1 - exp(b - a)), so the logarithm is computed
/// without cancellation, and even the smallest bins need no other formula. v +-
/// 1/2 is exact, so adjacent bins share bit-identical edges, and all bins sum
/// to 1.
at::Tensor log_bin(const at::Tensor& v, const at::Tensor& mean,
                   const at::Tensor& log_scale) {
  const at::Tensor inverse =
      at::exp(-log_scale.clamp_min(kLeastLogScale)) / kHalfRange;
  const at::Tensor below = at::log_sigmoid((v + 0.5 - mean) * inverse),
                   above = at::log_sigmoid((mean - (v - 0.5)) * inverse),
                   // The floor takes effect at a scale of e^64; width is never
                   // log 0.
      width = at::log(-at::expm1(-inverse.clamp_min(1e-30)));
  const at::Tensor first = v == 0, last = v == 255;
  return below.masked_fill(last, 0) + above.masked_fill(first, 0) +
         width.masked_fill(at::logical_or(first, last), 0);
}

/// Means, log-scales and coefficients of parameters [B, 10 K, ...].
class Mixture {
 public:
  explicit Mixture(const at::Tensor& parameters)
      : parameters_(parameters), K_(parameters.size(1) / 10) {}

  at::Tensor logits() const { return parameters_.narrow(1, 0, K_); }
  at::Tensor log_scale(int64_t channel) const { return part(channel, 1); }
  /// In units of values. before: the preceding channels, each [B, 1, ...].
  at::Tensor mean(int64_t channel,
                  const std::vector<at::Tensor>& before) const {
    at::Tensor m = part(channel, 0) * kHalfRange + kHalfRange;
    // The coefficient of green has index 0, those of blue 1 and 2.
    for (int64_t c = 0; c < channel; ++c)
      m = m + at::tanh(part(channel - 1 + c, 2)) * (before[c] - kHalfRange);
    return m;
  }

 private:
  at::Tensor part(int64_t channel, int64_t which) const {
    return parameters_.narrow(1, K_ * (1 + 3 * channel + which), K_);
  }

  at::Tensor parameters_;
  int64_t K_;
};

/// The log-weights of the components given the preceding channels, and the
/// values of these channels. Starts with no channel.
class Posterior {
 public:
  explicit Posterior(const at::Tensor& parameters)
      : mixture_(parameters), weights_(mixture_.logits().log_softmax(1)) {}

  /// log p(v) of the next channel, v [B, 1, ...]; the result has no dimension
  /// of components. Later calls are conditioned on v.
  at::Tensor next(const at::Tensor& v) {
    const int64_t c = static_cast<int64_t>(before_.size());
    const at::Tensor joint =
        weights_ + log_bin(v, mixture_.mean(c, before_), mixture_.log_scale(c));
    // Normalised with log_softmax and not by the sum below, so that weights sum
    // to 1 even if all components are far off.
    weights_ = joint.log_softmax(1);
    before_.push_back(v);
    return joint.logsumexp(1);
  }

  /// log p of all values of the next channel: [B, 256] for parameters of shape
  /// [B, 10 K].
  at::Tensor all() const {
    const int64_t c = static_cast<int64_t>(before_.size());
    const at::Tensor v = at::arange(256, weights_.options()),
                     mean = mixture_.mean(c, before_).unsqueeze(2),
                     scale = mixture_.log_scale(c).unsqueeze(2);
    return (weights_.unsqueeze(2) + log_bin(v, mean, scale)).logsumexp(1);
  }

 private:
  Mixture mixture_;
  at::Tensor weights_;
  std::vector<at::Tensor> before_;
};

void check_values(const std::string& name, const at::Tensor& values) {
  TORCH_CHECK(values.dim() == 4 && values.size(3) == 3 && values.numel() > 0 &&
                  values.scalar_type() == at::kLong,
              name,
              ": values must be int64 [B, H, W, 3] with sizes of 1 or more, "
              "got ",
              values.scalar_type(), " ", ops::shape_of(values));
}

void check_range(const std::string& name, const at::Tensor& values) {
  const int64_t least = values.min().item<int64_t>(),
                most = values.max().item<int64_t>();
  TORCH_CHECK(least >= 0 && most < 256, name,
              ": values must be in [0, 256), got ", least < 0 ? least : most);
}

}  // namespace

torch::Tensor logistic_mixture_log_prob(const torch::Tensor& parameters,
                                        const torch::Tensor& values) {
  constexpr const char* kName = "logistic_mixture_log_prob";
  check_values(kName, values);
  const int64_t B = values.size(0), H = values.size(1), W = values.size(2);
  TORCH_CHECK(parameters.dim() == 4 && parameters.size(0) == B &&
                  parameters.size(1) >= 10 && parameters.size(1) % 10 == 0 &&
                  parameters.size(2) == H && parameters.size(3) == W,
              kName, ": parameters must be [B, 10 K, H, W] = [", B, ", 10 K, ",
              H, ", ", W, "], got ", ops::shape_of(parameters));
  check_range(kName, values);
  Posterior posterior(parameters);
  const at::Tensor v = values.to(parameters.scalar_type());
  std::vector<at::Tensor> channels;
  for (int64_t c = 0; c < 3; ++c)
    channels.push_back(posterior.next(v.select(3, c).unsqueeze(1)));
  return at::stack(channels, 3);
}

torch::Tensor logistic_mixture_distribution(const torch::Tensor& parameters,
                                            const torch::Tensor& values,
                                            int64_t channel) {
  constexpr const char* kName = "logistic_mixture_distribution";
  TORCH_CHECK(parameters.dim() == 2 && parameters.size(1) >= 10 &&
                  parameters.size(1) % 10 == 0,
              kName, ": parameters must be [B, 10 K], got ",
              ops::shape_of(parameters));
  TORCH_CHECK(values.dim() == 2 && values.size(0) == parameters.size(0) &&
                  values.size(1) == 3 && values.scalar_type() == at::kLong,
              kName, ": values must be int64 [B, 3] = [", parameters.size(0),
              ", 3], got ", values.scalar_type(), " ", ops::shape_of(values));
  TORCH_CHECK(channel >= 0 && channel < 3, kName,
              ": channel must be 0, 1 or 2, got ", channel);
  Posterior posterior(parameters);
  if (channel > 0) check_range(kName, values.narrow(1, 0, channel));
  for (int64_t c = 0; c < channel; ++c)
    posterior.next(values.narrow(1, c, 1).to(parameters.scalar_type()));
  return posterior.all();
}

torch::Tensor LogisticMixtureModel::image_of(
    const torch::Tensor& values) const {
  check_range(name_, values);
  const at::Tensor colours =
      values.permute({0, 3, 1, 2}).to(parameters().front().options()) /
          kHalfRange -
      1;
  return at::cat({colours, at::ones_like(colours.narrow(1, 0, 1))}, 1);
}

torch::Tensor LogisticMixtureModel::log_prob(const torch::Tensor& values,
                                             uint64_t seed) {
  check_values(name_, values);
  return logistic_mixture_log_prob(mixture(image_of(values), values.size(1),
                                           is_training() ? dropout_ : 0, seed),
                                   values);
}

torch::Tensor LogisticMixtureModel::distribution(const torch::Tensor& values,
                                                 int64_t row, int64_t column,
                                                 int64_t channel) {
  at::NoGradGuard no_grad;
  check_values(name_, values);
  TORCH_CHECK(row >= 0 && row < values.size(1) && column >= 0 &&
                  column < values.size(2) && channel >= 0 && channel < 3,
              name_, ": row, column and channel must be inside ",
              ops::shape_of(values), ", got ", row, ", ", column, " and ",
              channel);
  at::Tensor known = values.narrow(1, 0, row + 1).clone();
  known.select(1, row).narrow(1, column, values.size(2) - column).zero_();
  const at::Tensor pixel = values.select(1, row).select(1, column);
  return logistic_mixture_distribution(
      mixture(image_of(known), values.size(1), /*dropout=*/0, /*seed=*/0)
          .select(2, row)
          .select(2, column),
      pixel, channel);
}

}  // namespace aft::models
