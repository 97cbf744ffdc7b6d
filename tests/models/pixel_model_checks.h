// Checks that the tests of image models share: causality, distributions,
// gradients and training.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aft/models/pixel_model.h"
#include "aft/models/weight_norm.h"

namespace aft::models {

inline std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "no error";
}

inline torch::Tensor random_values(int64_t B, int64_t H, int64_t W,
                                   uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randint(256, {B, H, W, 3}, torch::kLong);
}

/// The input of the networks for values, in double: colours in [-1, 1], ones.
inline torch::Tensor image_of(const torch::Tensor& values) {
  const torch::Tensor x =
      values.permute({0, 3, 1, 2}).to(torch::kDouble) / 127.5 - 1;
  return torch::cat({x, torch::ones_like(x.narrow(1, 0, 1))}, 1);
}

/// Shifted by one along dim; the first becomes zeros.
inline torch::Tensor moved(const torch::Tensor& x, int64_t dim) {
  torch::Tensor y = x.roll(1, dim);
  y.select(dim, 0).zero_();
  return y;
}

/// Applies the convolutions and gated blocks of a network by name.
struct Parts {
  torch::nn::Module& model;

  torch::Tensor conv(const std::string& name, const torch::Tensor& x) const {
    return model.named_children()[name]->as<WeightNormConv>()->forward(x);
  }
  torch::Tensor gated(const std::string& name, const torch::Tensor& x,
                      const torch::Tensor& a = {}) const {
    return model.named_children()[name]->as<GatedResnet>()->forward(x, a, 0, 0);
  }
};

/// Changing a sub-pixel leaves all preceding log-probabilities bit-identical,
/// and changes that of the sub-pixel and some later ones.
inline void expect_nothing_looks_ahead(PixelModel& model,
                                       const torch::Tensor& values) {
  torch::NoGradGuard no_grad;
  const int64_t n = values[0].numel();
  const torch::Tensor before = model.log_prob(values).flatten(1);
  ASSERT_EQ(before.size(1), n);
  ASSERT_TRUE(torch::isfinite(before).all().item<bool>());
  ASSERT_LE(before.max().item<double>(), 0);
  for (int64_t i = 0; i < n; ++i) {
    torch::Tensor other = values.clone();
    torch::Tensor at = other.flatten(1).select(1, i);
    at.copy_((at + 101).remainder(256));
    const torch::Tensor after = model.log_prob(other).flatten(1);
    EXPECT_TRUE(torch::equal(after.narrow(1, 0, i), before.narrow(1, 0, i)))
        << "sub-pixel " << i << " affects earlier ones";
    EXPECT_FALSE(torch::equal(after.select(1, i), before.select(1, i))) << i;
    if (i + 1 < n) {
      EXPECT_FALSE(torch::equal(after.narrow(1, i + 1, n - i - 1),
                                before.narrow(1, i + 1, n - i - 1)))
          << "sub-pixel " << i << " affects no later one";
    }
  }
}

/// The distribution of a pixel depends on every preceding pixel: there is no
/// blind spot.
inline void expect_all_before_is_seen(PixelModel& model,
                                      const torch::Tensor& values, int64_t row,
                                      int64_t column) {
  torch::NoGradGuard no_grad;
  model.to(torch::kDouble);
  const auto now = [&](const torch::Tensor& x) {
    return model.log_prob(x).select(1, row).select(1, column);
  };
  const torch::Tensor before = now(values);
  for (int64_t i = 0; i < row * values.size(2) + column; ++i) {
    torch::Tensor other = values.clone();
    torch::Tensor at = other.flatten(1, 2).select(1, i);
    at.copy_(255 - at);
    EXPECT_FALSE(torch::equal(now(other), before)) << "pixel " << i;
  }
  model.to(torch::kFloat);
}

/// For every sub-pixel, distribution() sums to one, agrees with log_prob, and
/// ignores the values of this sub-pixel and those after it.
inline void expect_distributions(PixelModel& model,
                                 const torch::Tensor& values) {
  torch::NoGradGuard no_grad;
  const torch::Tensor expected = model.log_prob(values).flatten(1);
  const int64_t W = values.size(2), n = expected.size(1);
  torch::Tensor total = torch::zeros({values.size(0)}, torch::kDouble);
  for (int64_t i = 0; i < n; ++i) {
    const auto all_of = [&](const torch::Tensor& x) {
      return model.distribution(x, i / 3 / W, i / 3 % W, i % 3);
    };
    const torch::Tensor all = all_of(values);
    ASSERT_EQ(all.sizes(), (std::vector<int64_t>{values.size(0), 256}));
    EXPECT_FALSE(all.requires_grad());
    const torch::Tensor sums = all.to(torch::kDouble).exp().sum(1);
    EXPECT_LE((sums - 1).abs().max().item<double>(), 1e-5) << i;
    const torch::Tensor truth =
        all.gather(1, values.flatten(1).narrow(1, i, 1)).squeeze(1);
    EXPECT_TRUE(torch::allclose(truth, expected.select(1, i), 1e-4, 1e-4))
        << i << "\n"
        << truth << expected.select(1, i);
    total += truth;
    torch::Tensor other = values.clone();
    other.flatten(1).narrow(1, i, n - i).fill_(-1000);
    EXPECT_TRUE(torch::equal(all_of(other), all)) << i;
  }
  EXPECT_TRUE(
      torch::allclose(total, expected.to(torch::kDouble).sum(1), 1e-5, 1e-3));
}

/// Every parameter has a finite gradient that is not all zero.
inline void expect_gradients(PixelModel& model, const torch::Tensor& values) {
  model.zero_grad();
  (-model.log_prob(values, 3).mean()).backward();
  for (const auto& p : model.named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_TRUE(torch::isfinite(p.value().grad()).all().item<bool>())
        << p.key();
    EXPECT_GT(p.value().grad().abs().max().item<double>(), 0) << p.key();
  }
}

/// log_prob agrees in float and double; in double, the gradient of each
/// parameter along a random direction agrees with finite differences.
inline void expect_finite_differences(PixelModel& model,
                                      const torch::Tensor& values) {
  torch::manual_seed(12);
  model.eval();
  const torch::Tensor single = model.log_prob(values).detach();
  model.to(torch::kDouble);
  const torch::Tensor y = model.log_prob(values);
  ASSERT_EQ(y.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::allclose(single.to(torch::kDouble), y, 1e-3, 1e-3));
  EXPECT_EQ(model.distribution(values, 0, 0, 0).scalar_type(), torch::kDouble);
  const torch::Tensor weight = torch::rand_like(y);
  model.zero_grad();
  (y * weight).sum().backward();
  torch::NoGradGuard no_grad;
  const auto f = [&] {
    return (model.log_prob(values) * weight).sum().item<double>();
  };
  for (auto& p : model.named_parameters()) {
    constexpr double kStep = 1e-6;
    const torch::Tensor way = torch::randn_like(p.value());
    p.value().add_(way, kStep);
    const double up = f();
    p.value().sub_(way, 2 * kStep);
    const double down = f();
    p.value().add_(way, kStep);
    const double expected = (up - down) / (2 * kStep),
                 got = (p.value().grad() * way).sum().item<double>();
    EXPECT_NEAR(got, expected, 1e-4 * (1 + std::abs(expected))) << p.key();
  }
  model.to(torch::kFloat);
}

/// Returns the bits per sub-pixel before and after some steps on one image.
inline std::pair<double, double> overfit(PixelModel& model,
                                         const torch::Tensor& values, int steps,
                                         double rate) {
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(rate));
  double first = 0, last = 0;
  for (int i = 0; i < steps; ++i) {
    const torch::Tensor loss =
        -model.log_prob(values, static_cast<uint64_t>(i)).mean() / std::log(2.);
    adam.zero_grad();
    loss.backward();
    adam.step();
    last = loss.item<double>();
    if (i == 0) first = last;
  }
  return {first, last};
}

}  // namespace aft::models
