// BatchNorm against torch's own, and when its running statistics are updated.
#include "aft/nn/batch_norm.h"

#include <cmath>
#include <sstream>
#include <vector>

#include "tests/nn/mixer_checks.h"

namespace aft::nn {
namespace {

constexpr int64_t kChannels = 5;

/// Random parameters, the same in both.
template <class Theirs>
void stir(BatchNorm& ours, Theirs& theirs) {
  torch::NoGradGuard no_grad;
  ours->to(torch::kDouble), theirs->to(torch::kDouble);
  ours->weight.normal_(), ours->bias.normal_();
  theirs->weight.copy_(ours->weight), theirs->bias.copy_(ours->bias);
}

/// Three steps of training and one of evaluation. view: converts our x to
/// torch's.
template <class Theirs, class View>
void expect_same(BatchNorm ours, Theirs theirs, at::IntArrayRef shape,
                 const View& view) {
  stir(ours, theirs);
  const auto compare = [&](const char* what, const Tensor& a, const Tensor& b) {
    EXPECT_TRUE(torch::allclose(a, b, 1e-10, 1e-12))
        << what << " of " << shape << (ours->is_training() ? ", training" : "");
  };
  for (int step = 0; step < 4; ++step) {
    if (step == 3) ours->eval(), theirs->eval();
    ours->zero_grad(), theirs->zero_grad();
    Tensor x = (torch::randn(shape, torch::kDouble) * (step + 2) + step);
    Tensor x2 = x.clone();
    x.requires_grad_(true), x2.requires_grad_(true);
    const Tensor g = torch::randn(shape, torch::kDouble);
    const Tensor y = ours(x), want = theirs(view(x2));
    compare("y", view(y), want);
    (y * g).sum().backward(), (want * view(g)).sum().backward();
    compare("dx", x.grad(), x2.grad());
    compare("dweight", ours->weight.grad(), theirs->weight.grad());
    compare("dbias", ours->bias.grad(), theirs->bias.grad());
    compare("mean", ours->running_mean, theirs->running_mean);
    compare("var", ours->running_var, theirs->running_var);
  }
}

TEST(BatchNorm, MatchesTorchOverTheLastDimension) {
  torch::manual_seed(1);
  const auto theirs = [] { return torch::nn::BatchNorm1d(kChannels); };
  const auto ours = [] { return BatchNorm(BatchNormOptions(kChannels)); };
  const auto same = [](const Tensor& x) { return x; };
  const auto turned = [](const Tensor& x) { return x.transpose(1, 2); };
  expect_same(ours(), theirs(), {2, kChannels}, same);
  expect_same(ours(), theirs(), {70, kChannels}, same);
  expect_same(ours(), theirs(), {3, 7, kChannels}, turned);
  expect_same(ours(), theirs(), {1, 2, kChannels}, turned);
  expect_same(ours(), torch::nn::BatchNorm2d(kChannels), {2, 3, 4, kChannels},
              [](const Tensor& x) {
                return x.permute({0, 3, 1, 2});
              });
  expect_same(BatchNorm(BatchNormOptions(1)), torch::nn::BatchNorm1d(1), {9, 1},
              same);
  expect_same(BatchNorm(BatchNormOptions(3).eps(0.1).momentum(0.3)),
              torch::nn::BatchNorm1d(
                  torch::nn::BatchNormOptions(3).eps(0.1).momentum(0.3)),
              {9, 3}, same);
}

TEST(BatchNorm, MatchesTorchOverDimensionOne) {
  torch::manual_seed(2);
  const auto ours = [] {
    return BatchNorm(BatchNormOptions(kChannels).last(false));
  };
  const auto same = [](const Tensor& x) { return x; };
  const std::vector<std::vector<int64_t>> maps = {
      {2, kChannels, 3, 4}, {1, kChannels, 2, 1}, {7, kChannels, 1, 1}};
  for (const auto& shape : maps)
    expect_same(ours(), torch::nn::BatchNorm2d(kChannels), shape, same);
  expect_same(ours(), torch::nn::BatchNorm1d(kChannels), {3, kChannels, 6},
              same);
  // For any layout in memory.
  BatchNorm m = ours();
  const Tensor x = torch::randn({2, kChannels, 3, 4});
  EXPECT_TRUE(torch::allclose(
      m(x), m(x.contiguous(at::MemoryFormat::ChannelsLast)), 1e-5, 1e-6));
}

TEST(BatchNorm, RunningStatisticsMoveByMomentum) {
  // One channel with values 1, 2, 6: mean 3, variance 14/3 (unbiased: 7).
  BatchNorm m(BatchNormOptions(1));
  const Tensor x = torch::tensor({1., 2., 6.}).view({3, 1}).to(torch::kFloat);
  const Tensor y = m(x);
  EXPECT_NEAR(y[0].item<double>(), -2 / std::sqrt(14. / 3 + 1e-5), 1e-6);
  EXPECT_NEAR(m->running_mean.item<double>(), 0.3, 1e-6);
  EXPECT_NEAR(m->running_var.item<double>(), 0.9 + 0.7, 1e-6);
  m(x);
  EXPECT_NEAR(m->running_mean.item<double>(), 0.9 * 0.3 + 0.3, 1e-6);
  EXPECT_NEAR(m->running_var.item<double>(), 0.9 * 1.6 + 0.7, 1e-6);
  m->eval();
  EXPECT_NEAR(m(x)[2].item<double>(), (6 - 0.57) / std::sqrt(2.14 + 1e-5),
              1e-5);
  EXPECT_NEAR(m->running_mean.item<double>(), 0.57, 1e-6)
      << "evaluation updates it";
}

TEST(BatchNorm, RecomputedBlocksCountOnce) {
  torch::manual_seed(3);
  for (bool last : {true, false}) {
    BatchNorm once(BatchNormOptions(kChannels).last(last)),
        again(BatchNormOptions(kChannels).last(last));
    const Tensor x = last ? torch::randn({4, 6, kChannels})
                          : torch::randn({4, kChannels, 3, 2});
    Tensor first;
    {
      torch::NoGradGuard no_grad;
      first = again(x);
      EXPECT_TRUE(torch::equal(again->running_mean, torch::zeros(kChannels)));
      EXPECT_TRUE(torch::equal(again->running_var, torch::ones(kChannels)));
    }
    EXPECT_TRUE(torch::equal(first, again(x)));
    once(x);
    EXPECT_TRUE(torch::equal(once->running_mean, again->running_mean));
    EXPECT_TRUE(torch::equal(once->running_var, again->running_var));
    EXPECT_FALSE(torch::equal(once->running_mean, torch::zeros(kChannels)));
  }
}

TEST(BatchNorm, ScaleAndShiftMatchEvaluation) {
  torch::manual_seed(4);
  BatchNorm m(BatchNormOptions(kChannels).eps(0.01));
  torch::nn::BatchNorm1d unused(kChannels);
  stir(m, unused);
  m(torch::randn({9, kChannels}, torch::kDouble) * 3 + 1);
  m->eval();
  const auto [scale, shift] = m->scale_and_shift();
  EXPECT_FALSE(scale.requires_grad() || shift.requires_grad());
  const Tensor x = torch::randn({6, kChannels}, torch::kDouble);
  EXPECT_TRUE(torch::allclose(x * scale + shift, m(x), 1e-12, 1e-12));
}

TEST(BatchNorm, PrintsClonesAndSaves) {
  torch::manual_seed(5);
  BatchNorm m(BatchNormOptions{kChannels});
  std::ostringstream text;
  text << m;
  EXPECT_EQ(text.str(),
            "BatchNorm(channels=5, last=true, eps=1e-05, momentum=0.1)");
  const Tensor x = torch::randn({9, kChannels}) + 2;
  m(x);
  auto copy = std::dynamic_pointer_cast<BatchNormImpl>(m->clone());
  ASSERT_TRUE(copy);
  EXPECT_TRUE(torch::equal(copy->running_mean, m->running_mean));
  m->eval(), copy->eval();
  const Tensor y = m(x);
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
  copy->train();
  copy->forward(x);
  EXPECT_FALSE(torch::equal(copy->running_mean, m->running_mean));
  EXPECT_TRUE(torch::equal(m(x), y)) << "a clone shares memory";

  std::stringstream file;
  torch::save(m, file);
  BatchNorm read(BatchNormOptions{kChannels});
  torch::load(read, file);
  read->eval();
  EXPECT_TRUE(torch::equal(read(x), y));
  EXPECT_EQ(read->parameters().size(), 2u);
  EXPECT_EQ(read->buffers().size(), 2u);
}

TEST(BatchNorm, IsFiniteAtExtremes) {
  torch::manual_seed(6);
  for (double scale : {1e-4, 1e3, 1e4}) {
    BatchNorm m(BatchNormOptions(3));
    Tensor x = torch::randn({50, 3}) * scale;
    x.select(1, 0).fill_(scale);  // a variance of 0
    x.requires_grad_(true);
    const Tensor y = m(x);
    y.pow(3).sum().backward();
    EXPECT_TRUE(is_finite(y));
    EXPECT_TRUE(is_finite(x.grad()));
    // Nearly 0: the mean is rounded, and eps amplifies the error.
    EXPECT_LE(largest(y.select(1, 0)), 1);
    EXPECT_TRUE(is_finite(m->running_var));
  }
}

TEST(BatchNorm, InvalidArguments) {
  BatchNorm m(BatchNormOptions(3)), first(BatchNormOptions(3).last(false));
  expect_error(
      [&] {
        m(torch::randn({2, 4}));
      },
      {"BatchNorm", "[..., 3]", "[2, 4]"});
  expect_error(
      [&] {
        first(torch::randn({2, 4, 5, 3}));
      },
      {"BatchNorm", "[B, 3, ...]", "[2, 4, 5, 3]"});
  expect_error(
      [&] {
        m(torch::randn({1, 1, 3}));
      },
      {"BatchNorm", "two or more", "[1, 1, 3]"});
  m->eval();
  EXPECT_EQ(m(torch::randn({1, 1, 3})).sizes(), (at::IntArrayRef{1, 1, 3}));
  expect_error([] { BatchNorm(BatchNormOptions(0)); }, {"channels", "0"});
  expect_error([] { BatchNorm(BatchNormOptions(2).eps(0)); }, {"eps", "0"});
  expect_error([] { BatchNorm(BatchNormOptions(2).momentum(1.5)); },
               {"momentum", "1.5"});
}

}  // namespace
}  // namespace aft::nn
