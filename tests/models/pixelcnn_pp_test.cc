// PixelCNN++: its parts against plain loops, its size to the unit, and what
// every model of pictures must do.
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

/// In evaluation mode, with first weights that say something.
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

TEST(WeightNormConv, IsItsDefinition) {
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
      // Only the direction of v counts.
      conv->v.mul_(3);
      EXPECT_TRUE(torch::allclose(conv(x), y));
    }
  }
}

TEST(WeightNormConv, UpIsTheWayBackOfDown) {
  // A pixel of the coarse picture reaches what its kernel covers of the fine
  // one, two rows from its own on; the column left of it where centred.
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

TEST(GatedResnet, IsItsDefinition) {
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

TEST(PixelCNNpp, IsItsDefinition) {
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

TEST(PixelCNNpp, NothingLooksAhead) {
  for (const int64_t resolutions : {1, 3}) {
    PixelCNNppConfig c = tiny();
    c.resolutions = resolutions;
    PixelCNNpp model = made(c);
    expect_nothing_looks_ahead(*model, random_values(2, 8, 8));
    expect_nothing_looks_ahead(*model, random_values(1, 5, 7));
  }
  // A batch so large that a library might choose another algorithm.
  PixelCNNppConfig c = tiny();
  c.filters = 16;
  expect_nothing_looks_ahead(*made(c), random_values(17, 4, 4));
}

TEST(PixelCNNpp, SeesAllBefore) {
  PixelCNNppConfig c = tiny();
  c.resnets = 2;
  expect_all_before_is_seen(*made(c), random_values(1, 8, 8), 5, 3);
}

TEST(PixelCNNpp, Distributions) {
  expect_distributions(*made(tiny()), random_values(3, 5, 6));
}

TEST(PixelCNNpp, AnySize) {
  PixelCNNpp model = made(tiny());
  torch::NoGradGuard no_grad;
  for (const auto& [H, W] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 9}, {3, 2}, {4, 8}, {7, 5}}) {
    const torch::Tensor y = model->log_prob(random_values(2, H, W));
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, H, W, 3}));
    EXPECT_TRUE(torch::isfinite(y).all().item<bool>());
  }
  // Rows below change nothing, wherever the picture ends.
  const torch::Tensor values = random_values(2, 8, 6),
                      whole = model->log_prob(values);
  for (int64_t H = 1; H < 8; ++H) {
    EXPECT_TRUE(torch::allclose(model->log_prob(values.narrow(1, 0, H)),
                                whole.narrow(1, 0, H), 1e-4, 1e-4))
        << H;
  }
}

TEST(PixelCNNpp, LearnsAPicture) {
  PixelCNNppConfig c = tiny();
  c.dropout = 0;
  torch::manual_seed(6);
  PixelCNNpp model(c);
  const auto [first, last] = overfit(*model, smooth_picture(8, 8), 80, 0.01);
  EXPECT_GT(first, 5);
  EXPECT_LT(last, first - 3);
}

TEST(PixelCNNpp, GradientsReachAll) {
  for (const int64_t resolutions : {1, 2, 3}) {
    PixelCNNppConfig c = tiny();
    c.resolutions = resolutions;
    torch::manual_seed(7);
    PixelCNNpp model(c);
    expect_gradients(*model, random_values(2, 8, 8));
    expect_gradients(*model, torch::zeros({1, 5, 6, 3}, torch::kLong));
  }
}

TEST(PixelCNNpp, GradientsAreFiniteDifferences) {
  expect_finite_differences(*made(tiny()), random_values(2, 5, 6));
}

TEST(PixelCNNpp, ConstantPictures) {
  torch::manual_seed(8);
  PixelCNNpp model(tiny());
  expect_constant_pictures(*model);
}

TEST(PixelCNNpp, SameAgain) {
  expect_same_again([] { return PixelCNNpp(tiny()).ptr(); });
}

TEST(PixelCNNpp, DropoutBySeed) {
  PixelCNNpp model = made(tiny());
  expect_dropout_by_seed(*model, random_values(2, 6, 6));
}

TEST(PixelCNNpp, Clone) {
  PixelCNNpp model = made(tiny());
  const auto copy = std::dynamic_pointer_cast<PixelCNNppImpl>(model->clone());
  ASSERT_TRUE(copy);
  torch::NoGradGuard no_grad;
  const torch::Tensor values = random_values(2, 8, 8),
                      y = model->log_prob(values);
  EXPECT_TRUE(torch::equal(copy->log_prob(values), y));
  for (auto& p : copy->parameters()) p.add_(0.1);
  EXPECT_FALSE(torch::equal(copy->log_prob(values), y));
  EXPECT_TRUE(torch::equal(model->log_prob(values), y));
}

TEST(PixelCNNpp, ParametersToTheUnit) {
  // Of the weights of two streams of F filters, counted in F^2 by hand: 62 a
  // pair of blocks on the way down, 66 on the way up, 10 a change of
  // resolution; g and bias of each output; the first convolutions; the head.
  const auto expected = [](int64_t F, int64_t n, int64_t R, int64_t K) {
    const int64_t down = R * n, up = R * n + R - 1, changes = 2 * (R - 1);
    return (62 * down + 66 * up + 10 * changes) * F * F +
           (14 * down + 16 * up + 4 * changes) * F + (4 * 11 + 6) * F +
           10 * K * (F + 2);
  };
  // Published: 53.9 M, of a network that is told one of ten classes as well,
  // which takes 64 blocks * 10 * 320 = 0.2 M more.
  EXPECT_EQ(parameters(PixelCNNppConfig()), 53659080);
  EXPECT_EQ(expected(160, 5, 3, 10), 53659080);
  EXPECT_EQ(parameters(tiny()), expected(6, 1, 3, 2));
  PixelCNNppConfig c = tiny();
  c.resolutions = 1, c.resnets = 3;
  EXPECT_EQ(parameters(c), expected(6, 3, 1, 2));
}

TEST(PixelCNNpp, BadInput) {
  expect_errors(*made(tiny()), "PixelCNNpp");
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
