// What every model of pictures must do, from the definition of PixelModel:
// nothing looks ahead, distributions are distributions, gradients reach all.
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
  return "nothing was thrown";
}

inline torch::Tensor random_values(int64_t B, int64_t H, int64_t W,
                                   uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randint(256, {B, H, W, 3}, torch::kLong);
}

/// What the networks read of values, in double: colours in [-1, 1], ones.
inline torch::Tensor image_of(const torch::Tensor& values) {
  const torch::Tensor x =
      values.permute({0, 3, 1, 2}).to(torch::kDouble) / 127.5 - 1;
  return torch::cat({x, torch::ones_like(x.narrow(1, 0, 1))}, 1);
}

/// Moved by one along dim, zeros first.
inline torch::Tensor moved(const torch::Tensor& x, int64_t dim) {
  torch::Tensor y = x.roll(1, dim);
  y.select(dim, 0).zero_();
  return y;
}

/// The convolutions and gated blocks of a network, by their names.
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

/// Changing any sub-pixel leaves all before it as they were, to the last bit,
/// and is seen by itself and by some after it.
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
        << "sub-pixel " << i << " is seen before it stands";
    EXPECT_FALSE(torch::equal(after.select(1, i), before.select(1, i))) << i;
    if (i + 1 < n) {
      EXPECT_FALSE(torch::equal(after.narrow(1, i + 1, n - i - 1),
                                before.narrow(1, i + 1, n - i - 1)))
          << "sub-pixel " << i << " is seen by none after it";
    }
  }
}

/// The parameters of a pixel depend on every pixel before: no blind spot.
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

/// Of every sub-pixel: sums to one, says of the value that stands there what
/// log_prob says, and does not see what stands there and after it.
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

/// Finite gradients, and a gradient for every parameter.
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

/// In double precision: log_prob is what it is in float, and the gradient of
/// each parameter, along a random direction, that of finite differences.
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

/// Bits a sub-pixel before and after some steps on one picture.
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

/// RawImages of one value: finite at first, and after training that makes the
/// distribution as narrow as it can be.
inline void expect_constant_pictures(PixelModel& model) {
  for (const int64_t value : {0, 255, 128}) {
    const torch::Tensor flat = torch::full({2, 5, 6, 3}, value, torch::kLong);
    expect_gradients(model, flat);
    const auto [first, last] = overfit(model, flat, 20, 0.03);
    EXPECT_TRUE(std::isfinite(first) && std::isfinite(last)) << value;
    EXPECT_LT(last, first) << value;
    for (const auto& p : model.parameters())
      ASSERT_TRUE(torch::isfinite(p).all().item<bool>()) << value;
  }
}

/// Seeds decide everything: weights of two that were made alike are the same
/// to the last bit, at first and after some steps.
inline void expect_same_again(
    const std::function<std::shared_ptr<PixelModel>()>& make) {
  const auto trained = [&](uint64_t seed, int steps) {
    torch::manual_seed(seed);
    const auto model = make();
    if (steps > 0) overfit(*model, random_values(2, 4, 5), steps, 0.01);
    std::vector<torch::Tensor> flat;
    for (const auto& p : model->parameters())
      flat.push_back(p.detach().flatten());
    return torch::cat(flat);
  };
  for (const int steps : {0, 3})
    EXPECT_TRUE(torch::equal(trained(1, steps), trained(1, steps))) << steps;
  EXPECT_FALSE(torch::equal(trained(1, 0), trained(2, 0)));
}

/// In training the seed chooses what is dropped; otherwise nothing is.
inline void expect_dropout_by_seed(PixelModel& model,
                                   const torch::Tensor& values) {
  torch::NoGradGuard no_grad;
  model.train();
  const torch::Tensor y = model.log_prob(values, 5);
  EXPECT_TRUE(torch::equal(model.log_prob(values, 5), y));
  EXPECT_FALSE(torch::equal(model.log_prob(values, 6), y));
  const torch::Tensor all = model.distribution(values, 1, 1, 1);
  model.eval();
  const torch::Tensor whole = model.log_prob(values, 5);
  EXPECT_FALSE(torch::equal(whole, y));
  EXPECT_TRUE(torch::equal(model.log_prob(values, 6), whole));
  EXPECT_TRUE(torch::equal(model.distribution(values, 1, 1, 1), all));
}

/// `name` opens each error.
inline void expect_errors(PixelModel& model, const std::string& name) {
  const auto has = [&](const std::string& text, const std::string& part) {
    EXPECT_EQ(text.find(name + ":"), 0u) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto of = [&](const torch::Tensor& x) {
    return message([&] { model.log_prob(x); });
  };
  const torch::Tensor good = random_values(2, 4, 4);
  has(of(good[0]), "values must be int64 [B, H, W, 3]");
  has(of(good.narrow(3, 0, 2)), "[2, 4, 4, 2]");
  has(of(good.permute({0, 3, 1, 2})), "[2, 3, 4, 4]");
  has(of(good.to(torch::kFloat)), "int64");
  has(of(good.narrow(1, 0, 0)), "[2, 0, 4, 3]");
  has(of(good + 256), "in [0, 256)");
  has(of(good - 256), "in [0, 256)");
  for (const auto& p : std::vector<std::vector<int64_t>>{
           {4, 0, 0}, {0, 4, 0}, {0, 0, 3}, {-1, 0, 0}, {0, -1, 0}}) {
    has(message([&] { model.distribution(good, p[0], p[1], p[2]); }),
        "row, column and channel must be inside [2, 4, 4, 3]");
  }
  has(message([&] { model.distribution(good[0], 0, 0, 0); }), "int64 [B, H,");
}

/// A smooth picture of H x W with a bright corner.
inline torch::Tensor smooth_picture(int64_t H, int64_t W) {
  torch::Tensor x = torch::empty({1, H, W, 3}, torch::kLong);
  for (int64_t h = 0; h < H; ++h)
    for (int64_t w = 0; w < W; ++w)
      for (int64_t c = 0; c < 3; ++c)
        x[0][h][w][c] = h < 2 && w < 2 ? 255 : 20 + 10 * h + 12 * w + 30 * c;
  return x;
}

}  // namespace aft::models
