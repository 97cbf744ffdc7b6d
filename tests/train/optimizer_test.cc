// The optimiser: weight decay, clipping, infinite gradients; and schedules.
#include "aft/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "aft/models/sequence_model.h"
#include "aft/nn/batch_norm.h"

namespace aft::train {
namespace {

TEST(Schedule, Shapes) {
  const auto at = [](const char* kind, int64_t step) {
    return Schedule{kind, 2, 10, 0.5, 110}.at(step);
  };
  for (const char* kind : {"rsqrt", "cosine", "constant"}) {
    EXPECT_DOUBLE_EQ(at(kind, 1), 0.2);
    EXPECT_DOUBLE_EQ(at(kind, 10), 2);
  }
  EXPECT_DOUBLE_EQ(at("rsqrt", 40), 1);
  EXPECT_DOUBLE_EQ(at("cosine", 60), 1.25);
  EXPECT_DOUBLE_EQ(at("cosine", 110), 0.5);
  EXPECT_DOUBLE_EQ(at("constant", 99), 2);
  EXPECT_THROW(at("cosin", 40), std::invalid_argument);
}

TEST(AdamW, OnlyLinearWeightsDecay) {
  for (const std::string& mixer : nn::mixer_kinds(true)) {
    models::SequenceModelConfig c;
    c.mixer = mixer, c.layers = 2, c.width = 16, c.length = 16, c.columns = 5;
    c.mixer.set({{"window", 4}, {"rank", 3}, {"heads", 4}});
    models::SequenceModel model(c);
    AdamW optimizer(*model, {});
    for (const auto& p : model->named_parameters()) {
      const std::string& name = p.key();
      const auto ends = [&](const std::string& tail) {
        return name.size() >= tail.size() &&
               name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
      };
      const bool linear =
          ends(".weight") && p.value().dim() == 2 && name != "embedding.weight";
      EXPECT_EQ(optimizer.decays(name), linear) << mixer << " " << name;
    }
  }
}

TEST(AdamW, ConvolutionWeightsDecay) {
  torch::nn::Sequential net(torch::nn::Conv2d(2, 3, 1),
                            nn::BatchNorm(nn::BatchNormOptions(3)));
  AdamW optimizer(*net, {});
  for (const auto& p : net->named_parameters())
    EXPECT_EQ(optimizer.decays(p.key()), p.key() == "0.weight") << p.key();
}

TEST(AdamW, ClipsTheGlobalNorm) {
  torch::nn::Linear layer(3, 3), same(3, 3);
  {
    torch::NoGradGuard no_grad;
    same->weight.copy_(layer->weight), same->bias.copy_(layer->bias);
  }
  AdamW a(*layer, {}), b(*same, {});
  (layer->weight.sum() * 30 + layer->bias.sum() * 40).backward();
  const double norm = std::sqrt(9 * 900.0 + 3 * 1600.0);
  (same->weight.sum() * 30 / norm + same->bias.sum() * 40 / norm).backward();
  EXPECT_NEAR(a.step(0.1, 1, 1), norm, 1e-3);
  EXPECT_NEAR(b.step(0.1, 0, 1), 1, 1e-6);
  EXPECT_TRUE(torch::allclose(layer->weight, same->weight, 1e-5, 1e-6));
}

TEST(AdamW, InfiniteGradientChangesNothing) {
  torch::nn::Linear layer(2, 2);
  AdamW optimizer(*layer, {});
  const torch::Tensor before = layer->weight.detach().clone();
  (layer->weight.sum() * std::numeric_limits<float>::infinity()).backward();
  EXPECT_FALSE(std::isfinite(optimizer.step(0.1, 1, 1)));
  EXPECT_TRUE(torch::equal(before, layer->weight));
}

}  // namespace
}  // namespace aft::train
