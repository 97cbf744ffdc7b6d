// The properties that every model of images must have, on a table of small
// networks. The test of each network covers what is specific to it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>

#include "aft/models/pixelcnn.h"
#include "aft/models/pixelcnn_pp.h"
#include "aft/models/pixelsnail.h"
#include "tests/models/pixel_model_checks.h"

namespace aft::models {
namespace {

struct Network {
  std::string name;   ///< prefix of its error messages
  std::string label;  ///< name of the test case
  std::function<std::shared_ptr<PixelModel>(double dropout)> make;

  /// In evaluation mode, with weights far from their initial values.
  std::shared_ptr<PixelModel> stirred() const {
    torch::manual_seed(2);
    const auto model = make(0.3);
    torch::NoGradGuard no_grad;
    for (auto& p : model->parameters()) p.add_(torch::randn_like(p), 0.1);
    model->eval();
    return model;
  }
};

std::ostream& operator<<(std::ostream& out, const Network& n) {
  return out << n.label;
}

Network pixelcnn() {
  return {"PixelCNN", "PixelCNN", [](double dropout) {
            PixelCNNConfig c;
            c.layers = 3, c.width = 12, c.first = 3, c.dropout = dropout;
            return std::make_shared<PixelCNNImpl>(c);
          }};
}

Network pixelcnn_pp(int64_t resolutions, int64_t filters = 6) {
  return {"PixelCNNpp",
          "PixelCNNpp_" + std::to_string(resolutions) + "_" +
              std::to_string(filters),
          [=](double dropout) {
            PixelCNNppConfig c;
            c.filters = filters, c.resolutions = resolutions;
            c.resnets = 1, c.mixtures = 2, c.dropout = dropout;
            return std::make_shared<PixelCNNppImpl>(c);
          }};
}

Network pixelsnail(int64_t filters = 6) {
  return {"PixelSNAIL", "PixelSNAIL_" + std::to_string(filters),
          [=](double dropout) {
            PixelSNAILConfig c;
            c.filters = filters, c.blocks = 2, c.resnets = 1;
            c.key = 3, c.value = 4, c.mixtures = 2, c.dropout = dropout;
            return std::make_shared<PixelSNAILImpl>(c);
          }};
}

std::string label(const testing::TestParamInfo<Network>& info) {
  return info.param.label;
}

class PixelModels : public testing::TestWithParam<Network> {};
INSTANTIATE_TEST_SUITE_P(All, PixelModels,
                         testing::Values(pixelcnn(), pixelcnn_pp(1),
                                         pixelcnn_pp(2), pixelcnn_pp(3),
                                         pixelsnail()),
                         label);

TEST_P(PixelModels, AnySize) {
  const auto model = GetParam().stirred();
  torch::NoGradGuard no_grad;
  for (const auto& [H, W] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 9}, {3, 2}, {4, 8}, {7, 5}}) {
    const torch::Tensor y = model->log_prob(random_values(2, H, W));
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, H, W, 3}));
    EXPECT_TRUE(torch::isfinite(y).all().item<bool>());
  }
}

TEST_P(PixelModels, EveryParameterHasAGradient) {
  torch::manual_seed(7);
  const auto model = GetParam().make(0.3);
  expect_gradients(*model, random_values(2, 8, 8));
  expect_gradients(*model, torch::zeros({1, 5, 6, 3}, torch::kLong));
}

/// Images with a single value: finite initially, and after training has made
/// the distribution as narrow as possible.
TEST_P(PixelModels, ConstantImages) {
  torch::manual_seed(8);
  const auto model = GetParam().make(0);
  for (const int64_t value : {0, 255, 128}) {
    const torch::Tensor flat = torch::full({2, 5, 6, 3}, value, torch::kLong);
    expect_gradients(*model, flat);
    const auto [first, last] = overfit(*model, flat, 20, 0.03);
    EXPECT_TRUE(std::isfinite(first) && std::isfinite(last)) << value;
    EXPECT_LT(last, first) << value;
    for (const auto& p : model->parameters())
      ASSERT_TRUE(torch::isfinite(p).all().item<bool>()) << value;
  }
}

/// The seed determines the weights bit-exactly, initially and after some steps.
TEST_P(PixelModels, SameSeedSameWeights) {
  const auto trained = [&](uint64_t seed, int steps) {
    torch::manual_seed(seed);
    const auto model = GetParam().make(0.3);
    if (steps > 0) overfit(*model, random_values(2, 4, 5), steps, 0.01);
    std::vector<torch::Tensor> flat;
    for (const auto& p : model->parameters())
      flat.push_back(p.detach().flatten());
    return torch::cat(flat);
  };
  for (const int steps : {0, 3})
    EXPECT_TRUE(torch::equal(trained(1, steps), trained(1, steps))) << steps;
  EXPECT_FALSE(torch::equal(trained(1, 0), trained(2, 0)));
}

/// In training the seed selects what is dropped; otherwise nothing is.
TEST_P(PixelModels, DropoutFollowsTheSeed) {
  const auto model = GetParam().stirred();
  const torch::Tensor values = random_values(2, 6, 6);
  torch::NoGradGuard no_grad;
  model->train();
  const torch::Tensor y = model->log_prob(values, 5);
  EXPECT_TRUE(torch::equal(model->log_prob(values, 5), y));
  EXPECT_FALSE(torch::equal(model->log_prob(values, 6), y));
  const torch::Tensor all = model->distribution(values, 1, 1, 1);
  model->eval();
  const torch::Tensor whole = model->log_prob(values, 5);
  EXPECT_FALSE(torch::equal(whole, y));
  EXPECT_TRUE(torch::equal(model->log_prob(values, 6), whole));
  EXPECT_TRUE(torch::equal(model->distribution(values, 1, 1, 1), all));
}

TEST_P(PixelModels, Clone) {
  const auto model = GetParam().stirred();
  const auto copy = std::dynamic_pointer_cast<PixelModel>(model->clone());
  ASSERT_TRUE(copy);
  torch::NoGradGuard no_grad;
  const torch::Tensor values = random_values(2, 8, 8),
                      y = model->log_prob(values);
  EXPECT_TRUE(torch::equal(copy->log_prob(values), y));
  for (auto& p : copy->parameters()) p.add_(0.1);
  EXPECT_FALSE(torch::equal(copy->log_prob(values), y));
  EXPECT_TRUE(torch::equal(model->log_prob(values), y));
}

TEST_P(PixelModels, InvalidValues) {
  const auto model = GetParam().stirred();
  const auto has = [&](const std::string& text, const std::string& part) {
    EXPECT_EQ(text.find(GetParam().name + ":"), 0u) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto of = [&](const torch::Tensor& x) {
    return message([&] { model->log_prob(x); });
  };
  const torch::Tensor good = random_values(2, 4, 4);
  has(of(good[0]), "values must be int64 [B, H, W, 3]");
  has(of(good.narrow(3, 0, 2)), "[2, 4, 4, 2]");
  has(of(good.permute({0, 3, 1, 2})), "[2, 3, 4, 4]");
  has(of(good.to(torch::kFloat)), "int64");
  has(of(good.narrow(1, 0, 0)), "[2, 0, 4, 3]");
  has(of(good + 256), "in [0, 256)");
  has(of(good - 256), "in [0, 256)");
  for (const auto& p : std::vector<std::vector<int64_t>>{
           {4, 0, 0}, {0, 4, 0}, {0, 0, 3}, {-1, 0, 0}, {0, -1, 0}}) {
    has(message([&] { model->distribution(good, p[0], p[1], p[2]); }),
        "row, column and channel must be inside [2, 4, 4, 3]");
  }
  has(message([&] { model->distribution(good[0], 0, 0, 0); }), "int64 [B, H,");
}

/// The networks whose output is a mixture of logistics. pixelcnn_test.cc has
/// stricter forms of these tests.
class MixtureModels : public testing::TestWithParam<Network> {};
INSTANTIATE_TEST_SUITE_P(All, MixtureModels,
                         testing::Values(pixelcnn_pp(1), pixelcnn_pp(3),
                                         pixelsnail()),
                         label);

TEST_P(MixtureModels, BitExactlyCausal) {
  const auto model = GetParam().stirred();
  expect_nothing_looks_ahead(*model, random_values(2, 8, 8));
  expect_nothing_looks_ahead(*model, random_values(1, 5, 7));
}

/// A batch so large that a library might choose another algorithm.
TEST(LargeBatch, BitExactlyCausal) {
  for (const Network& n : {pixelcnn_pp(3, 16), pixelsnail(16)})
    expect_nothing_looks_ahead(*n.stirred(), random_values(17, 4, 4));
}

TEST_P(MixtureModels, Distributions) {
  expect_distributions(*GetParam().stirred(), random_values(3, 5, 6));
}

TEST_P(MixtureModels, GradientsAreFiniteDifferences) {
  expect_finite_differences(*GetParam().stirred(), random_values(2, 5, 6));
}

TEST_P(MixtureModels, LearnsAnImage) {
  torch::manual_seed(6);
  const auto model = GetParam().make(0);
  // A smooth image with a bright corner.
  torch::Tensor x = torch::empty({1, 8, 8, 3}, torch::kLong);
  for (int64_t h = 0; h < 8; ++h)
    for (int64_t w = 0; w < 8; ++w)
      for (int64_t c = 0; c < 3; ++c)
        x[0][h][w][c] = h < 2 && w < 2 ? 255 : 20 + 10 * h + 12 * w + 30 * c;
  const auto [first, last] = overfit(*model, x, 80, 0.01);
  EXPECT_GT(first, 5);
  EXPECT_LT(last, first - 3);
}

}  // namespace
}  // namespace aft::models
