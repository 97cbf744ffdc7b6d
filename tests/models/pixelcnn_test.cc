// The gated PixelCNN: which sub-pixels each sub-pixel depends on, bit-exactly,
// and every result against masked convolutions with whole kernels. See also
// pixel_model_test.cc.
#include "aft/models/pixelcnn.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/models/pixel_model_checks.h"

namespace aft::models {
namespace {

PixelCNNConfig sized(int64_t layers, int64_t width, int64_t first = 3,
                     int64_t kernel = 3) {
  PixelCNNConfig c;
  c.layers = layers, c.width = width, c.first = first, c.kernel = kernel;
  return c;
}

/// With weights large enough for effects to pass through many layers.
PixelCNN stirred(const PixelCNNConfig& c, uint64_t seed) {
  torch::manual_seed(seed);
  PixelCNN model(c);
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters())
    p.mul_(2).add_(0.1 * torch::randn_like(p));
  return model;
}

struct Place {
  int64_t row, column, channel;
};

/// The position of the i-th sub-pixel in the order of the model.
Place place(int64_t i, int64_t W) { return {i / 3 / W, i / 3 % W, i % 3}; }

/// Whether a network that sees `reach` pixels up and to each side lets `to`
/// depend on `from`.
bool sees(const Place& to, const Place& from, int64_t reach) {
  const int64_t up = to.row - from.row, left = to.column - from.column;
  if (up < 0 || up > reach) return false;
  if (up > 0) return std::abs(left) <= reach;
  if (left == 0) return from.channel < to.channel;
  return left > 0 && left <= reach;
}

/// Changes each sub-pixel in turn and checks which log-probabilities change:
/// none that must not and, if `all`, every one that may. The latter needs
/// several images, because relu may hide an effect.
void look(PixelCNN model, int64_t reach, int64_t H, int64_t W, bool all) {
  torch::NoGradGuard no_grad;
  constexpr int64_t kChanged = 4;
  const torch::Tensor x = random_values(kChanged + 1, H, W),
                      base = model->log_prob(x);
  for (int64_t i = 0; i < H * W * 3; ++i) {
    const Place from = place(i, W);
    torch::Tensor changed = x.clone();
    torch::Tensor at = changed.flatten(1).narrow(0, 0, kChanged).select(1, i);
    at.copy_((at + 101) % 256);
    const torch::Tensor same = model->log_prob(changed) == base;
    EXPECT_TRUE(same[kChanged].all().item<bool>()) << "another image, " << i;
    const torch::Tensor sums =
        same.narrow(0, 0, kChanged).sum(0).flatten().contiguous();
    for (int64_t j = 0; j < H * W * 3; ++j) {
      if (j == i) continue;
      const int64_t equal = sums.data_ptr<int64_t>()[j];
      if (!sees(place(j, W), from, reach)) {
        ASSERT_EQ(equal, kChanged)
            << j << " depends on " << i << " of " << H << "x" << W;
      } else if (all) {
        ASSERT_LT(equal, kChanged)
            << j << " ignores " << i << " of " << H << "x" << W;
      }
    }
  }
}

TEST(PixelCNN, BitExactlyCausal) {
  for (const bool train : {false, true}) {
    for (const PixelCNNConfig& c :
         {sized(1, 12, 7), sized(3, 12), sized(2, 48, 7), sized(2, 9, 5, 5)}) {
      PixelCNN model = stirred(c, 1);
      model->train(train);
      look(model, c.first / 2 + (c.layers - 1) * (c.kernel / 2), 4, 5, false);
    }
  }
  // With initial weights, and images of one row or one column.
  look(PixelCNN(sized(3, 12, 7)), 5, 1, 9, false);
  look(PixelCNN(sized(3, 12, 7)), 5, 6, 1, false);
}

TEST(PixelCNN, HasNoBlindSpot) {
  for (const auto& [c, reach] :
       {std::pair<PixelCNNConfig, int64_t>{sized(1, 24, 3), 1},
        {sized(1, 24, 7), 3},
        {sized(2, 24, 3), 2},
        {sized(3, 24, 3), 3},
        {sized(2, 24, 3, 5), 3},
        {sized(3, 24, 5, 1), 2}}) {
    EXPECT_EQ(c.reach(), reach);
    // In double precision: the effect of a corner has only one path.
    PixelCNN model = stirred(c, 2);
    model->to(torch::kDouble);
    look(model, reach, 5, 8, true);
  }
}

/// [out, in]: 1 where a part of the outputs may depend on a part of the inputs,
/// of three parts each. With gates, the outputs are two times three parts.
torch::Tensor parts(int64_t out, int64_t in, int64_t halves, bool own) {
  torch::Tensor mask = torch::zeros({out, in}, torch::kDouble);
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i) {
      const int64_t to = o % (out / halves) * 3 / (out / halves),
                    from = i * 3 / in;
      if (from < to || (own && from == to)) mask[o][i] = 1;
    }
  return mask;
}

/// The log-probabilities of all values [B, H, W, 3, 256], computed with square
/// kernels under masks.
torch::Tensor plain(const PixelCNN& model, const torch::Tensor& values) {
  const auto all = model->named_parameters();
  const auto get = [&](const std::string& name) { return all[name].detach(); };
  const PixelCNNConfig& c = model->config;
  const int64_t p = c.width;
  torch::Tensor h =
      (values.to(torch::kDouble) * (2.0 / 255) - 1).permute({0, 3, 1, 2});
  torch::Tensor v = h;
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string at = "layers_" + std::to_string(l) + ".";
    const bool first = l == 0;
    const int64_t k = first ? c.first : c.kernel, m = k / 2, in = first ? 3 : p;
    torch::Tensor down = torch::zeros({2 * p, in, k, k}, torch::kDouble),
                  right = torch::zeros({2 * p, in, k, k}, torch::kDouble);
    const torch::Tensor wv = get(at + "vertical.weight"),
                        wh = get(at + "horizontal.weight");
    for (int64_t i = 0; i < (first ? m : m + 1); ++i)
      for (int64_t j = 0; j < k; ++j)
        down.select(3, j).select(2, i).copy_(wv.select(3, j).select(2, i));
    for (int64_t j = 0; j <= m; ++j)
      right.select(3, j).select(2, m).copy_(wh.select(3, j).select(2, 0));
    right.select(3, m).select(2, m).mul_(parts(2 * p, in, 2, !first));
    const torch::Tensor a =
        torch::conv2d(v, down, get(at + "vertical.bias"), 1, m);
    const torch::Tensor b =
        torch::conv2d(h, right, get(at + "horizontal.bias"), 1, m) +
        torch::einsum("oc,bchw->bohw",
                      {get(at + "link.weight").view({2 * p, 2 * p}), a});
    const auto gated = [&](const torch::Tensor& x) {
      return x.narrow(1, 0, p).tanh() * x.narrow(1, p, p).sigmoid();
    };
    const torch::Tensor joins =
        torch::einsum("oc,bchw->bohw", {get(at + "out.weight").view({p, p}) *
                                            parts(p, p, 1, true),
                                        gated(b)}) +
        get(at + "out.bias").view({1, p, 1, 1});
    h = first ? joins : h + joins;
    v = gated(a);
  }
  const torch::Tensor x =
      (torch::einsum("oc,bchw->bohw",
                     {get("hidden.weight") * parts(p, p, 1, true), h.relu()}) +
       get("hidden.bias").view({1, p, 1, 1}))
          .relu();
  const torch::Tensor logits =
      torch::einsum("oc,bchw->bhwo",
                    {get("head.weight") * parts(768, p, 1, true), x}) +
      get("head.bias");
  return logits.view({values.size(0), values.size(1), values.size(2), 3, 256})
      .log_softmax(-1);
}

TEST(PixelCNN, MatchesMaskedSquareKernels) {
  for (const PixelCNNConfig& c :
       {sized(1, 6, 7), sized(3, 9), sized(2, 12, 5, 5), sized(2, 6, 3, 1),
        sized(4, 15, 7)}) {
    PixelCNN model = stirred(c, 3);
    const torch::Tensor x = random_values(2, 6, 7);
    const torch::Tensor single = model->log_prob(x).detach();
    model->to(torch::kDouble);
    const torch::Tensor expected =
        plain(model, x).gather(-1, x.unsqueeze(-1)).squeeze(-1);
    EXPECT_LE((model->log_prob(x) - expected).abs().max().item<double>(), 1e-9);
    EXPECT_LE((single - expected).abs().max().item<double>(), 2e-4);
    EXPECT_GT(expected.std().item<double>(), 0.01);
  }
}

TEST(PixelCNN, DistributionMatchesLogProb) {
  // Also far from the borders, where most of the image is out of reach.
  const torch::Tensor x = random_values(2, 9, 10), before = x.clone();
  for (const PixelCNNConfig& c : {sized(1, 12), sized(3, 12), sized(3, 12, 7),
                                  sized(2, 6, 3, 5), sized(3, 6, 5, 1)}) {
    PixelCNN model = stirred(c, 4);
    expect_distributions(*model, x);
    expect_distributions(*model, random_values(2, 1, 9));
    expect_distributions(*model, random_values(2, 8, 1));
  }
  EXPECT_TRUE(torch::equal(x, before));
}

TEST(PixelCNN, DropoutOfZeroDropsNothing) {
  PixelCNNConfig c = sized(3, 12);
  c.dropout = 0.5;
  PixelCNN model = stirred(c, 5);
  const torch::Tensor x = random_values(2, 4, 5);
  torch::NoGradGuard no_grad;
  model->eval();
  const torch::Tensor whole = model->log_prob(x, 7);
  model->config.dropout = 0, model->train();
  EXPECT_TRUE(torch::equal(model->log_prob(x, 7), whole));
}

TEST(PixelCNN, EveryUnmaskedWeightHasAGradient) {
  PixelCNNConfig c = sized(3, 12, 7);
  c.dropout = 0.1;
  torch::manual_seed(6);
  PixelCNN model(c);
  expect_gradients(*model, random_values(4, 8, 8));
  // Masked weights are zero and remain so.
  const auto dead = [](const torch::Tensor& w, const torch::Tensor& mask) {
    EXPECT_EQ(w.detach().masked_select(mask == 0).abs().sum().item<double>(),
              0);
    EXPECT_EQ(w.grad().masked_select(mask == 0).abs().sum().item<double>(), 0);
    EXPECT_GT((w.grad().masked_select(mask == 1) != 0)
                  .to(torch::kDouble)
                  .mean()
                  .item<double>(),
              0.3);
  };
  const auto all = model->named_parameters();
  dead(all["head.weight"], parts(768, 12, 1, true));
  dead(all["hidden.weight"], parts(12, 12, 1, true));
  dead(all["layers_1.out.weight"], parts(12, 12, 1, true).view({12, 12, 1, 1}));
  for (const int64_t l : {0, 1}) {
    const torch::Tensor w =
        all["layers_" + std::to_string(l) + ".horizontal.weight"];
    torch::Tensor mask = torch::ones(w.sizes(), torch::kDouble);
    mask.select(3, w.size(3) - 1)
        .copy_(parts(24, w.size(1), 2, l > 0).unsqueeze(2));
    dead(w, mask);
  }
}

TEST(PixelCNN, GradientsAreFiniteDifferences) {
  for (const PixelCNNConfig& c : {sized(3, 6), sized(2, 6, 5, 5)})
    expect_finite_differences(*stirred(c, 7), random_values(1, 4, 4));
}

TEST(PixelCNN, MemorisesAnImage) {
  torch::manual_seed(8);
  PixelCNN model(sized(2, 24, 5));
  const torch::Tensor x = random_values(1, 4, 4);
  const auto [first, last] = overfit(*model, x, 300, 1e-2);
  EXPECT_NEAR(first, 8, 0.4);
  EXPECT_LT(last, 0.1);
  // The most probable image, one sub-pixel after the other.
  torch::Tensor drawn = torch::zeros_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const Place at = place(i, 4);
    drawn.view({-1})[i] =
        model->distribution(drawn, at.row, at.column, at.channel)
            .argmax(1)
            .item<int64_t>();
  }
  EXPECT_TRUE(torch::equal(drawn, x));
}

TEST(PixelCNN, FiniteForLargeWeights) {
  PixelCNN model = stirred(sized(3, 12), 9);
  for (auto& p : model->parameters()) p.data().mul_(1e3);
  for (const int64_t value : {0, 255}) {
    torch::Tensor x = torch::full({1, 5, 5, 3}, value, torch::kLong);
    const torch::Tensor y = model->log_prob(x);
    EXPECT_TRUE(y.isfinite().all().item<bool>());
    y.sum().backward();
    for (const auto& p : model->named_parameters())
      EXPECT_TRUE(p.value().grad().isfinite().all().item<bool>()) << p.key();
  }
}

TEST(PixelCNN, ZeroWeightsGiveUniformDistributions) {
  PixelCNN model(sized(3, 12));
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.zero_();
  const torch::Tensor y = model->log_prob(random_values(2, 4, 4));
  EXPECT_LE((y + std::log(256)).abs().max().item<double>(), 1e-5);
}

TEST(PixelCNN, NumberOfParameters) {
  const auto counted = [](const PixelCNNConfig& c) {
    int64_t all = 0;
    for (const auto& p : PixelCNN(c)->parameters()) all += p.numel();
    return all;
  };
  const auto formula = [](const PixelCNNConfig& c) {
    const int64_t p = c.width, m = c.first / 2, k = c.kernel / 2;
    const auto both = [&](int64_t in, int64_t vertical, int64_t horizontal) {
      return 2 * p * (in * (vertical + horizontal) + 2) + 4 * p * p + p * p + p;
    };
    return both(3, m * c.first, m + 1) +
           (c.layers - 1) * both(p, (k + 1) * c.kernel, k + 1) + p * p + p +
           768 * p + 768;
  };
  for (const PixelCNNConfig& c :
       {sized(1, 6), sized(4, 12, 7), sized(3, 9, 5, 5), PixelCNNConfig()})
    EXPECT_EQ(counted(c), formula(c));
  EXPECT_EQ(counted(PixelCNNConfig()), 6364704);
}

TEST(PixelCNN, InvalidConfigurations) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto made = [](const std::function<void(PixelCNNConfig&)>& change) {
    PixelCNNConfig c = sized(2, 6);
    change(c);
    return message([&] { PixelCNN model(c); });
  };
  has(made([](auto& c) { c.layers = 0; }),
      "PixelCNN: model.layers must be 1 or more, got 0");
  has(made([](auto& c) { c.width = 128; }), "a multiple of 3");
  has(made([](auto& c) { c.width = 0; }), "a multiple of 3");
  has(made([](auto& c) { c.first = 1; }),
      "model.first must be odd and 3 or more, got 1");
  has(made([](auto& c) { c.first = 6; }), "model.first must be odd");
  has(made([](auto& c) { c.kernel = 2; }), "model.kernel must be odd, got 2");
  has(made([](auto& c) { c.dropout = 1; }), "model.dropout must be in [0, 1)");

  PixelCNN model(sized(2, 6));
  has(message([&] { model->log_prob(random_values(1, 4, 5) * 0 - 1); }),
      "values must be in [0, 256), got values from -1 to -1");
  has(message([&] { model->distribution(random_values(1, 4, 5), 0, 5, 2); }),
      "must be inside [1, 4, 5, 3], got 0, 5 and 2");
}

}  // namespace
}  // namespace aft::models
