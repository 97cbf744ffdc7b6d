// Training with a batch split over processes equals training in one process,
// for every task; runs resume with another number of processes. Ranks are
// threads here.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "aft/nn/mixer.h"
#include "tests/train/runs.h"

namespace aft::train {
namespace {

TEST(Distributed, TextEqualsOneProcess) { expect_alike(language(), {2, 4}); }

TEST(Distributed, BatchesNeedNotBeDivisible) {
  expect_alike(language("attention"), {3});
}

TEST(Distributed, RecomputesAndRegularises) {
  Json config = language("aft-conv");
  config["train"]["recompute"] = true, config["train"]["entropy_weight"] = 0.01;
  expect_alike(config, {2});
}

TEST(Distributed, ImagesEqualOneProcess) { expect_alike(images(), {2}); }

TEST(Distributed, ClassificationEqualsOneProcess) {
  expect_alike(classification(), {2, 4});
}

TEST(Distributed, TrainsEveryMixerAndNetwork) {
  for (const std::string& kind : nn::mixer_kinds(/*causal=*/true)) {
    SCOPED_TRACE(kind);
    Json config = few(language(kind));
    config["model"]["columns"] = 6;
    expect_alike(config, {2});
  }
  for (const Json& network : pixel_networks()) {
    SCOPED_TRACE(network.dump());
    Json config = few(images());
    config["model"] = network;
    expect_alike(config, {2});
  }
  for (const std::string& kind : nn::mixer_kinds(/*causal=*/false)) {
    if (kind == "lambda") continue;  // refused: batch normalisation
    SCOPED_TRACE("classes " + kind);
    Json config = few(classification());
    config["model"]["mixer"] = kind;
    if (kind != "aft-conv") config["model"].erase("gumbel");
    expect_alike(config, {2});
  }
}

TEST(Distributed, ResumesWithAnotherNumberOfProcesses) {
  const std::string one = new_folder(), changing = new_folder();
  const torch::Tensor alone = train(language(), 1, one);
  train(language(), 4, changing, 5);
  train(language(), 1, changing, 6);
  const torch::Tensor end = train(language(), 2, changing);
  EXPECT_LT((end - alone).abs().max().item<double>(), 2e-4);
  EXPECT_EQ(metrics(changing).size(), 20u);
  // With the same number of processes, bit-exactly.
  const std::string whole = new_folder(), parts = new_folder();
  const torch::Tensor straight = train(language(), 2, whole);
  train(language(), 2, parts, 9);
  EXPECT_TRUE(torch::equal(train(language(), 2, parts), straight));
}

TEST(Distributed, RejectsUnsupportedBatchesAndModels) {
  const auto refused = [](const Json& config, int N, const std::string& words) {
    std::vector<std::unique_ptr<Trained>> runs;
    for (int r = 0; r < N; ++r)
      runs.push_back(std::make_unique<Trained>(config));
    in_ranks(N, 20, [&](Group& g) {
      Trained& run = *runs[static_cast<size_t>(g.rank())];
      try {
        Trainer trainer(*run.task, run.recipe, "", &g);
        ADD_FAILURE() << words;
      } catch (const TrainError& e) {
        EXPECT_NE(std::string(e.what()).find(words), std::string::npos)
            << e.what();
      }
      g.leave();
    });
  };
  Json few = language();
  few["train"]["batch_size"] = 2;
  refused(few, 3, "train.batch_size must be 3 or more for 3 processes, got 2");
  Json pairs = classification();
  pairs["train"]["batch_size"] = 4;
  refused(pairs, 3,
          "train.batch_size must be 6 or more for 3 processes, got 4");
  Json lambda = classification();
  lambda["model"]["mixer"] = "lambda", lambda["model"].erase("gumbel");
  refused(lambda, 2, "batch normalisation");
}

TEST(Distributed, NonFiniteLossEndsAllRanks) {
  Json config = language();
  config["train"]["learning_rate"] = 1e20, config["train"]["grad_clip"] = 0;
  const std::string directory = new_folder();
  std::vector<std::unique_ptr<Trained>> runs;
  for (int r = 0; r < 2; ++r) runs.push_back(std::make_unique<Trained>(config));
  in_ranks(2, 20, [&](Group& g) {
    Trained& run = *runs[static_cast<size_t>(g.rank())];
    Trainer trainer(*run.task, run.recipe, directory, &g);
    EXPECT_THROW(trainer.run({}), TrainError);
    g.leave();
  });
}

}  // namespace
}  // namespace aft::train
