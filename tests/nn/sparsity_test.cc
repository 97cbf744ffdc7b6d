// Sparse kernels of AFTConv: their entropy, and one position per head by Gumbel
// samples, against double loops and against the dense operator.
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "aft/nn/aft.h"
#include "aft/nn/block.h"
#include "tests/nn/mixer_checks.h"

namespace aft::nn {
namespace {

constexpr int64_t kDim = 12, kHeads = 4;

AFTConv conv(std::vector<int64_t> kernel, double gumbel, bool naive = true,
             bool causal = false, bool window_only = false) {
  AFTConv m(AFTConvOptions(kDim, kHeads, std::move(kernel))
                .reparameterise(!naive)
                .causal(causal)
                .window_only(window_only)
                .gumbel(gumbel));
  m->to(torch::kDouble);
  torch::NoGradGuard no_grad;
  for (auto& p : m->named_parameters(/*recurse=*/false)) p.value().normal_();
  return m;
}

struct Two : torch::nn::Module {
  Two() {
    a = register_module("a", conv({3, 5}, 0));
    b = register_module("b", conv({7}, 0, /*naive=*/false));
  }
  AFTConv a{nullptr}, b{nullptr};
};

/// The entropy and the largest element of softmax(w), for w of one head.
std::pair<double, double> plain(const torch::Tensor& w) {
  const torch::Tensor flat = w.flatten().to(torch::kDouble);
  const double* x = flat.data_ptr<double>();
  double sum = 0, entropy = 0, top = 0;
  for (int64_t i = 0; i < flat.numel(); ++i) sum += std::exp(x[i]);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double p = std::exp(x[i]) / sum;
    entropy -= p * std::log(p), top = std::max(top, p);
  }
  return {entropy, top};
}

/// The gradients of f at x by finite differences.
torch::Tensor differences(torch::Tensor x, const std::function<double()>& f) {
  torch::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  torch::Tensor out = torch::zeros_like(x);
  double *at = x.data_ptr<double>(), *to = out.data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double here = at[i];
    at[i] = here + kStep;
    const double up = f();
    at[i] = here - kStep;
    to[i] = (up - f()) / (2 * kStep);
    at[i] = here;
  }
  return out;
}

TEST(Entropy, MatchesItsDefinition) {
  torch::manual_seed(1);
  Two model;
  double entropy = 0, most = 0, top = 0;
  for (const auto& m : {model.a, model.b}) {
    const torch::Tensor w = m->kernels();
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto [e, t] = plain(w[h]);
      entropy += e, top += t;
      most += std::log(static_cast<double>(w[h].numel()));
    }
  }
  EXPECT_NEAR(kernel_entropy(model).item<double>(), entropy, 1e-12);
  const auto s = sparsity(model);
  ASSERT_TRUE(s);
  EXPECT_NEAR(s->entropy, entropy / (2 * kHeads), 1e-12);
  EXPECT_NEAR(s->most, most / (2 * kHeads), 1e-12);
  EXPECT_NEAR(s->top, top / (2 * kHeads), 1e-12);
}

TEST(Entropy, RangesFromUniformToOnePosition) {
  AFTConv fresh(AFTConvOptions(kDim, kHeads, {3, 3}));
  const auto uniform = sparsity(*fresh);
  EXPECT_NEAR(uniform->entropy, std::log(9), 1e-6);
  EXPECT_NEAR(uniform->top, 1.0 / 9, 1e-7);
  AFTConv sharp = conv({3, 3}, 0);
  {
    torch::NoGradGuard no_grad;
    sharp->w.zero_().select(2, 1).select(1, 2).fill_(1e4);
  }
  const auto one = sparsity(*sharp);
  EXPECT_EQ(one->top, 1);
  EXPECT_EQ(one->entropy, 0);  // 0 log 0 counts as 0
  const torch::Tensor entropy = kernel_entropy(*sharp);
  entropy.backward();
  EXPECT_TRUE(is_finite(sharp->w.grad()));
}

TEST(Entropy, IsUndefinedWithoutKernels) {
  AFTSimple simple{AFTSimpleOptions(kDim)};
  EXPECT_FALSE(sparsity(*simple));
  EXPECT_FALSE(kernel_entropy(*simple).defined());
}

TEST(Entropy, GradientsAreFiniteDifferences) {
  torch::manual_seed(2);
  Two model;
  kernel_entropy(model).backward();
  for (const torch::Tensor& p : {model.a->w, model.b->w, model.b->gamma}) {
    const torch::Tensor expected = differences(
        p.detach(), [&] { return kernel_entropy(model).item<double>(); });
    EXPECT_LT(distance(p.grad(), expected), 1e-8);
  }
  // Adding a constant to all taps has no effect.
  EXPECT_LT(largest(model.b->beta.grad()), 1e-12);
}

// ---- Gumbel -----------------------------------------------------------------

TEST(Gumbel, SamplesDependOnTheSeed) {
  torch::manual_seed(3);
  AFTConv m = conv({3, 3}, 0.5);
  m->redraw(7);
  const torch::Tensor first = m->bias();
  EXPECT_TRUE(torch::equal(first, m->bias()));
  m->redraw(8);
  EXPECT_FALSE(torch::equal(first, m->bias()));
  m->redraw(7);
  EXPECT_TRUE(torch::equal(first, m->bias()));
  const torch::Tensor shares = (first / m->kernels()).flatten(1);
  EXPECT_TRUE(shares.ge(0).all().item<bool>());
  EXPECT_LT(distance(shares.sum(1), torch::ones({kHeads})), 1e-12);
}

TEST(Gumbel, WithoutASeedUsesTorchsGenerator) {
  AFTConv m = conv({5}, 0.5);
  torch::manual_seed(4);
  const torch::Tensor a = m->bias(), b = m->bias();
  EXPECT_FALSE(torch::equal(a, b));
  torch::manual_seed(4);
  EXPECT_TRUE(torch::equal(a, m->bias()));
}

/// tau log share = w + g up to a constant, so that two temperatures and one
/// seed give the same differences between taps.
TEST(Gumbel, TheTemperatureDividesWeightsAndNoise) {
  torch::manual_seed(5);
  AFTConv warm = conv({5}, 2), cold = conv({5}, 0.5);
  {
    torch::NoGradGuard no_grad;
    cold->w.copy_(warm->w);
  }
  warm->redraw(9), cold->redraw(9);
  const auto scores = [](const AFTConv& m) {
    const torch::Tensor s =
        (m->bias() / m->kernels()).log() * m->options.gumbel();
    return s - s.select(1, 0).unsqueeze(1);
  };
  EXPECT_LT(distance(scores(warm), scores(cold)), 1e-9);
}

/// The largest of w + g is tap i with probability softmax(w)_i.
TEST(Gumbel, TheLargestTapFollowsTheSoftmax) {
  AFTConv m = conv({3}, 0.5);
  {
    torch::NoGradGuard no_grad;
    m->w.copy_(torch::tensor({-1.0, 0.5, 1.0}).expand({kHeads, 3}));
  }
  constexpr int kDraws = 5000;
  torch::Tensor hits = torch::zeros({3}, torch::kDouble);
  for (int i = 0; i < kDraws; ++i) {
    m->redraw(static_cast<uint64_t>(i));
    const torch::Tensor at = (m->bias() / m->kernels()).argmax(1);
    hits += torch::one_hot(at, 3).sum(0).to(torch::kDouble);
  }
  // About five standard deviations.
  EXPECT_LT(distance(hits / (kDraws * kHeads), m->w.detach()[0].softmax(0)),
            0.018);
}

TEST(Gumbel, GradientsAreFiniteDifferences) {
  torch::manual_seed(6);
  for (const bool naive : {true, false}) {
    AFTConv m = conv({3, 3}, 0.5, naive);
    const torch::Tensor x = torch::randn({2, 12, kDim}, torch::kDouble),
                        dy = torch::randn({2, 12, kDim}, torch::kDouble);
    const auto loss = [&] {
      m->redraw(11);
      return (m->forward_grid(x, {3, 4}) * dy).sum();
    };
    loss().backward();
    for (const auto& p : m->named_parameters()) {
      const torch::Tensor expected = differences(
          p.value().detach(), [&] { return loss().item<double>(); });
      EXPECT_LT(distance(p.value().grad(), expected),
                1e-6 * (1 + largest(expected)))
          << p.key() << (naive ? ", naive" : "");
    }
  }
}

/// In evaluation: the dense operator with the one-hot w.
TEST(Gumbel, InferenceHasOnePositionPerHead) {
  torch::manual_seed(7);
  struct Case {
    std::vector<int64_t> kernel, grid;
    bool causal, window_only;
  };
  for (const Case& c :
       {Case{{3, 5}, {4, 6}, false, false},
        Case{{3, 3, 3}, {2, 3, 4}, false, false}, Case{{7}, {24}, false, false},
        Case{{6}, {24}, true, false}, Case{{3, 5}, {4, 6}, false, true}}) {
    AFTConv sparse = conv(c.kernel, 0.5, false, c.causal, c.window_only),
            dense = conv(c.kernel, 0, true, c.causal, c.window_only);
    sparse->eval(), dense->eval();
    const torch::Tensor w = sparse->bias(), all = sparse->kernels();
    EXPECT_TRUE(torch::equal(w.ne(0).flatten(1).sum(1),
                             torch::ones({kHeads}, torch::kLong)));
    EXPECT_TRUE(torch::equal(w.flatten(1).sum(1), all.flatten(1).amax(1)));
    torch::NoGradGuard no_grad;
    dense->w.copy_(w);
    for (const char* name : {"query", "key", "value", "out"}) {
      for (const char* part : {".weight", ".bias"}) {
        const std::string key = std::string(name) + part;
        dense->named_parameters()[key].copy_(sparse->named_parameters()[key]);
      }
    }
    const torch::Tensor x = torch::randn({2, 24, kDim}, torch::kDouble);
    torch::Tensor mask = torch::zeros({2, 24}, torch::kBool);
    mask[1].narrow(0, 20, 4).fill_(true);
    for (const torch::Tensor& hidden : {torch::Tensor(), mask})
      EXPECT_LT(distance(sparse->forward_grid(x, c.grid, hidden),
                         dense->forward_grid(x, c.grid, hidden)),
                1e-12);
    if (!c.causal) continue;
    ops::Stream stream = sparse->start(2);
    const torch::Tensor whole = sparse->forward(x);
    for (int64_t t = 0; t < 24; ++t)
      EXPECT_LT(
          distance(sparse->step(x.select(1, t), stream), whole.select(1, t)),
          1e-12);
  }
}

TEST(Gumbel, PackedEqualsUnpacked) {
  torch::manual_seed(8);
  AFTConv m(AFTConvOptions(16, 4, {5, 5}).gumbel(0.5));
  shake(*m);
  m->eval();
  torch::NoGradGuard no_grad;
  const torch::Tensor x = torch::randn({2, 49, 16}),
                      before = m->forward_grid(x, {7, 7});
  m->pack_for_inference();
  EXPECT_LT(distance(m->forward_grid(x, {7, 7}), before), 1e-5);
  m->train();  // packed for inference, in either mode
  EXPECT_LT(distance(m->forward_grid(x, {7, 7}), before), 1e-5);
}

TEST(Gumbel, BlocksAreReproducedFromTheSeed) {
  torch::manual_seed(9);
  MixerOptions o;
  o.kind = "aft-conv", o.dim = kDim, o.grid = 2, o.causal = false;
  o.values = {{"heads", kHeads}, {"window", 3}, {"gumbel", 0.5}};
  Block block{BlockOptions(o)};
  shake(*block);
  const torch::Tensor x = torch::randn({2, 12, kDim}).requires_grad_(true);
  const auto gradients = [&](bool again) {
    block->zero_grad();
    const torch::Tensor y =
        again ? recomputed(block, x, 5, {3, 4}) : block->forward(x, 5, {3, 4});
    (y * y).sum().backward();
    return std::make_pair(y.detach(), block->parameters()[2].grad().clone());
  };
  const auto kept = gradients(false), redone = gradients(true);
  EXPECT_TRUE(torch::equal(kept.first, redone.first));
  EXPECT_TRUE(torch::equal(kept.second, redone.second));
  EXPECT_FALSE(torch::equal(kept.first, block->forward(x, 6, {3, 4})));
}

TEST(Gumbel, StaysFiniteForEveryFiniteKernel) {
  for (const double size : {1e4, 1e30, 1e38}) {
    AFTConv m(AFTConvOptions(kDim, kHeads, {3, 3})
                  .reparameterise(false)
                  .gumbel(0.01));
    {
      torch::NoGradGuard no_grad;
      m->w.normal_().sign_().mul_(size);
    }
    const torch::Tensor w = m->bias();
    EXPECT_TRUE(is_finite(w)) << size;
    const torch::Tensor y =
        m->forward_grid(torch::randn({1, 12, kDim}), {3, 4});
    EXPECT_TRUE(is_finite(y)) << size;
    m->eval();
    EXPECT_TRUE(is_finite(m->forward_grid(torch::randn({1, 12, kDim}), {3, 4})))
        << size;
  }
}

TEST(Gumbel, Errors) {
  for (const double bad : std::vector<double>{-0.5, 0.001, 101, NAN, INFINITY})
    EXPECT_NE(message([&] {
                AFTConv m(AFTConvOptions(kDim, kHeads, {3}).gumbel(bad));
              })
                  .find("AFTConv: gumbel must be 0 (off) or a temperature in "
                        "[0.01, 100], got"),
              std::string::npos);
  MixerOptions o;
  o.kind = "aft-local", o.dim = kDim, o.max_len = 8;
  o.values = {{"gumbel", 0.5}};
  EXPECT_EQ(message([&] { make_mixer(o); }),
            "mixer: gumbel is for aft-conv and must be 0 for aft-local, got "
            "0.5");
  EXPECT_EQ(printed(*AFTConv(AFTConvOptions(kDim, kHeads, {3}).gumbel(0.5))),
            "AFTConv(dim=12, heads=4, kernel=[3], gumbel=0.5, causal=false, "
            "out=true, gate=sigmoid)");
}

}  // namespace
}  // namespace aft::nn
