// The sequence model with every mixer: step equals forward, causality,
// gradients with recomputed blocks, initial weights.
#include "aft/models/sequence_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace aft::models {
namespace {

SequenceModelConfig small(const std::string& mixer) {
  SequenceModelConfig c;
  c.mixer = mixer, c.layers = 2, c.width = 16, c.length = 12, c.columns = 5;
  c.mixer.set({{"window", 4}, {"rank", 3}, {"heads", 4}});
  c.vocabulary = 11, c.dropout = 0.2;
  return c;
}

/// Every mixer, with and without position embeddings.
template <class F>
void for_each_model(const F& f) {
  for (const std::string& mixer : nn::mixer_kinds(true)) {
    for (bool positions : {true, false}) {
      SCOPED_TRACE(mixer + (positions ? ", positions" : ""));
      torch::manual_seed(3);
      SequenceModelConfig c = small(mixer);
      c.positions = positions;
      f(SequenceModel(c));
    }
  }
}

/// Moves the weights far from their initial values.
void stir(SequenceModel& model) {
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(0.3 * torch::randn_like(p));
}

TEST(SequenceModel, StepEqualsForward) {
  for_each_model([](SequenceModel model) {
    stir(model);
    model->eval();
    const torch::Tensor tokens = torch::randint(11, {3, 12});
    const torch::Tensor want = model->forward(tokens);
    SequenceModelState state = model->start(3), half;
    for (int64_t t = 0; t < 12; ++t) {
      if (t == 6) half = state.clone();
      const torch::Tensor got = model->step(tokens.select(1, t), state);
      EXPECT_TRUE(torch::allclose(got, want.select(1, t), 1e-4, 1e-5)) << t;
    }
    // A clone is independent.
    const torch::Tensor again = model->step(tokens.select(1, 6), half);
    EXPECT_TRUE(torch::allclose(again, want.select(1, 6), 1e-4, 1e-5));
    EXPECT_EQ(half.position, 7);
  });
}

TEST(SequenceModel, BitExactlyCausal) {
  for_each_model([](SequenceModel model) {
    stir(model);
    model->eval();
    torch::Tensor tokens = torch::randint(11, {2, 12});
    const torch::Tensor before = model->forward(tokens);
    tokens.narrow(1, 7, 5).add_(1).remainder_(11);
    const torch::Tensor after = model->forward(tokens);
    EXPECT_TRUE(torch::equal(before.narrow(1, 0, 7), after.narrow(1, 0, 7)));
    EXPECT_FALSE(torch::equal(before.select(1, 7), after.select(1, 7)));
  });
}

TEST(SequenceModel, StreamsEndAtTheLengthOfTheModel) {
  for_each_model([](SequenceModel model) {
    model->eval();
    SequenceModelState state = model->start(1);
    const torch::Tensor token = torch::zeros({1}, torch::kLong);
    for (int i = 0; i < 12; ++i) model->step(token, state);
    const int64_t bytes = state.bytes();
    if (model->config.has_end()) {
      EXPECT_THROW(model->step(token, state), c10::Error);
      EXPECT_THROW(model->forward(torch::zeros({1, 13}, torch::kLong)),
                   c10::Error);
      return;
    }
    for (int i = 0; i < 100; ++i) model->step(token, state);
    if (model->config.mixer.traits().grows) {
      EXPECT_GT(state.bytes(), bytes);
    } else {
      EXPECT_EQ(state.bytes(), bytes);
    }
  });
}

TEST(SequenceModel, DropoutFollowsTheSeed) {
  torch::manual_seed(1);
  SequenceModel model(small("aft-local"));
  const torch::Tensor tokens = torch::randint(11, {2, 12});
  const torch::Tensor y = model->forward(tokens, 5);
  EXPECT_TRUE(torch::equal(y, model->forward(tokens, 5)));
  EXPECT_FALSE(torch::equal(y, model->forward(tokens, 6)));
  model->eval();
  EXPECT_TRUE(
      torch::equal(model->forward(tokens, 5), model->forward(tokens, 6)));
}

TEST(SequenceModel, RecomputedBlocksGiveTheSameGradients) {
  for_each_model([](SequenceModel model) {
    stir(model);
    const torch::Tensor tokens = torch::randint(11, {2, 12});
    const auto gradients = [&](bool recompute) {
      model->recompute(recompute);
      model->zero_grad();
      model->forward(tokens, 5).pow(2).sum().backward();
      std::vector<torch::Tensor> out;
      for (const auto& p : model->parameters())
        out.push_back(p.grad().defined() ? p.grad().clone() : torch::Tensor());
      return out;
    };
    const auto kept = gradients(false), again = gradients(true);
    double scale = 0;
    for (const torch::Tensor& g : kept) {
      if (g.defined()) scale = std::max(scale, g.abs().max().item<double>());
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      ASSERT_EQ(kept[i].defined(), again[i].defined());
      if (!kept[i].defined()) continue;
      // With autograd there are two divisions instead of one: rounding.
      EXPECT_LE((kept[i] - again[i]).abs().max().item<double>(), 1e-6 * scale)
          << i;
    }
  });
}

TEST(SequenceModel, InitialWeights) {
  SequenceModelConfig c = small("aft-local");
  c.width = 128, c.layers = 8;
  torch::manual_seed(1);
  SequenceModel model(c);
  const auto std_of = [](const torch::Tensor& x) {
    return x.std().item<double>();
  };
  EXPECT_NEAR(std_of(model->blocks[0]->fc1->weight), 0.02, 1e-3);
  EXPECT_NEAR(std_of(model->blocks[0]->fc2->weight), 0.005, 3e-4);
  EXPECT_NEAR(std_of(model->blocks[0]->mixer->last_weight()), 0.005, 3e-4);
  EXPECT_EQ(model->blocks[3]->fc1->bias.abs().max().item<double>(), 0);
}

TEST(SequenceModel, InvalidConfigurations) {
  const auto message = [](SequenceModelConfig c) -> std::string {
    try {
      SequenceModel model(c);
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  SequenceModelConfig c = small("aft-lokal");
  EXPECT_NE(message(c).find("aft-local"), std::string::npos);
  EXPECT_NE(message(c).find("aft-lokal"), std::string::npos);
  c = small("attention"), c.mixer.set({{"heads", 3}});
  EXPECT_NE(message(c).find("heads must divide dim = 16, got 3"),
            std::string::npos);
  c = small("aft-simple"), c.layers = 0;
  EXPECT_NE(message(c).find("model.layers must be 1 or more, got 0"),
            std::string::npos);
}

}  // namespace
}  // namespace aft::models
