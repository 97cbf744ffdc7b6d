// The mixture of logistics against its definition in long double, and the sums
// of its probabilities.
#include "aft/models/logistic_mixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace aft::models {
namespace {

using Real = long double;

/// P(v) of a logistic with this mean and log-scale in units of [-1, 1]: the
/// difference of the distribution function at the edges of the bin.
Real bin(Real mean, Real log_scale, int64_t v) {
  const Real inverse = std::exp(-std::max<Real>(log_scale, -7)),
             x = v / Real(127.5) - 1, half = 1 / Real(255);
  const auto F = [](Real t) { return 1 / (1 + std::exp(-t)); };
  const Real high = (x - mean + half) * inverse,
             low = (x - mean - half) * inverse;
  if (v == 0) return F(high);
  if (v == 255) return F(-low);
  // On the side where the function is small, to avoid cancellation.
  return low > 0 ? F(-low) - F(-high) : F(high) - F(low);
}

/// p(r), p(r, g) and p(r, g, b) of one pixel, from its 10 K parameters.
std::vector<Real> oracle(const std::vector<double>& p,
                         const std::vector<int64_t>& v) {
  const size_t K = p.size() / 10;
  const auto part = [&](size_t c, size_t which, size_t k) {
    return Real(p[K + c * 3 * K + which * K + k]);
  };
  const auto x = [&](size_t c) { return v[c] / Real(127.5) - 1; };
  Real total = 0;
  const Real most = *std::max_element(p.begin(), p.begin() + K);
  for (size_t k = 0; k < K; ++k) total += std::exp(p[k] - most);
  std::vector<Real> result(3, 0);
  for (size_t k = 0; k < K; ++k) {
    const Real c0 = std::tanh(part(0, 2, k)), c1 = std::tanh(part(1, 2, k)),
               c2 = std::tanh(part(2, 2, k));
    Real joint = std::exp(p[k] - most) / total;
    joint *= bin(part(0, 0, k), part(0, 1, k), v[0]);
    result[0] += joint;
    joint *= bin(part(1, 0, k) + c0 * x(0), part(1, 1, k), v[1]);
    result[1] += joint;
    joint *= bin(part(2, 0, k) + c1 * x(0) + c2 * x(1), part(2, 1, k), v[2]);
    result[2] += joint;
  }
  return result;
}

struct Case {
  const char* name;
  double means, scale_low, scale_high, logits;
};
const Case kCases[] = {{"plain", 1, -4, -1, 1},
                       {"narrow", 1, -9, -5, 2},
                       {"wide", 1, 0, 4, 1},
                       {"outside", 4, -3, 0, 1},
                       {"one component", 1, -4, -1, 40}};

torch::Tensor parameters_of(const Case& c, std::vector<int64_t> shape,
                            int64_t K) {
  shape.insert(shape.begin() + 1, 10 * K);
  torch::Tensor p = torch::randn(shape, torch::kDouble);
  p.narrow(1, 0, K).mul_(c.logits);
  for (int64_t channel = 0; channel < 3; ++channel) {
    p.narrow(1, K + 3 * K * channel, K).mul_(c.means);
    p.narrow(1, 2 * K + 3 * K * channel, K).uniform_(c.scale_low, c.scale_high);
  }
  // Rounded to float, so that both sides have the same input.
  return p.to(torch::kFloat).to(torch::kDouble);
}

std::vector<double> numbers(const torch::Tensor& x) {
  const torch::Tensor y = x.to(torch::kDouble).contiguous();
  return {y.data_ptr<double>(), y.data_ptr<double>() + y.numel()};
}

/// Values that include 0 and 255.
torch::Tensor some_values(int64_t B, int64_t H, int64_t W) {
  torch::Tensor v = torch::randint(-30, 286, {B, H, W, 3}, torch::kLong);
  return v.clamp(0, 255);
}

TEST(LogisticMixture, MatchesItsDefinition) {
  const int64_t B = 2, H = 5, W = 6;
  for (const Case& c : kCases) {
    for (const int64_t K : {1, 3, 10}) {
      torch::manual_seed(7);
      const torch::Tensor p = parameters_of(c, {B, H, W}, K),
                          v = some_values(B, H, W);
      for (const auto type : {torch::kFloat, torch::kDouble}) {
        const torch::Tensor y = logistic_mixture_log_prob(p.to(type), v);
        ASSERT_EQ(y.sizes(), v.sizes());
        const double tolerance = type == torch::kFloat ? 2e-5 : 1e-12;
        for (int64_t i = 0; i < B * H * W; ++i) {
          const int64_t b = i / (H * W), h = i / W % H, w = i % W;
          const torch::Tensor at = v[b][h][w];
          const std::vector<Real> expected =
              oracle(numbers(p[b].select(1, h).select(1, w)),
                     {at.data_ptr<int64_t>(), at.data_ptr<int64_t>() + 3});
          const std::vector<double> got = numbers(y[b][h][w]);
          double sum = 0;
          for (size_t n = 0; n < 3; ++n) {
            sum += got[n];
            const double joint = static_cast<double>(std::log(expected[n]));
            EXPECT_NEAR(sum, joint, tolerance * (1 + std::abs(joint)))
                << c.name << " K=" << K << " channel " << n;
          }
        }
      }
    }
  }
}

TEST(LogisticMixture, ConditionalsSumToOne) {
  const int64_t B = 40, K = 5;
  for (const Case& c : kCases) {
    torch::manual_seed(8);
    const torch::Tensor p = parameters_of(c, {B}, K).to(torch::kFloat),
                        v = some_values(B, 1, 1).view({B, 3});
    for (int64_t channel = 0; channel < 3; ++channel) {
      const torch::Tensor all = logistic_mixture_distribution(p, v, channel);
      ASSERT_EQ(all.sizes(), (std::vector<int64_t>{B, 256}));
      EXPECT_LE(
          (all.to(torch::kDouble).exp().sum(1) - 1).abs().max().item<double>(),
          3e-6)
          << c.name << " " << channel;
      // Equals log_prob of each value, for 16 x 16 pixels.
      torch::Tensor each = v.view({B, 1, 1, 3}).expand({B, 16, 16, 3}).clone();
      each.select(3, channel).copy_(torch::arange(256).view({16, 16}));
      const torch::Tensor wide =
          p.view({B, 10 * K, 1, 1}).expand({B, 10 * K, 16, 16});
      const torch::Tensor one =
          logistic_mixture_log_prob(wide, each).select(3, channel);
      EXPECT_TRUE(torch::allclose(one.reshape({B, 256}), all, 1e-5, 1e-5))
          << c.name << " " << channel;
      // Later channels are not read.
      torch::Tensor other = v.clone();
      other.narrow(1, channel, 3 - channel).fill_(-5);
      EXPECT_TRUE(
          torch::equal(logistic_mixture_distribution(p, other, channel), all));
    }
  }
}

TEST(LogisticMixture, GradientsAreFiniteDifferences) {
  const int64_t B = 1, H = 2, W = 3, K = 2;
  for (const Case& c : kCases) {
    torch::manual_seed(9);
    torch::Tensor p = parameters_of(c, {B, H, W}, K);
    const torch::Tensor v = some_values(B, H, W),
                        weight = torch::randn(v.sizes(), torch::kDouble);
    p.requires_grad_(true);
    (logistic_mixture_log_prob(p, v) * weight).sum().backward();
    const torch::Tensor grad = p.grad().clone();
    torch::NoGradGuard no_grad;
    const auto f = [&](const torch::Tensor& q) {
      return (logistic_mixture_log_prob(q, v) * weight).sum().item<double>();
    };
    constexpr double kStep = 1e-6;
    for (int64_t i = 0; i < p.numel(); ++i) {
      torch::Tensor up = p.detach().clone(), down = up.clone();
      up.view(-1)[i] += kStep, down.view(-1)[i] -= kStep;
      const double expected = (f(up) - f(down)) / (2 * kStep),
                   got = grad.view(-1)[i].item<double>();
      EXPECT_NEAR(got, expected, 1e-4 * (1 + std::abs(expected)))
          << c.name << " " << i;
    }
  }
}

TEST(LogisticMixture, FiniteForHugeParameters) {
  const int64_t H = 16, W = 16, K = 3;
  torch::Tensor v = torch::arange(256).view({1, H, W, 1}).repeat({1, 1, 1, 3});
  for (const double size : {30., 1e3, 1e5}) {
    torch::manual_seed(10);
    torch::Tensor p = size * torch::randn({1, 10 * K, H, W});
    p.requires_grad_(true);
    const torch::Tensor y = logistic_mixture_log_prob(p, v);
    EXPECT_TRUE(torch::isfinite(y).all().item<bool>()) << size;
    EXPECT_LE(y.max().item<double>(), 1e-6) << size;
    y.sum().backward();
    EXPECT_TRUE(torch::isfinite(p.grad()).all().item<bool>()) << size;
    const torch::Tensor pixels =
        p.detach().flatten(2).squeeze(0).t().contiguous();
    for (int64_t channel = 0; channel < 3; ++channel) {
      const torch::Tensor sums =
          logistic_mixture_distribution(pixels, v.view({256, 3}), channel)
              .to(torch::kDouble)
              .exp()
              .sum(1);
      EXPECT_LE((sums - 1).abs().max().item<double>(), 1e-5) << size;
    }
  }
}

TEST(LogisticMixture, LaterChannelsDoNotAffectEarlierOnes) {
  torch::manual_seed(11);
  const torch::Tensor p = parameters_of(kCases[0], {3, 4, 4}, 4)
                              .to(torch::kFloat),
                      v = some_values(3, 4, 4);
  const torch::Tensor y = logistic_mixture_log_prob(p, v);
  for (int64_t c = 0; c < 3; ++c) {
    torch::Tensor other = v.clone();
    other.select(3, c).copy_(255 - v.select(3, c));
    const torch::Tensor z = logistic_mixture_log_prob(p, other);
    EXPECT_TRUE(torch::equal(z.narrow(3, 0, c), y.narrow(3, 0, c)));
    for (int64_t later = c; later < 3; ++later)
      EXPECT_FALSE(torch::equal(z.select(3, later), y.select(3, later)));
  }
}

TEST(LogisticMixture, InvalidArguments) {
  const auto fails = [](const std::function<void()>& f,
                        const std::string& part) {
    try {
      f();
      ADD_FAILURE() << "no error, expected " << part;
    } catch (const c10::Error& e) {
      const std::string text = e.what_without_backtrace();
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  };
  const torch::Tensor p = torch::zeros({2, 20, 4, 5}),
                      v = torch::zeros({2, 4, 5, 3}, torch::kLong);
  const auto log_prob = [](const torch::Tensor& a, const torch::Tensor& b) {
    return [=] { logistic_mixture_log_prob(a, b); };
  };
  fails(log_prob(p.narrow(1, 0, 15), v), "[B, 10 K, H, W] = [2, 10 K, 4, 5]");
  fails(log_prob(p.transpose(2, 3), v), "got [2, 20, 5, 4]");
  fails(log_prob(p, v.to(torch::kFloat)), "int64 [B, H, W, 3]");
  fails(log_prob(p, v.narrow(3, 0, 1)), "got Long [2, 4, 5, 1]");
  fails(log_prob(p, v + 256), "in [0, 256), got 256");
  fails(log_prob(p, v - 1), "in [0, 256), got -1");
  const torch::Tensor q = torch::zeros({2, 20}), u = v[0][0].narrow(0, 0, 2);
  const auto all = [](const torch::Tensor& a, const torch::Tensor& b,
                      int64_t c) {
    return [=] { logistic_mixture_distribution(a, b, c); };
  };
  fails(all(p, u, 0), "parameters must be [B, 10 K]");
  fails(all(q, u.narrow(0, 0, 1), 0), "int64 [B, 3] = [2, 3]");
  fails(all(q, u, 3), "channel must be 0, 1 or 2, got 3");
  fails(all(q, u - 1, 1), "in [0, 256), got -1");
}

}  // namespace
}  // namespace aft::models
