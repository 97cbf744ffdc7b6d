// Autocast (bfloat16 on the CPU) in every mixer, in a block: values and
// gradients are those in float up to rounding, and the gradients have the type
// of the parameters. Without autocast, a step refuses a stream of another type.
#include "tests/autocast.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "aft/nn/block.h"
#include "tests/nn/mixer_checks.h"

namespace aft::nn {
namespace {

using testing::Autocast;

constexpr int64_t kDim = 16, kRows = 5, kColumns = 8, kT = kRows * kColumns;

/// Relative to the norm: a few roundings of 2^-8, one per layer; gradients may
/// also be differences of larger values.
constexpr double kRounding = 0.03, kGradientRounding = 0.1;

MixerOptions options_of(const std::string& kind, bool causal) {
  MixerOptions o;
  o.kind = kind, o.dim = kDim, o.max_len = kT, o.causal = causal;
  o.rows = kRows, o.columns = kColumns, o.grid = causal ? 1 : 2;
  o.values = {
      {"heads", int64_t{2}}, {"window", int64_t{5}}, {"rank", int64_t{4}}};
  // Rounding moves keys between buckets.
  if (kind == "reformer") o.values["buckets"] = int64_t{1};
  return o;
}

/// Calls f(block) for all mixers.
template <class F>
void for_each_block(const F& f) {
  for (const bool causal : {true, false}) {
    for (const std::string& kind : mixer_kinds(causal)) {
      SCOPED_TRACE(kind + (causal ? " causal" : ""));
      torch::manual_seed(1);
      Block block(BlockOptions(options_of(kind, causal)).mlp(2));
      f(block);
    }
  }
}

std::vector<int64_t> grid_of(const Block& block) {
  if (block->options.mixer().causal) return {kT};
  return {kRows, kColumns};
}

double error(const Tensor& got, const Tensor& want) {
  return (got.to(torch::kFloat) - want).norm().item<double>() /
         (want.norm().item<double>() + 1e-6);
}

/// The result, and the gradients in x and all parameters.
template <class F>
std::vector<Tensor> results(Block block, const Tensor& x, const F& f) {
  block->zero_grad();
  const Tensor leaf = x.clone().requires_grad_(true), y = f(leaf);
  y.to(torch::kFloat).pow(2).sum().backward();
  std::vector<Tensor> all = {y.detach(), leaf.grad()};
  for (const auto& p : block->parameters()) all.push_back(p.grad().clone());
  return all;
}

TEST(Autocast, BlocksUpToRounding) {
  for_each_block([](Block block) {
    const Tensor x = torch::randn({2, kT, kDim});
    const auto forward = [&](const Tensor& leaf) {
      return block->forward(leaf, 7, grid_of(block));
    };
    const auto expected = results(block, x, forward);
    std::vector<Tensor> got, again;
    {
      const Autocast autocast;
      got = results(block, x, forward);
    }
    std::vector<std::string> names = {"y", "x"};
    for (const auto& p : block->named_parameters()) names.push_back(p.key());
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(is_finite(got[i])) << names[i];
      if (i > 0) {
        EXPECT_EQ(got[i].scalar_type(), torch::kFloat) << names[i];
      }
      // The gradient of the bias of the keys is 0 up to rounding.
      if (largest(expected[i]) < 1e-3 * largest(expected[1])) continue;
      EXPECT_LE(error(got[i], expected[i]),
                i == 0 ? kRounding : kGradientRounding)
          << names[i];
    }
    // Recomputed with the settings of forward, also if backward runs without.
    for (const bool everywhere : {true, false}) {
      std::optional<Autocast> autocast(std::in_place);
      again = results(block, x, [&](const Tensor& leaf) {
        const Tensor y = recomputed(block, leaf, 7, grid_of(block));
        if (!everywhere) autocast.reset();
        return y;
      });
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(error(again[i], got[i].to(torch::kFloat)), 1e-6) << names[i];
    }
  });
}

TEST(Autocast, DropoutAndDropPath) {
  torch::manual_seed(2);
  Block block(
      BlockOptions(options_of("aft-local", true)).dropout(0.2).drop_path(0.3));
  const Tensor x = torch::randn({4, kT, kDim});
  const auto forward = [&](const Tensor& leaf) {
    return block->forward(leaf, 7);
  };
  const auto expected = results(block, x, forward);
  const Autocast autocast;
  const auto got = results(block, x, forward);
  EXPECT_LE(error(got[0], expected[0]), kRounding);
  EXPECT_LE(error(got[1], expected[1]), kGradientRounding);
}

// The output of a previous layer under autocast is narrow.
TEST(Autocast, NarrowInput) {
  for_each_block([](Block block) {
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::randn({2, kT, kDim}).to(torch::kBFloat16);
    block->eval();
    const Tensor expected =
        block->forward(x.to(torch::kFloat), 7, grid_of(block));
    const Autocast autocast;
    EXPECT_LE(error(block->forward(x, 7, grid_of(block)), expected), kRounding);
  });
}

TEST(Autocast, Steps) {
  for_each_block([](Block block) {
    if (!block->options.mixer().causal) return;
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::randn({1, 12, kDim});
    for (const bool narrow : {false, true}) {
      ops::Stream plain = block->mixer->start(1), other = plain;
      for (Tensor* s : {&other.sums, &other.ring_k, &other.ring_v})
        if (s->defined()) *s = s->clone();
      for (int64_t t = 0; t < 12; ++t) {
        Tensor now = x.select(1, t);
        const Tensor expected = block->step(now, plain);
        if (narrow) now = now.to(torch::kBFloat16);
        const Autocast autocast;
        EXPECT_LE(error(block->step(now, other), expected), kRounding)
            << t << " " << narrow;
      }
    }
  });
}

TEST(Steps, RefuseStreamsOfAnotherType) {
  for_each_block([](Block block) {
    if (!block->options.mixer().causal) return;
    ops::Stream stream = block->mixer->start(1);
    const Tensor x = torch::randn({1, kDim});
    block->mixer->step(x, stream);
    block->to(torch::kDouble);
    expect_error([&] { block->mixer->step(x.to(torch::kDouble), stream); },
                 {"stream", "Float", "Double"});
    block->mixer->pack_for_inference();
    expect_error([&] { block->mixer->step(x.to(torch::kDouble), stream); },
                 {"stream", "Float", "Double"});
    EXPECT_EQ(stream.position, 1);
  });
}

}  // namespace
}  // namespace aft::nn
