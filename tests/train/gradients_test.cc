// Gradients in buckets: summed over all processes, sent during backward.
#include "aft/train/distributed/gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/train/ranks.h"

namespace aft::train {
namespace {

/// Five linear layers, and one that only some ranks, or none, use.
struct Chain : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear spare{nullptr};
  Chain() {
    for (int i = 0; i < 5; ++i)
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(8, 8)));
    spare = register_module("spare", torch::nn::Linear(8, 8));
    torch::NoGradGuard no_grad;
    int64_t number = 0;
    for (torch::Tensor& p : parameters())
      for (int64_t i = 0; i < p.numel(); ++i)
        p.flatten()[i].fill_(0.1 * static_cast<double>(++number % 17 - 8));
  }
  torch::Tensor forward(torch::Tensor x, bool with_spare) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return with_spare ? x + spare(x) : x;
  }
};

torch::Tensor rows(int rank) {
  return torch::arange(24).reshape({3, 8}).to(torch::kFloat) / 10 + rank;
}

constexpr int64_t kSmall = 8 * 8 * 4 + 100;  // at most one layer per bucket

TEST(Gradients, AreSummedOverAllProcesses) {
  for (const int64_t bytes : {int64_t{1}, kSmall, int64_t{1} << 20}) {
    SCOPED_TRACE(bytes);
    constexpr int N = 3;
    Chain one;
    for (int step = 0; step < 2; ++step)
      for (int r = 0; r < N; ++r) one.forward(rows(r), true).sum().backward();
    in_ranks(N, 20, [&](Group& g) {
      Chain model;
      Gradients gradients(model, g, bytes);
      EXPECT_EQ(gradients.bytes(), 6 * (8 * 8 + 8) * 4);
      for (int step = 0; step < 2; ++step) {
        for (torch::Tensor& p : model.parameters()) p.grad().zero_();
        // Two passes: only the last one sends.
        model.forward(rows(g.rank()), true).sum().backward();
        gradients.expect();
        model.forward(rows(g.rank()), true).sum().backward();
        gradients.finish();
      }
      const auto expected = one.parameters(), got = model.parameters();
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(
            torch::allclose(got[i].grad(), expected[i].grad(), 1e-4, 1e-5))
            << i;
      g.leave();
    });
  }
}

TEST(Gradients, AreSentDuringBackward) {
  in_ranks(2, 20, [](Group& g) {
    Chain model;
    Gradients gradients(model, g, kSmall);
    gradients.expect();
    torch::Tensor x = rows(g.rank()).requires_grad_();
    // Backward reaches the input last; the gradients have been sent by then.
    int64_t begun = -1;
    x.register_hook(
        [&](torch::Tensor) { begun = g.begin_sum(torch::zeros({1})); });
    model.forward(x, true).sum().backward();
    EXPECT_GE(begun, 5) << "exchanges before the end of backward";
    gradients.finish();
    g.finish(begun);
    g.leave();
  });
}

TEST(Gradients, AreAbsentIfNoProcessHasThem) {
  in_ranks(2, 20, [](Group& g) {
    Chain model;
    Gradients gradients(model, g, kSmall);
    gradients.expect();
    model.forward(rows(g.rank()), false).sum().backward();
    gradients.finish();
    EXPECT_FALSE(model.spare->weight.grad().defined());
    EXPECT_TRUE(model.layers[0]->weight.grad().defined());
    gradients.expect();
    model.forward(rows(g.rank()), false).sum().backward();
    gradients.finish();
    g.leave();
  });
}

TEST(Gradients, ExistEverywhereIfOneProcessHasThem) {
  Chain one;
  one.forward(rows(0), true).sum().backward();
  in_ranks(2, 20, [&](Group& g) {
    Chain model;
    Gradients gradients(model, g, kSmall);
    gradients.expect();
    model.forward(rows(g.rank()), g.rank() == 0).sum().backward();
    gradients.finish();
    ASSERT_TRUE(model.spare->weight.grad().defined()) << g.rank();
    EXPECT_TRUE(torch::allclose(model.spare->weight.grad(),
                                one.spare->weight.grad(), 1e-4, 1e-5));
    g.leave();
  });
}

}  // namespace
}  // namespace aft::train
