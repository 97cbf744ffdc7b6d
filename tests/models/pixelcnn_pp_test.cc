// PixelCNN++: its parts and the whole network against their definitions, and
// the number of parameters. See also pixel_model_test.cc.
#include "aft/models/pixelcnn_pp.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/models/pixel_model_checks.h"

namespace aft::models {
namespace {

PixelCNNppConfig tiny() {
  PixelCNNppConfig c;
  c.filters = 6, c.resnets = 1, c.mixtures = 2, c.dropout = 0.3;
  return c;
}

/// In evaluation mode, with weights far from their initial values.
PixelCNNpp made(const PixelCNNppConfig& c) {
  torch::manual_seed(2);
  PixelCNNpp model(c);
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(torch::randn_like(p), 0.1);
  model->eval();
  return model;
}

int64_t parameters(const PixelCNNppConfig& c) {
  int64_t all = 0;
  for (const auto& p : PixelCNNpp(c)->parameters()) all += p.numel();
  return all;
}

TEST(WeightNormConv, MatchesItsDefinition) {
  const int64_t B = 2, in = 3, out = 4, H = 6, W = 8;
  for (const bool centred : {true, false}) {
    for (const int64_t stride : {1, 2}) {
      torch::manual_seed(3);
      const int64_t columns = centred ? 3 : 2, left = 1;
      WeightNormConv conv(WeightNormConvOptions(in, out)
                              .rows(2)
                              .columns(columns)
                              .centred(centred)
                              .stride(stride));
      conv->to(torch::kDouble);
      torch::NoGradGuard no_grad;
      for (auto& p : conv->parameters()) p.normal_();
      const torch::Tensor x = torch::randn({B, in, H, W}, torch::kDouble),
                          y = conv(x);
      ASSERT_EQ(y.sizes(),
                (std::vector<int64_t>{B, out, H / stride, W / stride}));
      const auto X = x.accessor<double, 4>(), Y = y.accessor<double, 4>(),
                 V = conv->v.accessor<double, 4>();
      for (int64_t o = 0; o < out; ++o) {
        double norm = 0;
        for (const double t : {conv->v[o].square().sum().item<double>()})
          norm = std::sqrt(t);
        for (int64_t h = 0; h < H; h += stride)
          for (int64_t w = 0; w < W; w += stride) {
            double sum = 0;
            for (int64_t i = 0; i < in; ++i)
              for (int64_t a = 0; a < 2; ++a)
                for (int64_t b = 0; b < columns; ++b) {
                  const int64_t r = h + a - 1, c = w + b - left;
                  if (r >= 0 && c >= 0 && c < W)
                    sum += X[1][i][r][c] * V[o][i][a][b];
                }
            EXPECT_NEAR(Y[1][o][h / stride][w / stride],
                        conv->g[o].item<double>() / norm * sum +
                            conv->bias[o].item<double>(),
                        1e-10);
          }
      }
      // Only the direction of v matters.
      conv->v.mul_(3);
      EXPECT_TRUE(torch::allclose(conv(x), y));
    }
  }
}

TEST(WeightNormConv, Upsampling) {
  // A pixel of the coarse image affects the two rows of the fine image from its
  // own on, from its own column on or, if centred, the column to its left.
  const int64_t H = 3, W = 4;
  for (const bool centred : {true, false}) {
    const int64_t columns = centred ? 3 : 2;
    WeightNormConv conv(WeightNormConvOptions(1, 1)
                            .rows(2)
                            .columns(columns)
                            .centred(centred)
                            .stride(2)
                            .up(true));
    torch::NoGradGuard no_grad;
    conv->v.copy_(torch::arange(1, 2 * columns + 1).view(conv->v.sizes()));
    conv->g.copy_(conv->v.norm());
    torch::Tensor x = torch::zeros({1, 1, H, W});
    x[0][0][1][2] = 1;
    torch::Tensor expected = torch::zeros({2 * H, 2 * W});
    expected.narrow(0, 2, 2)
        .narrow(1, centred ? 3 : 4, columns)
        .copy_(conv->v[0][0]);
    EXPECT_TRUE(torch::allclose(conv(x)[0][0], expected)) << conv(x);
  }
}

TEST(GatedResnet, MatchesItsDefinition) {
  for (const bool both : {true, false}) {
    torch::manual_seed(5);
    const int64_t F = 3;
    GatedResnet block(
        GatedResnetOptions(F).side(2).both(both).rows(2).columns(2));
    block->to(torch::kDouble);
    torch::Tensor x = torch::randn({2, F, 4, 5}, torch::kDouble),
                  a = torch::randn({2, 2, 4, 5}, torch::kDouble);
    x.requires_grad_(true), a.requires_grad_(true);
    const auto f = [&](const torch::Tensor& t) {
      return torch::elu(both ? torch::cat({t, -t}, 1) : t);
    };
    const torch::Tensor y = block->forward(x, a, 0, 0);
    const torch::Tensor h = block->conv1(f(x)) + block->side(f(a)),
                        gates = block->conv2(f(h));
    const torch::Tensor expected =
        x + gates.narrow(1, 0, F) * torch::sigmoid(gates.narrow(1, F, F));
    EXPECT_TRUE(torch::allclose(y, expected));
    const torch::Tensor dy = torch::randn_like(y);
    std::vector<torch::Tensor> inputs{x, a};
    for (const auto& p : block->parameters()) inputs.push_back(p);
    const auto got = torch::autograd::grad({y}, inputs, {dy}),
               grads = torch::autograd::grad({expected}, inputs, {dy});
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(torch::allclose(got[i], grads[i])) << i;
  }
}

TEST(PixelCNNpp, MatchesItsDefinition) {
  PixelCNNppConfig c = tiny();
  c.resnets = 2;
  PixelCNNpp model = made(c);
  model->to(torch::kDouble);
  torch::NoGradGuard no_grad;
  const Parts parts{*model};
  const torch::Tensor values = random_values(2, 8, 12),
                      image = image_of(values);
  std::vector<torch::Tensor> u{moved(parts.conv("above", image), 2)},
      ul{moved(parts.conv("left_above", image), 2) +
         moved(parts.conv("left", image), 3)};
  const auto number = [](const char* way, int r, int i) {
    return way + std::to_string(r) + "_" + std::to_string(i);
  };
  for (int r = 0; r < 3; ++r) {
    if (r > 0) {
      const std::string name = "halve_" + std::to_string(r);
      u.push_back(parts.conv(name + "_above", u.back()));
      ul.push_back(parts.conv(name + "_left", ul.back()));
    }
    for (int i = 0; i < 2; ++i) {
      const std::string name = number("down_", r, i);
      u.push_back(parts.gated(name + "_above", u.back()));
      ul.push_back(parts.gated(name + "_left", ul.back(), u.back()));
    }
  }
  const auto pop = [](std::vector<torch::Tensor>& list) {
    const torch::Tensor x = list.back();
    list.pop_back();
    return x;
  };
  torch::Tensor x = pop(u), y = pop(ul);
  for (int r = 2; r >= 0; --r) {
    for (int i = 0; i < (r == 2 ? 2 : 3); ++i) {
      const std::string name = number("up_", r, i);
      x = parts.gated(name + "_above", x, pop(u));
      y = parts.gated(name + "_left", y, torch::cat({x, pop(ul)}, 1));
    }
    if (r == 0) break;
    const std::string name = "twice_" + std::to_string(r);
    x = parts.conv(name + "_above", x), y = parts.conv(name + "_left", y);
  }
  EXPECT_TRUE(u.empty() && ul.empty());
  const torch::Tensor expected =
      logistic_mixture_log_prob(parts.conv("head", torch::elu(y)), values);
  EXPECT_TRUE(torch::allclose(model->log_prob(values), expected));
}

TEST(PixelCNNpp, HasNoBlindSpot) {
  PixelCNNppConfig c = tiny();
  c.resnets = 2;
  expect_all_before_is_seen(*made(c), random_values(1, 8, 8), 5, 3);
}

/// An image cut after any row gives the same results for the rows that remain.
TEST(PixelCNNpp, RowsBelowHaveNoEffect) {
  PixelCNNpp model = made(tiny());
  torch::NoGradGuard no_grad;
  const torch::Tensor values = random_values(2, 8, 6),
                      whole = model->log_prob(values);
  for (int64_t H = 1; H < 8; ++H) {
    EXPECT_TRUE(torch::allclose(model->log_prob(values.narrow(1, 0, H)),
                                whole.narrow(1, 0, H), 1e-4, 1e-4))
        << H;
  }
}

TEST(PixelCNNpp, NumberOfParameters) {
  // Counted by hand for two streams of F filters, in units of F^2: 62 per pair
  // of blocks on the way down, 66 on the way up, 10 per change of resolution;
  // then g and bias per output, the first convolutions, and the head.
  const auto expected = [](int64_t F, int64_t n, int64_t R, int64_t K) {
    const int64_t down = R * n, up = R * n + R - 1, changes = 2 * (R - 1);
    return (62 * down + 66 * up + 10 * changes) * F * F +
           (14 * down + 16 * up + 4 * changes) * F + (4 * 11 + 6) * F +
           10 * K * (F + 2);
  };
  // Published: 53.9 M for a network conditioned on ten classes, which takes 64
  // blocks * 10 * 320 = 0.2 M more.
  EXPECT_EQ(parameters(PixelCNNppConfig()), 53659080);
  EXPECT_EQ(expected(160, 5, 3, 10), 53659080);
  EXPECT_EQ(parameters(tiny()), expected(6, 1, 3, 2));
  PixelCNNppConfig c = tiny();
  c.resolutions = 1, c.resnets = 3;
  EXPECT_EQ(parameters(c), expected(6, 3, 1, 2));
}

TEST(PixelCNNpp, InvalidConfigurations) {
  const auto fails = [](const std::function<void(PixelCNNppConfig&)>& change,
                        const std::string& part) {
    PixelCNNppConfig c = tiny();
    change(c);
    const std::string text = message([&] { PixelCNNpp model(c); });
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  fails([](auto& c) { c.filters = 0; }, "model.filters must be 1 or more");
  fails([](auto& c) { c.resnets = 0; }, "model.resnets must be 1 or more");
  fails([](auto& c) { c.resolutions = 0; }, "model.resolutions");
  fails([](auto& c) { c.resolutions = 99; }, "model.resolutions");
  fails([](auto& c) { c.mixtures = -1; }, "got -1");
  fails([](auto& c) { c.dropout = 1; }, "model.dropout must be in [0, 1)");
}

}  // namespace
}  // namespace aft::models
