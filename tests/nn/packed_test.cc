// Modules after pack_for_inference: they can be cloned, saved, loaded, moved
// and trained, and their results are always those of the current weights.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "aft/nn/aft.h"
#include "aft/nn/block.h"
#include "tests/autocast.h"
#include "tests/nn/mixer_checks.h"

namespace aft::nn {
namespace {

constexpr int64_t kDim = 16, kRows = 4, kColumns = 6, kT = kRows * kColumns;
const Tensor& input() {
  static const Tensor x = torch::randn({2, kT, kDim}, torch::kDouble);
  return x;
}

Block make(const std::string& kind, bool gumbel, uint64_t seed) {
  torch::manual_seed(seed);
  MixerOptions o;
  o.kind = kind, o.dim = kDim, o.max_len = kT, o.causal = false;
  o.rows = kRows, o.columns = kColumns, o.grid = 2;
  o.values = {
      {"heads", int64_t{2}}, {"window", int64_t{3}}, {"rank", int64_t{4}}};
  if (gumbel) o.values["gumbel"] = 0.5;
  Block block(BlockOptions(o).mlp(2));
  torch::NoGradGuard no_grad;
  for (auto& p : block->parameters()) p.normal_(0, 0.3);
  for (auto& b : block->buffers())
    if (b.dim() == 1) b.uniform_(0.5, 1.5);  // running statistics
  block->eval();
  return block;
}

Tensor run(Block block, const Tensor& x = input()) {
  return block->forward(x.to(block->fc1->weight.scalar_type()), 0,
                        {kRows, kColumns});
}

Block clone_of(const Block& block) {
  Block copy(std::dynamic_pointer_cast<BlockImpl>(block->clone()));
  copy->eval();
  return copy;
}

/// The result of a block that was never packed and has the same weights.
Tensor unpacked(const Block& block) {
  torch::NoGradGuard no_grad;
  const Block copy = clone_of(block);
  EXPECT_FALSE(copy->fc1.is_packed());
  return run(copy);
}

/// The result is that of the current weights, which differs from `before`.
void expect_current(const Block& block, const Tensor& before = {}) {
  torch::NoGradGuard no_grad;
  const Tensor now = run(block);
  EXPECT_LE(distance(now, unpacked(block)), 1e-4);
  if (before.defined()) {
    EXPECT_GT(distance(now, before), 1e-2);
  }
}

template <class F>
void for_each_packed(const F& f) {
  for (const std::string& kind : mixer_kinds(false)) {
    for (const bool gumbel : {false, true}) {
      if (gumbel && kind != "aft-conv") continue;
      SCOPED_TRACE(kind + (gumbel ? " gumbel" : ""));
      const Block block = make(kind, gumbel, 1);
      const Tensor before = unpacked(block);
      block.ptr()->pack_for_inference();
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(block->fc1.is_packed() && block->fc2.is_packed());
      EXPECT_LE(distance(run(block), before), 1e-4);
      f(block, make(kind, gumbel, 2));
    }
  }
}

TEST(Packed, Clones) {
  for_each_packed([](Block block, const Block&) {
    const Tensor before = run(block);
    const Block copy = clone_of(block);
    EXPECT_LE(distance(run(copy), before), 1e-4);
    for (auto& p : copy->parameters()) p.mul_(-0.5);
    expect_current(copy, before);
    EXPECT_TRUE(torch::equal(run(block), before));
    copy.ptr()->pack_for_inference();
    EXPECT_TRUE(copy->fc1.is_packed());
    expect_current(copy, before);
  });
}

TEST(Packed, SavesAndLoads) {
  for_each_packed([](Block block, Block other) {
    const Tensor before = run(block);
    std::stringstream file;
    torch::save(block, file);
    // Into a packed module.
    other->pack_for_inference();
    const Tensor wrong = run(other);
    torch::load(other, file);
    other->eval();
    EXPECT_LE(distance(run(other), before), 1e-4);
    EXPECT_FALSE(other->fc1.is_packed());
    expect_current(other, wrong);
    other->pack_for_inference();
    EXPECT_TRUE(other->fc1.is_packed());
    expect_current(other, wrong);
  });
}

TEST(Packed, FollowsChangedWeights) {
  for_each_packed([](Block block, Block other) {
    const Tensor before = run(block);
    const auto from = other->named_parameters();
    // One parameter at a time, in both of the ways in which torch changes them.
    bool replace = false;
    for (auto& p : block->named_parameters()) {
      if (replace)
        p.value().set_data(from[p.key()].detach().clone());
      else
        p.value().copy_(from[p.key()]);
      replace = !replace;
      expect_current(block);
    }
    for (auto& b : block->named_buffers())
      b.value().copy_(other->named_buffers()[b.key()]);
    expect_current(block, before);
    EXPECT_LE(distance(run(block), unpacked(other)), 1e-4);
    block->pack_for_inference();
    expect_current(block, before);
  });
}

TEST(Packed, Converts) {
  for_each_packed([](Block block, const Block&) {
    const Tensor before = run(block);
    block->to(torch::kDouble);
    const Tensor now = run(block);
    EXPECT_EQ(now.scalar_type(), torch::kDouble);
    EXPECT_LE(distance(now, before), 1e-4);
    EXPECT_LE(distance(now, unpacked(block)), 1e-12);
    block->pack_for_inference();
    EXPECT_TRUE(block->fc1.is_packed());
    EXPECT_LE(distance(run(block), now), 1e-10);
    block->to(torch::kFloat);
    EXPECT_LE(distance(run(block), before), 1e-4);
  });
}

TEST(Packed, TrainsAndRunsUnderAutocast) {
  for_each_packed([](Block block, const Block&) {
    const Tensor before = run(block);
    {
      const testing::Autocast autocast;
      EXPECT_LE(distance(run(block), before), 0.2 * largest(before));
    }
    torch::AutoGradMode record(true);
    block->train();
    run(block).pow(2).sum().backward();
    torch::optim::SGD optimizer(block->parameters(), 1e-3);
    for (const auto& p : block->named_parameters()) {
      EXPECT_TRUE(p.value().grad().defined()) << p.key();
      EXPECT_GT(p.value().numel(), 0) << p.key();
    }
    optimizer.step();
    block->eval();
    expect_current(block);
  });
}

TEST(Packed, StepsFollowTraining) {
  AFTSimple layer(AFTSimpleOptions(kDim).causal(true));
  layer->pack_for_inference();
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  const Tensor x = torch::randn({2, kT, kDim});
  layer->forward(x).pow(2).sum().backward();
  optimizer.step();
  torch::NoGradGuard no_grad;
  ops::Stream stream = layer->start(2);
  const Tensor want = layer->forward(x);
  for (int64_t t = 0; t < kT; ++t)
    EXPECT_LE(distance(layer->step(x.select(1, t), stream), want.select(1, t)),
              1e-5);
}

// Running statistics change without an optimiser.
TEST(Packed, FollowsRunningStatistics) {
  Block block = make("lambda", false, 1);
  block->pack_for_inference();
  const Tensor before = unpacked(block);
  block->train();
  for (int i = 0; i < 10; ++i) run(block, 3 * input());
  block->eval();
  expect_current(block, before);
}

}  // namespace
}  // namespace aft::nn
