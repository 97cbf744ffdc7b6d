// PixelSNAIL: the network against its definition, and the number of parameters.
// See also pixel_model_test.cc.
#include "aft/models/pixelsnail.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/models/pixel_model_checks.h"

namespace aft::models {
namespace {

PixelSNAILConfig tiny() {
  PixelSNAILConfig c;
  c.filters = 6, c.blocks = 2, c.resnets = 1, c.key = 3, c.value = 4;
  c.mixtures = 2, c.dropout = 0.3;
  return c;
}

/// In evaluation mode, with weights far from their initial values.
PixelSNAIL made(const PixelSNAILConfig& c) {
  torch::manual_seed(2);
  PixelSNAIL model(c);
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(torch::randn_like(p), 0.1);
  model->eval();
  return model;
}

int64_t parameters(const PixelSNAILConfig& c) {
  int64_t all = 0;
  for (const auto& p : PixelSNAIL(c)->parameters()) all += p.numel();
  return all;
}

TEST(PixelSNAIL, MatchesItsDefinition) {
  const PixelSNAILConfig c = tiny();
  PixelSNAIL model = made(c);
  model->to(torch::kDouble);
  torch::NoGradGuard no_grad;
  const Parts parts{*model};
  // More pixels than queries per tile.
  const int64_t B = 2, H = 11, W = 12, T = H * W;
  const torch::Tensor values = random_values(B, H, W), image = image_of(values),
                      colours = image.narrow(1, 0, 3);
  const auto line = [](int64_t n) {
    return torch::arange(n, torch::kDouble) / n - 0.5;
  };
  const torch::Tensor place = torch::stack({line(H).view({H, 1}).expand({H, W}),
                                            line(W).expand({H, W})})
                                  .expand({B, 2, H, W});
  torch::Tensor x = moved(parts.conv("above", image), 2) +
                    moved(parts.conv("left", image), 3);
  for (int64_t i = 0; i < c.blocks; ++i) {
    const std::string name = "blocks_" + std::to_string(i) + "_";
    for (int64_t j = 0; j < c.resnets; ++j)
      x = parts.gated(name + "resnets_" + std::to_string(j), x);
    const torch::Tensor kv = parts
                                 .conv(name + "key_value",
                                       parts.gated(
                                           name + "content",
                                           torch::cat({colours, x, place}, 1)))
                                 .flatten(2),
                        q = parts
                                .conv(name + "query",
                                      parts.gated(name + "query_content",
                                                  torch::cat({x, place}, 1)))
                                .flatten(2);
    torch::Tensor a = torch::zeros({B, c.value, T}, torch::kDouble);
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 1; t < T; ++t) {
        const torch::Tensor
            before = kv[b].narrow(1, 0, t),
            scores = before.narrow(0, 0, c.key).t().mv(q[b].select(1, t)) /
                     std::sqrt(c.key);
        a[b].select(1, t).copy_(
            before.narrow(0, c.key, c.value).mv(scores.softmax(0)));
      }
    x = parts.gated(name + "join", x, a.view({B, c.value, H, W}));
  }
  const torch::Tensor expected =
      logistic_mixture_log_prob(parts.conv("head", torch::elu(x)), values);
  EXPECT_TRUE(torch::allclose(model->log_prob(values), expected));
}

TEST(PixelSNAIL, BitExactlyCausal) {
  // More pixels than queries per tile.
  expect_nothing_looks_ahead(*made(tiny()), random_values(1, 11, 12));
}

TEST(PixelSNAIL, HasNoBlindSpot) {
  // Two 2 x 2 convolutions reach three pixels; attention covers the others.
  PixelSNAILConfig c = tiny();
  c.blocks = 1;
  expect_all_before_is_seen(*made(c), random_values(1, 8, 8), 6, 5);
}

TEST(PixelSNAIL, DependsOnThePosition) {
  // In a constant image, far from the border, convolutions alone would give
  // equal results.
  PixelSNAIL model = made(tiny());
  torch::NoGradGuard no_grad;
  const torch::Tensor y =
      model->log_prob(torch::full({1, 12, 12, 3}, 77, torch::kLong))[0];
  EXPECT_FALSE(torch::allclose(y[8][8], y[9][8], 1e-5, 1e-5));
  EXPECT_FALSE(torch::allclose(y[8][8], y[8][9], 1e-5, 1e-5));
}

TEST(PixelSNAIL, OnePixelHasFiniteGradients) {
  PixelSNAIL model = made(tiny());
  model->log_prob(random_values(2, 1, 1)).sum().backward();
  for (const auto& p : model->parameters())
    if (p.grad().defined()) {
      EXPECT_TRUE(torch::isfinite(p.grad()).all().item<bool>());
    }
}

TEST(PixelSNAIL, NumberOfParameters) {
  const auto expected = [](int64_t F, int64_t N, int64_t n, int64_t k,
                           int64_t v, int64_t K) {
    // A gated block with C channels and kernels of t elements: t C to C and t C
    // to 2 C, with g and bias.
    const auto gated = [](int64_t C, int64_t t) {
      return 3 * t * C * C + 6 * C;
    };
    const int64_t content = F + 5, query = F + 2;
    const int64_t block = n * gated(F, 4) + gated(content, 1) +
                          (content + 2) * (k + v) + gated(query, 1) +
                          (query + 2) * k + gated(F, 1) + (v + 2) * F;
    return N * block + (4 * 5 + 4) * F + (F + 2) * 10 * K;
  };
  EXPECT_EQ(parameters(PixelSNAILConfig()), 46021908);
  EXPECT_EQ(expected(256, 12, 4, 16, 128, 10), 46021908);
  EXPECT_EQ(parameters(tiny()), expected(6, 2, 1, 3, 4, 2));
}

TEST(PixelSNAIL, InvalidConfigurations) {
  const auto fails = [](const std::function<void(PixelSNAILConfig&)>& change,
                        const std::string& part) {
    PixelSNAILConfig c = tiny();
    change(c);
    const std::string text = message([&] { PixelSNAIL model(c); });
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  fails([](auto& c) { c.filters = 0; }, "model.filters must be 1 or more");
  fails([](auto& c) { c.blocks = 0; }, "model.blocks must be 1 or more");
  fails([](auto& c) { c.resnets = 0; }, "model.resnets must be 1 or more");
  fails([](auto& c) { c.key = 0; }, "model.key must be 1 or more");
  fails([](auto& c) { c.value = 0; }, "model.value must be 1 or more");
  fails([](auto& c) { c.mixtures = -1; }, "got -1");
  fails([](auto& c) { c.dropout = 1; }, "model.dropout must be in [0, 1)");
}

}  // namespace
}  // namespace aft::models
