// The modules: shapes, parameters, printing, cloning, saving, training,
// streaming, errors.
#include "aft/nn/aft.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <sstream>

#include "aft/ops/ops.h"

namespace aft::nn {
namespace {

using torch::Tensor;

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

/// Biases as far from their start as training takes them.
void shake(torch::nn::Module& m) {
  at::NoGradGuard no_grad;
  for (auto& p : m.named_parameters(false)) p.value().normal_(0, 1);
}

TEST(Modules, KeepTheShapeOfSelfAttention) {
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
  shake(*m);
  const Tensor x = torch::randn({2, kDim, 4, 6});
  const Tensor flat = m->forward_grid(x.flatten(2).transpose(1, 2), {4, 6});
  EXPECT_TRUE(
      torch::equal(m(x), flat.transpose(1, 2).reshape({2, kDim, 4, 6})));
}

TEST(Modules, AreTheirOperatorBetweenProjections) {
  torch::manual_seed(3);
  AFTLocal m(AFTLocalOptions(kDim, kLen, 5).rank(4).causal(true));
  shake(*m);
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
  const auto count = [](const torch::nn::Module& m) {
    int64_t n = 0;
    for (const auto& p : m.parameters()) n += p.numel();
    return n;
  };
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

TEST(Modules, ConvStartsAsSimpleAndReparameterisesPerHead) {
  torch::manual_seed(4);
  AFTConv m(AFTConvOptions(kDim, 3, {3, 3}));
  EXPECT_EQ(m->bias().abs().max().item<double>(), 0);
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
  const auto train = [](auto m, const Tensor& x) {
    std::ostringstream text;
    m->pretty_print(text);
    const bool window_only =
        text.str().find("window_only") != std::string::npos;
    std::vector<Tensor> before;
    for (const auto& p : m->parameters()) before.push_back(p.detach().clone());
    torch::optim::Adam adam(m->parameters(), 1e-2);
    for (int i = 0; i < 2; ++i) {
      adam.zero_grad();
      m->forward(x).pow(2).sum().backward();
      adam.step();
    }
    const auto names = m->named_parameters();
    for (size_t i = 0; i < before.size(); ++i) {
      // A constant added to all exponents cancels in num / den: no gradient but
      // rounding.
      if (names[i].key() == "key.bias" ||
          (window_only && names[i].key() == "beta"))
        continue;
      EXPECT_FALSE(torch::equal(before[i], names[i].value()))
          << m->name() << " " << names[i].key();
    }
  };
  for_each_causal([&](const auto& m) {
    train(m, torch::randn({3, kLen, kDim}));
  });
  train(std::make_shared<AFTConvImpl>(AFTConvOptions(kDim, 3, {3, 3})),
        torch::randn({3, kDim, 4, 5}));
  train(std::make_shared<AFTConvImpl>(
            AFTConvOptions(kDim, 3, {3, 3}).reparameterise(false)),
        torch::randn({3, kDim, 4, 5}));
}

TEST(Modules, StepEqualsForward) {
  for_each_causal([](const auto& m) {
    shake(*m);
    const Tensor x = torch::randn({2, kLen, kDim});
    const Tensor want = m->forward(x);
    ops::Stream stream = m->start(2);
    const int64_t bytes = stream.bytes();
    for (int64_t t = 0; t < kLen; ++t) {
      const Tensor y = m->step(x.select(1, t), stream);
      EXPECT_TRUE(torch::allclose(y, want.select(1, t), 1e-4, 1e-5))
          << m->name() << " at " << t;
    }
    EXPECT_EQ(stream.bytes(), bytes);
  });
}

TEST(Modules, StreamsAreSmall) {
  // facts: AFT-local-32, d = 256: (3 + 2 * 32) * 256 numbers a layer.
  AFTLocal m(AFTLocalOptions(256, 1024, 32).causal(true));
  EXPECT_EQ(m->start(1).bytes(), (3 + 2 * 32) * 256 * 4);
}

TEST(Modules, PrintCloneAndSave) {
  for_each_causal([](const auto& m) {
    shake(*m);
    std::ostringstream text;
    m->pretty_print(text);
    EXPECT_NE(text.str().find("(dim=12"), std::string::npos) << text.str();
    EXPECT_NE(text.str().find("causal=true"), std::string::npos) << text.str();

    const Tensor x = torch::randn({2, 9, kDim});
    const Tensor y = m->forward(x);
    auto copy = std::dynamic_pointer_cast<AFTLayer>(m->clone());
    ASSERT_TRUE(copy);
    EXPECT_TRUE(torch::equal(copy->forward(x), y));
    {
      at::NoGradGuard no_grad;
      for (auto& p : copy->parameters()) p.zero_();
    }
    EXPECT_TRUE(torch::equal(m->forward(x), y))
        << "a clone shares memory with its origin";

    std::stringstream file;
    torch::serialize::OutputArchive out;
    m->save(out);
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    copy->load(in);
    EXPECT_TRUE(torch::equal(copy->forward(x), y));
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

TEST(Modules, StandInASequential) {
  torch::nn::Sequential net(torch::nn::Linear(4, kDim),
                            AFTSimple(AFTSimpleOptions(kDim)),
                            AFTConv(AFTConvOptions(kDim, 3, {3})));
  EXPECT_EQ(net->forward(torch::randn({2, 5, 4})).sizes(),
            (at::IntArrayRef{2, 5, kDim}));
}

TEST(Modules, MaskedPositionsTakeNoPart) {
  for_each_causal([](const auto& m) {
    shake(*m);
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

TEST(Modules, SayWhatIsWrong) {
  const auto error = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "no error";
  };
  const auto has = [&](const std::string& text,
                       std::initializer_list<const char*> words) {
    for (const char* w : words)
      EXPECT_NE(text.find(w), std::string::npos)
          << "'" << w << "' in: " << text;
  };
  AFTLocal m(AFTLocalOptions(kDim, kLen, 5).rank(4));
  has(error([&] {
        m(torch::randn({2, 21, kDim}));
      }),
      {"AFTLocal", "21", "max_len = 20"});
  has(error([&] {
        m(torch::randn({2, 7, 5}));
      }),
      {"AFTLocal", "[B, T, 12]", "[2, 7, 5]"});
  has(error([&] { m->start(1); }), {"AFTLocal", "causal"});
  has(error([] {
        AFTConv(AFTConvOptions(12, 5, {3, 3}));
      }),
      {"AFTConv", "heads", "12", "5"});
  has(error([] {
        AFTConv(AFTConvOptions(12, 4, {3, 4}));
      }),
      {"AFTConv", "odd", "[3, 4]"});
  has(error([] {
        AFTConv(AFTConvOptions(12, 4, {3, 3}).causal(true));
      }),
      {"AFTConv", "causal", "2"});
  has(error([] {
        AFTConv(AFTConvOptions(12, 4, {3, 3}))(torch::randn({2, 12, 4}));
      }),
      {"AFTConv", "H, W", "[2, 12, 4]"});
  has(error([] { AFTSimple(AFTSimpleOptions(4).gate("sigmoyd")); }),
      {"AFTSimple", "gate", "sigmoyd", "softplus"});
  has(error([] { AFTLocal(AFTLocalOptions(4, 8, -1)); }),
      {"AFTLocal", "window", "-1"});
  has(error([] { AFTFull(AFTFullOptions(4, 0)); }),
      {"AFTFull", "max_len", "0"});
  AFTLocal causal(AFTLocalOptions(kDim, 2, 1).rank(4).causal(true));
  ops::Stream stream = causal->start(1);
  for (int i = 0; i < 2; ++i) causal->step(torch::randn({1, kDim}), stream);
  has(error([&] {
        causal->step(torch::randn({1, kDim}), stream);
      }),
      {"position 2", "max_len = 2"});
}

}  // namespace
}  // namespace aft::nn
