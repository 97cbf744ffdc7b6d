// Classifiers: exact numbers of parameters, image sizes, the paper's ablations,
// and inference against the forward pass of training.
#include "aft/models/classifier.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "aft/nn/aft.h"
#include "aft/nn/mixer.h"
#include "tests/autocast.h"

namespace aft::models {
namespace {

ClassifierConfig sized(const std::string& mixer, int64_t width, int64_t heads,
                       int64_t window = 11, int64_t grid = 14) {
  ClassifierConfig c;
  c.mixer = mixer, c.width = width;
  c.mixer.set({{"heads", heads}, {"window", window}});
  c.rows = c.columns = grid;
  c.follow_mixer();
  return c;
}

/// 4 x 4 patches of 4 x 4 pixels, 7 classes.
ClassifierConfig small(const std::string& mixer) {
  ClassifierConfig c = sized(mixer, 16, 4, 3, 4);
  c.layers = 2, c.patch = 4, c.classes = 7;
  c.mixer.set({{"rank", 3}});
  return c;
}

int64_t parameters(const ClassifierConfig& c) {
  int64_t all = 0;
  for (const auto& p : Classifier(c)->parameters()) all += p.numel();
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

TEST(Classifier, NumberOfParameters) {
  EXPECT_EQ(parameters(sized("attention", 192, 3)), 5717416);
  EXPECT_EQ(parameters(sized("attention", 384, 6)), 22050664);
  EXPECT_EQ(parameters(sized("attention", 768, 12, 11, 24)), 86859496);
  EXPECT_EQ(parameters(sized("aft-full", 192, 1)), 6322600);
  EXPECT_EQ(parameters(sized("aft-full", 384, 1)), 22655848);
  EXPECT_EQ(parameters(sized("aft-conv", 192, 32)), 5356072);
  EXPECT_EQ(parameters(sized("aft-conv", 192, 192)), 5962792);
  EXPECT_EQ(parameters(sized("aft-conv", 384, 16)), 20298088);
  EXPECT_EQ(parameters(sized("aft-conv", 384, 384)), 22541416);
  EXPECT_EQ(parameters(sized("aft-conv", 384, 384, 15)), 23020648);
  EXPECT_EQ(parameters(sized("lambda", 192, 3)), 4820584);
  EXPECT_EQ(parameters(sized("lambda", 384, 6)), 17682472);
  // Published: 79.7 M.
  EXPECT_EQ(parameters(sized("aft-conv", 768, 32, 25, 24)), 79864552);
}

TEST(Classifier, EveryMixerHasGradients) {
  for (const std::string& mixer : nn::mixer_kinds(false)) {
    torch::manual_seed(1);
    Classifier model(small(mixer));
    const torch::Tensor y = model->forward(torch::randn({3, 3, 16, 16}), 5);
    ASSERT_EQ(y.sizes(), (std::vector<int64_t>{3, 7})) << mixer;
    y.log_softmax(-1).select(1, 2).sum().backward();
    for (const auto& p : model->named_parameters()) {
      ASSERT_TRUE(p.value().grad().defined()) << mixer << " " << p.key();
      // Initially gamma = 0, and the raw kernels have no gradient.
      const bool raw =
          mixer == "aft-conv" && p.key().find("mixer.w") != std::string::npos;
      if (!raw) {
        EXPECT_GT(p.value().grad().abs().max().item<double>(), 0)
            << mixer << " " << p.key();
      }
    }
  }
}

TEST(Classifier, InferenceEqualsTraining) {
  for (const std::string& mixer : nn::mixer_kinds(false)) {
    torch::manual_seed(2);
    Classifier model(small(mixer));
    for (auto& p : model->parameters())
      p.data().add_(0.1 * torch::randn_like(p));
    const torch::Tensor x = torch::randn({5, 3, 16, 16});
    model->eval();  // batch norms differ in training
    const torch::Tensor expected = model->forward(x).detach();
    torch::NoGradGuard no_grad;
    const double size = expected.abs().max().item<double>();
    const auto differs = [&] {
      return (model->forward(x) - expected).abs().max().item<double>();
    };
    EXPECT_LE(differs(), 1e-5 * size) << mixer;
    model->pack_for_inference();
    EXPECT_LE(differs(), 1e-5 * size) << mixer << ", packed";
    // Independent of the other images in the batch.
    const torch::Tensor alone = model->forward(x.narrow(0, 3, 1));
    EXPECT_LE((alone[0] - expected[3]).abs().max().item<double>(), 1e-5 * size)
        << mixer;
    // A packed model has gradients.
    torch::AutoGradMode on(true);
    model->forward(x).square().sum().backward();
    for (const auto& p : model->named_parameters())
      EXPECT_TRUE(p.value().grad().defined()) << mixer << " " << p.key();
  }
}

// Recorded or not, in one thread or several.
TEST(Classifier, AutocastUpToRounding) {
  for (const std::string& mixer : nn::mixer_kinds(false)) {
    if (mixer == "reformer") continue;  // rounding moves keys between buckets
    torch::manual_seed(2);
    Classifier model(small(mixer));
    for (auto& p : model->parameters())
      p.data().add_(0.1 * torch::randn_like(p));
    const torch::Tensor x = torch::randn({5, 3, 16, 16});
    model->eval();
    const torch::Tensor expected = model->forward(x).detach();
    const auto error = [&] {
      const torch::Tensor y = model->forward(x).to(torch::kFloat);
      return ((y - expected).norm() / expected.norm()).item<double>();
    };
    const testing::Autocast autocast;
    EXPECT_LE(error(), 0.05) << mixer;
    torch::NoGradGuard no_grad;
    EXPECT_LE(error(), 0.05) << mixer;
    model->pack_for_inference();
    EXPECT_LE(error(), 0.05) << mixer;
  }
}

TEST(Classifier, RecomputedGradientsAreTheSame) {
  for (const char* mixer : {"aft-conv", "attention"}) {
    std::vector<torch::Tensor> grads;
    for (const bool again : {false, true}) {
      torch::manual_seed(3);
      ClassifierConfig c = small(mixer);
      c.drop_path = 0.4, c.dropout = 0.1;
      Classifier model(c);
      model->recompute(again);
      torch::Tensor x = torch::randn({4, 3, 16, 16});
      model->forward(x, 9).square().sum().backward();
      grads.push_back(model->blocks[0]->mixer->last_weight().grad());
    }
    EXPECT_TRUE(torch::equal(grads[0], grads[1])) << mixer;
  }
}

TEST(Classifier, AnySizeWithoutPairBiases) {
  for (const char* mixer : {"aft-conv", "attention", "aft-simple"}) {
    Classifier model(small(mixer));
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{16, 16},
                               {32, 16},
                               {4, 20},
                               {24, 24},
                               {4, 4}}) {
      const torch::Tensor y = model->forward(torch::randn({2, 3, h, w}));
      EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 7})) << mixer;
      EXPECT_TRUE(torch::isfinite(y).all().item<bool>()) << mixer;
    }
  }
  for (const char* mixer : {"aft-full", "aft-local"}) {
    Classifier model(small(mixer));
    for (const int64_t side : {8, 32}) {
      EXPECT_NE(message([&] {
                  model->forward(torch::randn({1, 3, side, side}));
                }).find("so images must be 16x16, got"),
                std::string::npos)
          << mixer << side;
    }
  }
}

TEST(Classifier, ConvolutionalLogitsAreTranslationInvariant) {
  // Global average pooling over a grid: an object far from the borders of a
  // constant image gives the same logits after a move by whole patches.
  ClassifierConfig c = small("aft-conv");
  c.rows = c.columns = 12, c.layers = 1;
  Classifier model(c);
  for (auto& p : model->parameters()) p.data().add_(0.2 * torch::randn_like(p));
  torch::NoGradGuard no_grad;
  torch::Tensor a = torch::zeros({1, 3, 48, 48}), b = a.clone();
  const torch::Tensor thing = torch::randn({3, 8, 8});
  a[0].narrow(1, 12, 8).narrow(2, 16, 8).copy_(thing);
  b[0].narrow(1, 20, 8).narrow(2, 24, 8).copy_(thing);
  const torch::Tensor ya = model->forward(a), yb = model->forward(b);
  EXPECT_LE((ya - yb).abs().max().item<double>(), 1e-5);
  b[0].narrow(1, 20, 8).narrow(2, 24, 8).copy_(-thing);
  EXPECT_GT((ya - model->forward(b)).abs().max().item<double>(), 1e-4);
}

TEST(Classifier, PositionsAreInterpolated) {
  const int64_t rows = 6, columns = 8;
  torch::Tensor p = torch::zeros({1 + rows * columns, 2});
  p[0].fill_(7);
  for (int64_t i = 0; i < rows * columns; ++i) {
    p[1 + i][0] = static_cast<double>(i / columns);
    p[1 + i][1] = static_cast<double>(i % columns);
  }
  const torch::Tensor wide =
      interpolate_positions(p, 1, rows, columns, 2 * rows, 2 * columns);
  ASSERT_EQ(wide.size(0), 1 + 4 * rows * columns);
  EXPECT_TRUE(torch::equal(wide[0], p[0]));
  // Far from the border: pixel centres are at (i + 0.5) / 2 - 0.5, and the four
  // neighbours are weighted by the cubic with a = -0.75.
  const auto cubic = [](double i) {
    const double x = (i + 0.5) / 2 - 0.5, from = std::floor(x);
    double sum = 0;
    for (int k = -1; k <= 2; ++k) {
      const double d = std::abs(x - from - k), a = -0.75;
      sum += (from + k) * (d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1
                                  : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a);
    }
    return sum;
  };
  const int64_t r = 6, at = 1 + r * 2 * columns + 9;
  EXPECT_NEAR(wide[at][0].item<double>(), cubic(6), 1e-5);
  EXPECT_NEAR(wide[at][1].item<double>(), cubic(9), 1e-5);
  EXPECT_TRUE(torch::allclose(
      interpolate_positions(p, 1, rows, columns, rows, columns), p));
}

TEST(Classifier, AblationsReachTheMixer) {
  const auto logits = [](ClassifierConfig c) {
    torch::manual_seed(4);
    Classifier model(c);
    for (auto& p : model->named_parameters())
      if (p.key().find("gamma") != std::string::npos) p.value().data().fill_(1);
    torch::manual_seed(5);
    return model->forward(torch::randn({2, 3, 16, 16}));
  };
  const ClassifierConfig base = small("aft-conv");
  ClassifierConfig none = base, only = base, naive = base, dense;
  none.mixer.set({{"gate", "none"}});
  only.mixer.set({{"window_only", true}});
  naive.mixer.set({{"naive", true}});
  EXPECT_EQ(parameters(base) - parameters(none), 2 * (16 * 16 + 16));
  EXPECT_EQ(parameters(base) - parameters(naive), 2 * 2 * 4);
  EXPECT_FALSE(torch::allclose(logits(base), logits(only)));
  dense = small("aft-full");
  const int64_t factorised = parameters(dense);
  dense.mixer.set({{"dense", true}});
  EXPECT_EQ(parameters(dense) - factorised, 2 * (17 * 17 - 2 * 17 * 3));
  for (const int64_t window : {3, 5, 7, 27}) {
    ClassifierConfig c = base;
    c.mixer.set({{"window", window}});
    EXPECT_EQ(parameters(c) - parameters(base), 2 * 4 * (window * window - 9));
    EXPECT_TRUE(torch::isfinite(logits(c)).all().item<bool>());
  }
}

TEST(Classifier, DropPathDropsSamplesAndKeepsTheMean) {
  nn::MixerOptions mixer;
  mixer.kind = "aft-simple", mixer.dim = 8, mixer.causal = false;
  nn::Block block(nn::BlockOptions(mixer).drop_path(0.25));
  const int64_t B = 4000;
  const torch::Tensor x = torch::randn({1, 2, 8}).expand({B, 2, 8});
  torch::NoGradGuard no_grad;
  const torch::Tensor y = block->forward(x, 17);
  block->eval();
  const torch::Tensor branch = block->forward(x.narrow(0, 0, 1)) - x[0];
  // Samples that skip both branches are unchanged.
  const double passed =
      (y == x).all(2).all(1).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(passed, 0.25 * 0.25, 0.015);
  block->train();
  EXPECT_TRUE(torch::equal(block->forward(x, 17), y));
  EXPECT_FALSE(torch::equal(block->forward(x, 18), y));
  EXPECT_GT(branch.abs().max().item<double>(), 0);
}

TEST(Classifier, InvalidArguments) {
  const auto made = [](const std::function<void(ClassifierConfig&)>& change) {
    ClassifierConfig c = small("aft-conv");
    change(c);
    return message([&] { Classifier model(c); });
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(made([](auto& c) { c.layers = 0; }), "model.layers must be 1 or more");
  has(made([](auto& c) { c.pool = "max"; }), "token or mean, got 'max'");
  has(made([](auto& c) { c.pool = "token"; }), "model.pool must be mean");
  has(made([](auto& c) {
        c.mixer.set({{"window", 4}});
      }),
      "model.window must be odd");
  has(made([](auto& c) {
        c.mixer.set({{"heads", 5}});
      }),
      "model.heads must divide model.width = 16");
  has(made([](auto& c) { c.mixer = "aft-cone"; }),
      "model.mixer must be one of");
  has(made([](auto& c) { c.mixer.set({{"gate", "cosh"}}); }), "cosh");
  has(made([](auto& c) { c.drop_path = 1; }),
      "model.drop_path must be in [0, 1)");
  Classifier model(small("aft-conv"));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 3, 15, 16},
                                            {1, 1, 16, 16},
                                            {3, 16, 16},
                                            {1, 3, 0, 16}}) {
    has(message([&] { model->forward(torch::zeros(shape)); }),
        "multiples of the patch, 4");
  }
}

}  // namespace
}  // namespace aft::models
