// The modules: shapes, parameters, printing, cloning, saving, training,
// streaming, errors.
#include "aft/nn/aft.h"

#include <sstream>
#include <string>
#include <vector>

#include "aft/ops/ops.h"
#include "tests/nn/mixer_checks.h"

namespace aft::nn {
namespace {

constexpr int64_t kDim = 12, kLen = 20;

/// One of each layer, causal, with all options at their defaults otherwise.
template <class F>
void for_each_causal(const F& f) {
  torch::manual_seed(1);
  f(std::make_shared<AFTSimpleImpl>(AFTSimpleOptions(kDim).causal(true)));
  f(std::make_shared<AFTFullImpl>(
      AFTFullOptions(kDim, kLen).rank(4).causal(true)));
  f(std::make_shared<AFTFullImpl>(
      AFTFullOptions(kDim, kLen).dense(true).causal(true)));
  f(std::make_shared<AFTLocalImpl>(
      AFTLocalOptions(kDim, kLen, 5).rank(4).causal(true)));
  f(std::make_shared<AFTLocalImpl>(
      AFTLocalOptions(kDim, kLen, 5).rank(4).causal(true).window_only(true)));
  f(std::make_shared<AFTLocalImpl>(
      AFTLocalOptions(kDim, kLen, 100).dense(true).causal(true).gate("tanh")));
  f(std::make_shared<AFTLocalImpl>(
      AFTLocalOptions(kDim, kLen, 0).causal(true)));
  f(std::make_shared<AFTConvImpl>(AFTConvOptions(kDim, 4, {6}).causal(true)));
  f(std::make_shared<AFTConvImpl>(AFTConvOptions(kDim, 4, {6})
                                      .causal(true)
                                      .window_only(true)
                                      .gate("none")));
}

/// Sets the position biases to the magnitude that they have after training.
void shake_biases(torch::nn::Module& m) {
  at::NoGradGuard no_grad;
  for (auto& p : m.named_parameters(false)) p.value().normal_(0, 1);
}

TEST(Modules, KeepTheShape) {
  for_each_causal([](const auto& m) {
    for (int64_t T : {1, 7, 20})
      EXPECT_EQ(m->forward(torch::randn({3, T, kDim})).sizes(),
                (at::IntArrayRef{3, T, kDim}));
  });
  AFTConv grid(AFTConvOptions(kDim, 3, {3, 5}));
  EXPECT_EQ(grid(torch::randn({2, kDim, 4, 6})).sizes(),
            (at::IntArrayRef{2, kDim, 4, 6}));
  EXPECT_EQ(grid(torch::randn({2, kDim, 9, 2})).sizes(),
            (at::IntArrayRef{2, kDim, 9, 2}));
  AFTConv volume(AFTConvOptions(kDim, 3, {3, 3, 3}));
  EXPECT_EQ(volume(torch::randn({2, kDim, 2, 3, 4})).sizes(),
            (at::IntArrayRef{2, kDim, 2, 3, 4}));
}

TEST(Modules, GridsAreSequencesInRowMajorOrder) {
  torch::manual_seed(2);
  AFTConv m(AFTConvOptions(kDim, 3, {3, 5}));
  shake_biases(*m);
  const Tensor x = torch::randn({2, kDim, 4, 6});
  const Tensor flat = m->forward_grid(x.flatten(2).transpose(1, 2), {4, 6});
  EXPECT_TRUE(
      torch::equal(m(x), flat.transpose(1, 2).reshape({2, kDim, 4, 6})));
}

TEST(Modules, EqualTheirOperatorBetweenProjections) {
  torch::manual_seed(3);
  AFTLocal m(AFTLocalOptions(kDim, kLen, 5).rank(4).causal(true));
  shake_biases(*m);
  const Tensor x = torch::randn({2, 11, kDim});
  ops::Common common;
  common.causal = true;
  const Tensor y =
      ops::local(m->query(x), m->key(x), m->value(x), 5,
                 {m->u.narrow(0, 0, 11), m->v.narrow(0, 0, 11), c10::nullopt},
                 false, common);
  EXPECT_TRUE(torch::equal(m(x), m->out(y)));
  AFTLocal bare(AFTLocalOptions(kDim, kLen, 5).out(false));
  EXPECT_FALSE(bare->out);
  AFTSimple no_query(AFTSimpleOptions(kDim).gate("none"));
  EXPECT_FALSE(no_query->query);
}

TEST(Modules, HaveTheParametersOfThePaper) {
  // CIFAR-10, d = 256, T = 3072: 0.59 and 9.63 M without biases and output
  // projection (the paper prints 0.6 and 9.6).
  const int64_t biases = 3 * 256;
  EXPECT_EQ(
      count(*AFTLocal(AFTLocalOptions(256, 3072, 256).rank(64).out(false))),
      589824 + biases);
  EXPECT_EQ(
      count(*AFTLocal(AFTLocalOptions(256, 3072, 256).dense(true).out(false))),
      9633792 + biases);
  const AFTConv conv(AFTConvOptions(384, 16, {11, 11}));
  EXPECT_EQ(count(*conv),
            3 * (384 * 384 + 384) + 384 * 16 + 16 + 16 * 121 + 32);
  EXPECT_EQ(conv->gamma.abs().sum().item<double>() +
                conv->beta.abs().sum().item<double>(),
            0);
  EXPECT_NEAR(conv->w.std().item<double>(), 0.02,
              0.002);  // a constant w would never learn
  const AFTFull full(AFTFullOptions(8, 500).rank(40));
  EXPECT_NEAR(full->u.std().item<double>(), 0.01, 0.001);
  EXPECT_NEAR(full->v.std().item<double>(), 0.01, 0.001);
}

TEST(Modules, ConvIsInitiallySimpleAndReparameterisesPerHead) {
  torch::manual_seed(4);
  AFTConv m(AFTConvOptions(kDim, 3, {3, 3}));
  EXPECT_EQ(largest(m->bias()), 0);
  {
    at::NoGradGuard no_grad;
    m->gamma.copy_(torch::tensor({1., 2., 3.}));
    m->beta.copy_(torch::tensor({-1., 0., 1.}));
  }
  const Tensor flat = m->bias().flatten(1);
  EXPECT_TRUE(torch::allclose(flat.mean(1), m->beta, 1e-5, 1e-5));
  EXPECT_TRUE(torch::allclose(flat.std(1, false), m->gamma, 1e-3, 1e-3));
}

TEST(Modules, EveryParameterMovesWithinTwoSteps) {
  // A constant added to all exponents cancels in num / den, so its gradient is
  // only rounding.
  const auto train = [](Mixer& m, const Tensor& x) {
    const bool window_only =
        printed(m).find("window_only") != std::string::npos;
    expect_parameters_move(m, x, {"key.bias", window_only ? "beta" : ""});
  };
  for_each_causal([&](const auto& m) {
    train(*m, torch::randn({3, kLen, kDim}));
  });
  AFTConvOptions grid(kDim, 3, {3, 3});
  train(*AFTConv(grid), torch::randn({3, kDim, 4, 5}));
  train(*AFTConv(grid.reparameterise(false)), torch::randn({3, kDim, 4, 5}));
}

TEST(Modules, StepEqualsForward) {
  for_each_causal([](const auto& m) {
    SCOPED_TRACE(m->name());
    shake_biases(*m);
    const Tensor x = torch::randn({2, kLen, kDim});
    expect_step_is_forward(*m, x, m->start(2).bytes() / 4);
    expect_packs(*m, x);
  });
}

TEST(Modules, StreamsAreSmall) {
  // aft-local, window 32, d = 256: (3 + 2 * 32) * 256 elements per layer.
  AFTLocal m(AFTLocalOptions(256, 1024, 32).causal(true));
  EXPECT_EQ(m->start(1).bytes(), (3 + 2 * 32) * 256 * 4);
}

TEST(Modules, PrintCloneAndSave) {
  for_each_causal([](const auto& m) {
    shake_biases(*m);
    const std::string text = printed(*m);
    EXPECT_NE(text.find("(dim=12"), std::string::npos) << text;
    EXPECT_NE(text.find("causal=true"), std::string::npos) << text;
    expect_clones_and_saves(*m, torch::randn({2, 9, kDim}));
  });
  std::ostringstream text;
  text << AFTConv(AFTConvOptions(12, 3, {3, 5}).window_only(true).out(false));
  EXPECT_EQ(text.str(),
            "AFTConv(dim=12, heads=3, kernel=[3, 5], window_only=true, "
            "causal=false, out=false, gate=sigmoid)(\n"
            "  (query): torch::nn::Linear(in_features=12, out_features=12, "
            "bias=true)\n"
            "  (key): torch::nn::Linear(in_features=12, out_features=3, "
            "bias=true)\n"
            "  (value): torch::nn::Linear(in_features=12, out_features=12, "
            "bias=true)\n)");
}

TEST(Modules, WorkInASequential) {
  torch::nn::Sequential net(torch::nn::Linear(4, kDim),
                            AFTSimple(AFTSimpleOptions(kDim)),
                            AFTConv(AFTConvOptions(kDim, 3, {3})));
  EXPECT_EQ(net->forward(torch::randn({2, 5, 4})).sizes(),
            (at::IntArrayRef{2, 5, kDim}));
}

TEST(Modules, MaskedPositionsAreIgnored) {
  for_each_causal([](const auto& m) {
    shake_biases(*m);
    const Tensor x = torch::randn({1, 9, kDim});
    Tensor mask = torch::zeros({1, 9}, torch::kBool);
    mask[0][3] = true;
    Tensor other = x.clone();
    other[0][3] +=
        5;  // changes row 3 itself, through its query, and nothing else
    const Tensor a = m->forward(x, mask), b = m->forward(other, mask);
    EXPECT_TRUE(torch::equal(a.narrow(1, 4, 5), b.narrow(1, 4, 5)))
        << m->name();
  });
}

TEST(Modules, InvalidArguments) {
  AFTLocal m(AFTLocalOptions(kDim, kLen, 5).rank(4));
  expect_error(
      [&] {
        m(torch::randn({2, 21, kDim}));
      },
      {"AFTLocal", "21", "max_len = 20"});
  expect_error(
      [&] {
        m(torch::randn({2, 7, 5}));
      },
      {"AFTLocal", "[B, T, 12]", "[2, 7, 5]"});
  expect_error([&] { m->start(1); }, {"AFTLocal", "causal"});
  expect_error(
      [] {
        AFTConv(AFTConvOptions(12, 5, {3, 3}));
      },
      {"AFTConv", "heads", "12", "5"});
  expect_error(
      [] {
        AFTConv(AFTConvOptions(12, 4, {3, 4}));
      },
      {"AFTConv", "odd", "[3, 4]"});
  expect_error(
      [] {
        AFTConv(AFTConvOptions(12, 4, {3, 3}).causal(true));
      },
      {"AFTConv", "causal", "2"});
  expect_error(
      [] {
        AFTConv(AFTConvOptions(12, 4, {3, 3}))(torch::randn({2, 12, 4}));
      },
      {"AFTConv", "H, W", "[2, 12, 4]"});
  expect_error([] { AFTSimple(AFTSimpleOptions(4).gate("sigmoyd")); },
               {"AFTSimple", "gate", "sigmoyd", "softplus"});
  expect_error([] { AFTLocal(AFTLocalOptions(4, 8, -1)); },
               {"AFTLocal", "window", "-1"});
  expect_error([] { AFTFull(AFTFullOptions(4, 0)); },
               {"AFTFull", "max_len", "0"});
  AFTLocal causal(AFTLocalOptions(kDim, 2, 1).rank(4).causal(true));
  ops::Stream stream = causal->start(1);
  for (int i = 0; i < 2; ++i) causal->step(torch::randn({1, kDim}), stream);
  expect_error(
      [&] {
        causal->step(torch::randn({1, kDim}), stream);
      },
      {"position 2", "max_len = 2"});
}

}  // namespace
}  // namespace aft::nn
