// Biases, keys and relative attention against plain loops over the parameters.
#include "aft/tasks/introspection.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "aft/nn/aft.h"
#include "aft/nn/attention.h"

namespace aft::tasks {
namespace {

void shake(torch::nn::Module& m) {
  torch::NoGradGuard no_grad;
  for (auto& p : m.parameters()) p.normal_(0, 0.3);
}

models::Classifier classifier(const std::string& mixer) {
  models::ClassifierConfig c;
  c.mixer = mixer, c.layers = 2, c.width = 12;
  c.mixer.set({{"heads", 3}, {"window", 3}, {"rank", 4}});
  c.patch = 2, c.rows = 3, c.columns = 4, c.classes = 5;
  c.follow_mixer();
  torch::manual_seed(1);
  models::Classifier model(c);
  shake(*model);
  model->eval();
  return model;
}

TEST(Biases, OfFullAndLocal) {
  torch::manual_seed(2);
  nn::AFTFull full(nn::AFTFullOptions(4, 6).rank(3));
  nn::AFTLocal local(nn::AFTLocalOptions(4, 6, 2).rank(3)),
      only(nn::AFTLocalOptions(4, 6, 2).dense(true).window_only(true)),
      causal(nn::AFTLocalOptions(4, 6, 2).rank(3).causal(true)),
      none(nn::AFTLocalOptions(4, 6, 0));
  for (torch::nn::Module* m : std::initializer_list<torch::nn::Module*>{
           full.get(), local.get(), only.get(), causal.get()})
    shake(*m);
  const auto w = [](const auto& m, int64_t t, int64_t j) {
    return m->w.defined() ? m->w[t][j].template item<double>()
                          : m->u[t].dot(m->v[j]).template item<double>();
  };
  const auto check = [&](const auto& m, auto expected) {
    const Biases b = position_biases(*m, 100);
    ASSERT_EQ(b.values.sizes(), (at::IntArrayRef{1, 6, 6}));
    EXPECT_FALSE(b.relative);
    EXPECT_EQ(b.block, 1);
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t j = 0; j < 6; ++j) {
        const double x = b.values[0][t][j].template item<double>(),
                     y = expected(t, j);
        if (std::isnan(y)) {
          EXPECT_TRUE(std::isnan(x)) << t << " " << j;
        } else {
          EXPECT_NEAR(x, y, 1e-6 * (1 + y)) << t << " " << j;
        }
      }
    }
  };
  check(full, [&](int64_t t, int64_t j) { return std::exp(w(full, t, j)); });
  check(local, [&](int64_t t, int64_t j) {
    return std::abs(t - j) < 2 ? std::exp(w(local, t, j)) : 1;
  });
  check(only, [&](int64_t t, int64_t j) {
    return std::abs(t - j) < 2 ? std::exp(w(only, t, j)) : 0;
  });
  check(causal, [&](int64_t t, int64_t j) {
    if (j > t) return static_cast<double>(NAN);
    return t - j < 2 ? std::exp(w(causal, t, j)) : 1;
  });
  check(none, [](int64_t, int64_t) { return 1.0; });
}

TEST(Biases, AreAveragedOverBlocksForManyPositions) {
  nn::AFTFull full(nn::AFTFullOptions(4, 7).dense(true).causal(true));
  shake(*full);
  const Biases whole = position_biases(*full, 7),
               small = position_biases(*full, 3);
  EXPECT_EQ(small.block, 3);
  ASSERT_EQ(small.values.sizes(), (at::IntArrayRef{1, 3, 3}));
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      double sum = 0, n = 0;  // over positions that are not masked
      for (int64_t t = 3 * i; t < std::min<int64_t>(7, 3 * i + 3); ++t) {
        for (int64_t k = 3 * j; k < std::min<int64_t>(7, 3 * j + 3); ++k) {
          const double x = whole.values[0][t][k].item<double>();
          if (!std::isnan(x)) sum += x, ++n;
        }
      }
      const double x = small.values[0][i][j].item<double>();
      if (n == 0) {
        EXPECT_TRUE(std::isnan(x));
      } else {
        EXPECT_NEAR(x, sum / n, 1e-6);
      }
    }
  }
}

TEST(Biases, OfConvEqualTheOperatorsInput) {
  for (const double gumbel : {0.0, 0.5}) {
    nn::AFTConv conv(nn::AFTConvOptions(12, 3, {3, 5}).gumbel(gumbel));
    shake(*conv);
    conv->eval();
    const Biases b = position_biases(*conv, 100);
    EXPECT_TRUE(b.relative);
    EXPECT_TRUE(torch::allclose(b.values, conv->bias().exp() - 1, 1e-5, 1e-6));
    EXPECT_EQ(b.values.ne(0).sum().item<int64_t>(), gumbel > 0 ? 3 : 45);
  }
  nn::AFTSimple simple{nn::AFTSimpleOptions(4)};
  EXPECT_FALSE(position_biases(*simple, 100).values.defined());
}

TEST(Keys, OfEachLayer) {
  for (const char* mixer : {"aft-conv", "aft-full"}) {
    models::Classifier model = classifier(mixer);
    torch::NoGradGuard no_grad;
    const torch::Tensor images = torch::randn({2, 3, 6, 8});
    const auto keys = keys_of(*model, images);
    ASSERT_EQ(keys.size(), 2u);
    const bool conv = std::string(mixer) == "aft-conv";
    const int64_t channels = conv ? 3 : 12, token = conv ? 0 : 1;
    // The second layer, by hand.
    torch::Tensor x = model->embed(images);
    EXPECT_EQ(x.sizes(), (at::IntArrayRef{2, 12 + token, 12}));
    x = model->blocks[0]->forward(x, 0, {3, 4});
    auto& aft = dynamic_cast<nn::AFTLayer&>(*model->blocks[1]->mixer);
    const torch::Tensor k = aft.key(model->blocks[1]->norm1(x));
    ASSERT_EQ(keys[1].sizes(), (at::IntArrayRef{2, channels, 3, 4}));
    for (int64_t y = 0; y < 3; ++y)
      for (int64_t c = 0; c < 4; ++c)
        EXPECT_TRUE(torch::allclose(keys[1].select(2, y).select(2, c),
                                    k.select(1, token + y * 4 + c)));
  }
  models::Classifier attention = classifier("attention");
  EXPECT_THROW(keys_of(*attention, torch::randn({1, 3, 6, 8})), c10::Error);
}

TEST(RelativeAttention, IsAveragedByOffset) {
  models::Classifier model = classifier("attention");
  torch::NoGradGuard no_grad;
  const torch::Tensor images = torch::randn({3, 3, 6, 8});
  RelativeAttention relative(*model);
  relative.add(images.narrow(0, 0, 2)), relative.add(images.narrow(0, 2, 1));
  EXPECT_EQ(relative.images(), 3);
  const auto queries = relative.mean(RelativeAttention::Divisor::kQueries),
             pairs = relative.mean(RelativeAttention::Divisor::kPairs);
  ASSERT_EQ(queries.sizes(), (at::IntArrayRef{2, 3, 5, 7}));

  // From the definition: one head, query and image at a time.
  torch::Tensor x = model->embed(images);
  for (int64_t layer = 0; layer < 2; ++layer) {
    auto& block = model->blocks[static_cast<size_t>(layer)];
    const torch::Tensor normed = block->norm1(x);
    auto& mixer = dynamic_cast<nn::AttentionImpl&>(*block->mixer);
    const auto parts = mixer.qkv(normed).chunk(3, 2);
    double sum[3][5][7] = {}, count[5][7] = {};
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t b = 0; b < 3; ++b) {
        const torch::Tensor q = parts[0][b].narrow(1, 4 * h, 4),
                            k = parts[1][b].narrow(1, 4 * h, 4);
        for (int64_t t = 0; t < 12; ++t) {
          const torch::Tensor p = (k.mv(q[1 + t]) / std::sqrt(4.0)).softmax(0);
          for (int64_t j = 0; j < 12; ++j) {
            const int64_t dy = j / 4 - t / 4 + 2, dx = j % 4 - t % 4 + 3;
            sum[h][dy][dx] += p[1 + j].item<double>();
            if (h == 0 && b == 0) ++count[dy][dx];
          }
        }
      }
    }
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t y = 0; y < 5; ++y) {
        for (int64_t c = 0; c < 7; ++c) {
          EXPECT_NEAR(queries[layer][h][y][c].item<double>(), sum[h][y][c] / 36,
                      1e-6);
          EXPECT_NEAR(pairs[layer][h][y][c].item<double>(),
                      sum[h][y][c] / (3 * count[y][c]), 1e-6);
        }
      }
    }
    x = block->forward(x, 0, {3, 4});
  }
}

TEST(RelativeAttention, Errors) {
  models::Classifier conv = classifier("aft-conv");
  EXPECT_THROW(RelativeAttention{*conv}, c10::Error);
  models::Classifier model = classifier("attention");
  RelativeAttention relative(*model);
  EXPECT_THROW(relative.mean(RelativeAttention::Divisor::kPairs), c10::Error);
  relative.add(torch::randn({1, 3, 6, 8}));
  EXPECT_THROW(relative.add(torch::randn({1, 3, 8, 8})), c10::Error);
}

}  // namespace
}  // namespace aft::tasks
