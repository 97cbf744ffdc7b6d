// Residual networks: exact numbers of parameters, results against plain loops,
// batch statistics, packing.
#include "aft/models/resnet.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/models/resnet_plain.h"

namespace aft::models {
namespace {

ResNetConfig sized(int64_t layers, int64_t width, int64_t classes,
                   bool small = false) {
  ResNetConfig c;
  c.layers = layers, c.width = width, c.classes = classes, c.small = small;
  return c;
}

int64_t parameters(const ResNetConfig& c) {
  int64_t all = 0;
  for (const auto& p : ResNet(c)->parameters()) all += p.numel();
  return all;
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "no error";
}

/// Moves parameters and running statistics away from their initial values.
void stir(ResNet& model) {
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters())
    p.add_(0.3 * torch::randn_like(p) * (p.std(false) + 0.5));
  for (auto& b : model->named_buffers()) {
    torch::Tensor& x = b.value();
    if (b.key().find("running_var") != std::string::npos)
      x.uniform_(0.5, 2);
    else
      x.normal_(0, 0.5);
  }
}

TEST(ResNet, NumberOfParameters) {
  EXPECT_EQ(parameters(sized(50, 64, 1000)), 25557032);
  EXPECT_EQ(parameters(sized(101, 64, 1000)), 44549160);
  EXPECT_EQ(parameters(sized(152, 64, 1000)), 60192808);
  // One block per stage: stem, blocks, head.
  int64_t expected = 3 * 8 * 49 + 2 * 8, in = 8;
  for (int64_t inner = 8; inner <= 64; inner *= 2) {
    const int64_t out = 4 * inner;
    expected += in * inner + 9 * inner * inner + inner * out + in * out +
                2 * (inner + inner + out + out);
    in = out;
  }
  EXPECT_EQ(parameters(sized(14, 8, 5)), expected + (256 + 1) * 5);
  // With two, the second reads the output of the first.
  for (int64_t inner = 8; inner <= 64; inner *= 2)
    expected += 2 * 4 * inner * inner + 9 * inner * inner + 2 * (2 + 4) * inner;
  EXPECT_EQ(parameters(sized(26, 8, 5)), expected + (256 + 1) * 5);
  EXPECT_EQ(parameters(sized(26, 8, 5, true)),
            expected + (256 + 1) * 5 - 3 * 8 * (49 - 9));
}

TEST(ResNet, NamesAndShapesMatchTorchvision) {
  ResNet model(sized(50, 64, 1000));
  const auto all = model->named_parameters();
  EXPECT_EQ(all.size(), 161u);
  const auto shape = [&](const char* name) {
    const torch::Tensor* x = all.find(name);
    return x ? x->sizes().vec() : std::vector<int64_t>{};
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape("conv1.weight"), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(shape("bn1.bias"), (Shape{64}));
  EXPECT_EQ(shape("layer1.0.downsample.0.weight"), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(shape("layer1.0.downsample.1.weight"), (Shape{256}));
  EXPECT_EQ(shape("layer1.1.downsample.0.weight"), Shape{});
  EXPECT_EQ(shape("layer2.3.conv2.weight"), (Shape{128, 128, 3, 3}));
  EXPECT_EQ(shape("layer3.5.bn3.weight"), (Shape{1024}));
  EXPECT_EQ(shape("layer4.2.conv3.weight"), (Shape{2048, 512, 1, 1}));
  EXPECT_EQ(shape("fc.weight"), (Shape{1000, 2048}));
  EXPECT_TRUE(model->named_buffers().contains("layer4.2.bn3.running_var"));
}

TEST(ResNet, InitialWeights) {
  torch::manual_seed(1);
  ResNet model(sized(50, 64, 10));
  for (const auto& p : model->named_parameters()) {
    const torch::Tensor x = p.value().detach();
    if (x.dim() == 4) {
      const double expected = std::sqrt(
          2.0 / static_cast<double>(x.size(0) * x.size(2) * x.size(3)));
      EXPECT_NEAR(x.std().item<double>() / expected, 1, 0.05) << p.key();
    } else if (p.key().find("fc") == std::string::npos) {
      const bool weight = p.key().find("weight") != std::string::npos;
      EXPECT_TRUE((x == (weight ? 1 : 0)).all().item<bool>()) << p.key();
    }
  }
}

TEST(ResNet, MatchesPlainLoops) {
  for (const bool small : {false, true}) {
    for (const int64_t layers : {14, 26}) {
      torch::manual_seed(3);
      ResNet model(sized(layers, 3, 4, small));
      stir(model);
      model->to(torch::kDouble);
      // Sides that no stride divides.
      const torch::Tensor x =
          small ? torch::randn({2, 3, 9, 14}, torch::kDouble)
                : torch::randn({2, 3, 33, 46}, torch::kDouble);
      const int64_t n = layers == 14 ? 1 : 2;
      for (const bool training : {false, true}) {
        model->train(training);
        const torch::Tensor expected =
            Plain(model, training).forward(x, small, {n, n, n, n});
        const torch::Tensor y = model->forward(x).detach();
        ASSERT_EQ(y.sizes(), expected.sizes());
        EXPECT_LE((y - expected).abs().max().item<double>(),
                  1e-9 * expected.abs().max().item<double>())
            << small << layers << training;
        EXPECT_GT(expected.std().item<double>(), 1e-3);
      }
    }
  }
}

TEST(ResNet, SinglePrecision) {
  torch::manual_seed(4);
  ResNet model(sized(26, 8, 6));
  stir(model);
  model->eval();
  torch::NoGradGuard no_grad;
  const torch::Tensor x = torch::randn({3, 3, 40, 32});
  const torch::Tensor y = model->forward(x);
  model->to(torch::kDouble);
  const torch::Tensor exact = model->forward(x.to(torch::kDouble));
  EXPECT_LE((y - exact).abs().max().item<double>(),
            1e-4 * exact.abs().max().item<double>());
}

TEST(ResNet, BatchAndRunningStatistics) {
  torch::manual_seed(5);
  ResNet model(sized(14, 4, 3, true));
  const torch::Tensor x = torch::randn({6, 3, 16, 16}) * 2 + 1;
  const auto differs = [](const torch::Tensor& a, const torch::Tensor& b) {
    return (a - b).abs().max().item<double>();
  };
  const torch::Tensor training = model->forward(x).detach();
  // In training the result for an image depends on the others in its batch, in
  // evaluation it does not.
  EXPECT_GT(differs(model->forward(x.narrow(0, 0, 3)).detach(),
                    training.narrow(0, 0, 3)),
            1e-3);
  model->eval();
  {
    torch::NoGradGuard no_grad;
    const torch::Tensor all = model->forward(x);
    EXPECT_LE(differs(model->forward(x.narrow(0, 0, 3)), all.narrow(0, 0, 3)),
              1e-5);
    EXPECT_GT(differs(all, training), 1e-3);
  }
  // After the same batch many times, the running statistics are those of the
  // batch, up to the factor n / (n - 1).
  model->train();
  for (int i = 0; i < 100; ++i) model->forward(x);
  model->eval();
  torch::NoGradGuard no_grad;
  EXPECT_LE(differs(model->forward(x), training),
            0.05 * training.abs().max().item<double>());
}

TEST(ResNet, PackedEqualsEvaluation) {
  for (const bool small : {false, true}) {
    torch::manual_seed(6);
    ResNet model(sized(26, 8, 7, small));
    stir(model);
    model->eval();
    const torch::Tensor x = torch::randn({3, 3, 32, 45});
    torch::NoGradGuard no_grad;
    const torch::Tensor expected = model->forward(x);
    model->pack_for_inference();
    const double size = expected.abs().max().item<double>();
    for (int again = 0; again < 2; ++again) {
      EXPECT_LE((model->forward(x) - expected).abs().max().item<double>(),
                1e-4 * size);
      model->pack_for_inference();  // nothing is left to do
    }
    const torch::Tensor alone = model->forward(x.narrow(0, 1, 1));
    EXPECT_LE((alone[0] - expected[1]).abs().max().item<double>(), 1e-4 * size);
    // A packed model has gradients and can be trained.
    torch::AutoGradMode on(true);
    model->train();
    torch::optim::SGD optimizer(model->parameters(), 1e-4);
    for (int i = 0; i < 3; ++i) {
      model->forward(x).square().mean().backward();
      optimizer.step();
    }
    model->eval();
    torch::NoGradGuard off;
    const ResNet unpacked(
        std::dynamic_pointer_cast<ResNetImpl>(model->clone()));
    unpacked.ptr()->eval();
    const torch::Tensor now = model->forward(x);
    EXPECT_TRUE(torch::equal(now, unpacked.ptr()->forward(x)));
    EXPECT_FALSE(torch::allclose(now, expected, 1e-3, 1e-3 * size));
  }
}

TEST(ResNet, EveryParameterHasAGradient) {
  for (const bool small : {false, true}) {
    torch::manual_seed(7);
    ResNet model(sized(26, 6, 5, small));
    model->forward(torch::randn({4, 3, 64, 64}), 1)
        .log_softmax(-1)
        .select(1, 2)
        .sum()
        .backward();
    for (const auto& p : model->named_parameters()) {
      ASSERT_TRUE(p.value().grad().defined()) << p.key();
      EXPECT_TRUE(p.value().grad().isfinite().all().item<bool>()) << p.key();
      EXPECT_GT(p.value().grad().abs().max().item<double>(), 0) << p.key();
    }
  }
}

TEST(ResNet, GradientsAreFiniteDifferences) {
  torch::manual_seed(8);
  ResNet model(sized(14, 3, 4, true));
  stir(model);
  model->to(torch::kDouble);
  const torch::Tensor x = torch::randn({3, 3, 10, 12}, torch::kDouble),
                      weights = torch::randn({3, 4}, torch::kDouble);
  const auto loss = [&] { return (model->forward(x) * weights).sum(); };
  loss().backward();
  for (const auto& p : model->named_parameters()) {
    const torch::Tensor direction = torch::randn_like(p.value());
    const auto moved = [&](double by) {
      torch::NoGradGuard no_grad;
      p.value().data().add_(direction, by);
      const double y = loss().item<double>();
      p.value().data().sub_(direction, by);
      return y;
    };
    const double step = 1e-6;
    const double expected = (moved(step) - moved(-step)) / (2 * step);
    const double got = (p.value().grad() * direction).sum().item<double>();
    EXPECT_NEAR(got, expected, 1e-4 * (std::abs(expected) + 1)) << p.key();
  }
}

TEST(ResNet, MemorisesAFewImages) {
  torch::manual_seed(9);
  ResNet model(sized(14, 8, 4, true));
  const torch::Tensor x = torch::randn({8, 3, 16, 16}),
                      labels = torch::randint(4, {8}, torch::kLong);
  torch::optim::Adam adam(model->parameters(), 3e-3);
  double loss = 0;
  for (int i = 0; i < 40; ++i) {
    adam.zero_grad();
    torch::Tensor l =
        torch::nn::functional::cross_entropy(model->forward(x), labels);
    if (i == 0) {
      EXPECT_GT(l.item<double>(), 0.7);
    }
    l.backward();
    adam.step();
    loss = l.item<double>();
  }
  EXPECT_LT(loss, 0.05);
}

ResNet cloned(const ResNet& model) {
  return ResNet(std::dynamic_pointer_cast<ResNetImpl>(model->clone()));
}

TEST(ResNet, Clone) {
  torch::manual_seed(10);
  ResNet model(sized(26, 4, 3));
  stir(model);
  const torch::Tensor x = torch::randn({2, 3, 32, 32});
  model->forward(x);  // moves the running statistics
  model->eval();
  torch::NoGradGuard no_grad;
  const torch::Tensor y = model->forward(x);
  ResNet copy = cloned(model);
  ASSERT_EQ(copy->buffers().size(), model->buffers().size());
  for (const auto& b : copy->named_buffers()) {
    EXPECT_TRUE(torch::equal(b.value(), model->named_buffers()[b.key()]));
  }
  EXPECT_FALSE(copy->is_training());
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
  // Each has separate statistics and weights.
  copy->train();
  {
    torch::AutoGradMode on(true);
    copy->forward(x);
  }
  for (const auto& b : copy->named_buffers()) {
    EXPECT_FALSE(torch::equal(b.value(), model->named_buffers()[b.key()]));
  }
  for (auto& p : copy->parameters()) p.zero_();
  EXPECT_TRUE(torch::equal(model->forward(x), y));
  // The copy computes with its registered parameters.
  EXPECT_EQ(copy->forward(x).abs().max().item<double>(), 0);
  // Files keep parameters and statistics.
  std::stringstream file;
  torch::save(model, file);
  ResNet read(sized(26, 4, 3));
  torch::load(read, file);
  read->eval();
  EXPECT_TRUE(torch::equal(read->forward(x), y));
}

TEST(ResNet, CloneOfAPackedModel) {
  torch::manual_seed(11);
  ResNet model(sized(14, 4, 3));
  stir(model);
  model->eval();
  model->pack_for_inference();
  torch::NoGradGuard no_grad;
  const torch::Tensor x = torch::randn({2, 3, 32, 32});
  const torch::Tensor y = model->forward(x);
  EXPECT_TRUE(torch::allclose(cloned(model)->forward(x), y, 1e-4, 1e-4));
  // Loading replaces the weights of a packed model.
  ResNet other(sized(14, 4, 3));
  stir(other);
  other->eval();
  other->pack_for_inference();
  std::stringstream file;
  torch::save(model, file);
  torch::load(other, file);
  other->eval();
  EXPECT_TRUE(torch::allclose(other->forward(x), y, 1e-4, 1e-4));
}

TEST(ResNet, AnySize) {
  ResNet big(sized(14, 4, 3)), small(sized(14, 4, 3, true));
  for (const auto& [h, w] : {std::pair<int64_t, int64_t>{32, 32}, {33, 70}}) {
    const torch::Tensor y = big->forward(torch::randn({2, 3, h, w}));
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_TRUE(y.isfinite().all().item<bool>());
  }
  for (const auto& [h, w] : {std::pair<int64_t, int64_t>{8, 8}, {9, 31}}) {
    EXPECT_EQ(small->forward(torch::randn({2, 3, h, w})).sizes(),
              (std::vector<int64_t>{2, 3}));
  }
  // Constant images, whose variance is 0, and huge values.
  for (const double value : {0.0, 1e4}) {
    const torch::Tensor y = big->forward(torch::full({2, 3, 32, 32}, value));
    EXPECT_TRUE(y.isfinite().all().item<bool>()) << value;
    y.sum().backward();
    for (const auto& p : big->named_parameters())
      EXPECT_TRUE(p.value().grad().isfinite().all().item<bool>()) << p.key();
  }
}

TEST(ResNet, InvalidArguments) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(message([] { ResNet model(sized(18, 8, 3)); }),
      "ResNet: model.layers must be 14, 26, 50, 101 or 152, got 18");
  has(message([] { ResNet model(sized(14, 0, 3)); }),
      "ResNet: model.width must be 1 or more, got 0");
  has(message([] { ResNet model(sized(14, 8, 0)); }),
      "ResNet: model.classes must be 1 or more, got 0");
  ResNet big(sized(14, 4, 3)), small(sized(14, 4, 3, true));
  using Shape = std::vector<int64_t>;
  for (const Shape& shape :
       {Shape{1, 3, 31, 32}, {1, 1, 32, 32}, {3, 32, 32}, {1, 3, 32, 0}}) {
    has(message([&] { big->forward(torch::zeros(shape)); }),
        "ResNet: images must be [B, 3, H, W] with H and W 32 or more, got [");
  }
  has(message([&] {
        small->forward(torch::zeros({2, 3, 8, 7}));
      }),
      "H and W 8 or more, got [2, 3, 8, 7]");
  // One position of one image has no variance.
  has(message([&] {
        small->forward(torch::zeros({1, 3, 8, 8}));
      }),
      "two or more elements per channel");
}

}  // namespace
}  // namespace aft::models
