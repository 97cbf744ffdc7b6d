// Performer attention against plain double loops over its features, and against
// softmax attention, which it estimates: gradients, causality, streaming,
// features and memory.
#include "aft/nn/performer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "aft/nn/attention.h"
#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"
#include "tests/nn/prefix_checks.h"

namespace aft::nn {
namespace {

Performer make(int64_t dim, int64_t heads, bool causal) {
  Performer m(PerformerOptions(dim, heads).causal(causal));
  m->to(torch::kDouble);
  return m;
}

/// phi(x) of x [d], without stabilisation.
Numbers phi(const double* x, const Tensor& omega) {
  const auto w = omega.accessor<double, 2>();
  const auto m = w.size(0), d = w.size(1);
  Numbers e(m);
  for (int64_t f = 0; f < m; ++f) {
    double dot = 0, square = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double hat = x[i] / std::pow(d, 0.25);
      dot += w[f][i] * hat, square += hat * hat;
    }
    e[f] = std::exp(dot - square / 2);
  }
  const double most = *std::max_element(e.begin(), e.end());
  for (double& f : e) f = (f + 1e-6 * most) / std::sqrt(m);
  return e;
}

/// The equation, per row and head.
Tensor oracle(const Performer& m, const Tensor& x, const Tensor& mask) {
  const int64_t heads = m->options.heads(), dim = m->options.dim(),
                d = dim / heads;
  return PlainMixer{heads,
                    m->out,
                    sees_all(m->options.causal()),
                    [&](const Matrix& in) {
                      Matrix rows;
                      for (const Numbers& p : affine(m->qkv, in)) {
                        Numbers row;  // the features of q and k, and v
                        for (int64_t h = 0; h < 2 * heads; ++h)
                          for (double f : phi(p.data() + h * d, m->omega))
                            row.push_back(f);
                        row.insert(row.end(), p.begin() + 2 * dim, p.end());
                        rows.push_back(row);
                      }
                      return rows;
                    },
                    dot(heads, m->omega.size(0)),
                    [](Numbers& weights) {
                      double sum = 0;
                      for (double w : weights) sum += w;
                      for (double& w : weights) w /= sum;
                    }}(x, mask);
}

TEST(Performer, MatchesItsDefinition) {
  torch::manual_seed(1);
  using Four = std::array<int64_t, 4>;
  for (bool causal : {true, false})
    for (bool masked : {false, true})
      for (double scale : {1., 10.})
        for (const auto& [B, T, dim, heads] :
             {Four{2, 1, 4, 2}, Four{1, 2, 3, 3}, Four{2, 13, 6, 1},
              Four{1, 32, 8, 2}, Four{2, 131, 12, 3}, Four{1, 80, 64, 1}}) {
          SCOPED_TRACE(::testing::Message()
                       << T << " of " << dim << (causal ? " causal" : "")
                       << (masked ? " mask" : "") << " times " << scale);
          Performer m = make(dim, heads, causal);
          const Tensor x = scale * torch::randn({B, T, dim}, torch::kDouble),
                       mask = masked ? some_padded(B, T) : Tensor();
          const Tensor want = oracle(m, x, mask);
          // Exponents in the hundreds exceed the precision of float.
          if (scale > 1)
            EXPECT_LE(distance(m(x, mask), want), 1e-11);
          else
            expect_result(*m, x, mask, want, 1e-11);
        }
}

INSTANTIATE_TYPED_TEST_SUITE_P(Performer, PrefixMixer, Performer);

TEST(Performer, StepEqualsForward) {
  torch::manual_seed(5);
  // (S, z) of three heads with 5 features and 4 values, and a maximum per head.
  expect_step_is_forward(*Performer(PerformerOptions(12, 3).causal(true)),
                         torch::randn({2, 150, 12}), 2 * 3 * (5 * 5 + 1));
}

TEST(Performer, Prints) {
  EXPECT_EQ(
      printed(*Performer(PerformerOptions(12, 3).causal(true))),
      "Performer(dim=12, heads=3, features=5, redraw_every=1000, causal=true)");
}

constexpr int kDraws = 64;

/// The error of kDraws draws of m features relative to softmax attention with
/// the same weights: the mean of the squared errors, and the square of the mean
/// error, averaged over the elements of the result.
struct Errors {
  double all, mean;
};
Errors errors(Attention exact, const Tensor& x, int64_t m) {
  Performer estimate(PerformerOptions(16, 2)
                         .causal(exact->options.causal())
                         .features(m)
                         .redraw_every(1));
  estimate->qkv = exact->qkv, estimate->out = exact->out;
  estimate->to(torch::kDouble);
  const Tensor want = exact->forward(x);
  Tensor sum = torch::zeros_like(want);
  double all = 0;
  for (int i = 0; i < kDraws; ++i) {
    estimate->redraw(static_cast<uint64_t>(1000 * m + i));
    const Tensor error = estimate->forward(x) - want;
    sum += error;
    all += error.square().mean().item<double>();
  }
  return {all / kDraws, (sum / kDraws).square().mean().item<double>()};
}

// The squared error of m features falls as 1 / m. The estimate is unbiased: the
// squared error of the mean of n draws is 1 / n of that of one draw.
TEST(Performer, ConvergesToSoftmaxAttention) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(8);
  for (bool causal : {true, false}) {
    Attention exact(AttentionOptions(16, 2).causal(causal));
    exact->to(torch::kDouble);
    // Small inputs: for long queries, rare draws determine the mean.
    const Tensor x = 0.3 * torch::randn({2, 40, 16}, torch::kDouble);
    double last = 0;
    for (int64_t m : {16, 256, 4096}) {
      const Errors now = errors(exact, x, m);
      std::printf("m = %4d: error %.1e, its mean %.2f / n of it\n",
                  static_cast<int>(m), std::sqrt(now.all),
                  kDraws * now.mean / now.all);
      if (m > 16) {
        EXPECT_NEAR(std::log(last / now.all) / std::log(16.), 1, 0.25) << m;
        EXPECT_LT(now.mean, 3 * now.all / kDraws) << m;
      }
      last = now.all;
    }
  }
}

TEST(Performer, FeaturesAreGaussianAndOrthogonalInBlocks) {
  torch::manual_seed(10);
  const int64_t d = 8, m = 20, draws = 4000;
  Tensor all = torch::empty({draws, m, d}, torch::kDouble);
  for (int64_t i = 0; i < draws; ++i) all[i] = orthogonal_features(m, d);
  const Tensor products = torch::matmul(all, all.transpose(1, 2)).abs();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < i; ++j) {
      const double most =
          products.select(1, i).select(1, j).max().item<double>();
      if (i / d == j / d)
        EXPECT_LT(most, 1e-12) << i << " " << j;
      else
        EXPECT_GT(most, 1e-3) << i << " " << j;
    }
  // Each row is distributed as N(0, 1)^d, also the first one of a block: no
  // side is preferred, and squared norms are chi^2 with d degrees of freedom.
  const double few = 5 / std::sqrt(draws);
  EXPECT_LT(all.mean(0).abs().max().item<double>(), few);
  EXPECT_LT((all.square().mean(0) - 1).abs().max().item<double>(), 2 * few);
  const Tensor norms = all.square().sum(2);
  EXPECT_LT((norms.mean(0) - d).abs().max().item<double>(), few * 4);
  EXPECT_LT((norms.var(0) / (2 * d) - 1).abs().max().item<double>(), 3 * few);
}

TEST(Performer, NumberOfFeatures) {
  const auto features = [](int64_t dim, int64_t heads, int64_t wanted) {
    return Performer(PerformerOptions(dim, heads).features(wanted))->features();
  };
  EXPECT_EQ(features(64, 1, 0), 266);
  EXPECT_EQ(features(512, 8, 0), 266);
  EXPECT_EQ(features(4, 4, 0), 1);
  EXPECT_EQ(features(4, 2, 0), 1);
  EXPECT_EQ(features(12, 2, 31), 31);
  EXPECT_EQ(count(*Performer(PerformerOptions(12, 2))), 4 * 12 * 12 + 4 * 12);
}

TEST(Performer, RedrawDependsOnlyOnTheSeed) {
  torch::manual_seed(11);
  const auto make = [](int64_t every) {
    return Performer(PerformerOptions(8, 2).causal(true).redraw_every(every));
  };
  Performer m = make(5), other = make(5), never = make(0);
  const Tensor x = torch::randn({1, 9, 8});
  const Tensor first = m->omega.clone(), old = never->omega.clone();
  for (uint64_t seed : {1, 2, 3, 4, 6}) m->redraw(seed);
  EXPECT_TRUE(torch::equal(m->omega, first));
  EXPECT_FALSE(torch::equal(other->omega, first));
  m->redraw(10), other->redraw(10), never->redraw(10);
  EXPECT_FALSE(torch::equal(m->omega, first));
  EXPECT_TRUE(torch::equal(m->omega, other->omega));
  EXPECT_TRUE(torch::equal(never->omega, old));
  const Tensor tenth = m->omega.clone();
  torch::rand({3});  // the state of torch's generator must have no effect
  m->redraw(15);
  EXPECT_FALSE(torch::equal(m->omega, tenth));
  m->redraw(10);
  EXPECT_TRUE(torch::equal(m->omega, tenth));
  // omega is a buffer: it is saved, and forward and step use it.
  EXPECT_TRUE(torch::equal(m->named_buffers()["omega"], tenth));
  const Tensor y = m->forward(x);
  ops::Stream stream = m->start(1);
  EXPECT_TRUE(torch::allclose(m->step(x.select(1, 0), stream), y.select(1, 0)));
  m->eval();
  EXPECT_TRUE(torch::equal(m->forward(x), y));
  EXPECT_TRUE(torch::equal(m->omega, tenth));
}

TEST(Performer, TheIntervalOfRedrawsIsAConfigurationKey) {
  MixerOptions options;
  options.kind = "performer", options.dim = 8, options.max_len = 9;
  options.values = {{"heads", int64_t{2}}, {"redraw_every", int64_t{0}}};
  const auto m = std::dynamic_pointer_cast<PerformerImpl>(make_mixer(options));
  ASSERT_TRUE(m);
  EXPECT_EQ(m->options.redraw_every(), 0);
  EXPECT_EQ(performer_kind().defaults.at("redraw_every"),
            OptionValue(int64_t{1000}));
}

TEST(Performer, BackwardUsesTheFeaturesOfItsForward) {
  torch::manual_seed(12);
  Performer m(PerformerOptions(8, 2).causal(true).redraw_every(1));
  const auto gradient = [&](bool between) {
    m->redraw(1);
    const Tensor x = torch::ones({1, 20, 8}).cumsum(1).sin().requires_grad_();
    const Tensor y = m->forward(x);
    if (between) m->redraw(2);
    y.square().sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(torch::equal(gradient(false), gradient(true)));
}

TEST(Performer, InvalidArguments) {
  EXPECT_EQ(message([] { Performer(PerformerOptions(12, 3).features(-1)); }),
            "Performer: features must be 0 or more, got -1");
  EXPECT_EQ(
      message([] { Performer(PerformerOptions(12, 3).redraw_every(-2)); }),
      "Performer: redraw_every must be 0 or more, got -2");
}

}  // namespace
}  // namespace aft::nn
