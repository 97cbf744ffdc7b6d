// One model, many threads, each with separate streams: the samples are
// bit-identical to those of each thread alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <thread>

#include "aft/tasks/generator.h"
#include "aft/tasks/image_model.h"
#include "tests/tasks/small_models.h"

namespace aft::tasks {
namespace {

constexpr int kThreads = 8;

/// Weights that make the next symbol depend on all previous ones.
void stir(torch::nn::Module& model) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(7);
  for (auto& p : model.parameters()) p.add_(0.3 * torch::randn_like(p));
}

/// Compares `draw` in each thread alone with all threads at once, with one and
/// two of torch's threads for each.
template <class Result>
void same_together(const std::function<Result(int)>& draw) {
  at::set_num_threads(1);
  std::vector<Result> alone;
  for (int i = 0; i < kThreads; ++i) alone.push_back(draw(i));
  EXPECT_NE(alone[0], alone[1]);  // each draws its own
  for (const int below : {1, 2}) {
    SCOPED_TRACE(below);
    std::atomic<int> ready{0};
    std::vector<Result> together(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        at::set_num_threads(below);  // of this thread
        for (++ready; ready < kThreads;) std::this_thread::yield();
        together[static_cast<size_t>(i)] = draw(i);
      });
    for (std::thread& t : threads) t.join();
    for (size_t i = 0; i < kThreads; ++i)
      EXPECT_EQ(alone[i], together[i]) << "thread " << i;
  }
}

std::vector<int64_t> stream(const models::SequenceModel& model, int i,
                            int64_t symbols) {
  Sampling s;
  s.seed = 100 + static_cast<uint64_t>(i), s.temperature = 0.9;
  s.top_p = i % 2 ? 1 : 0.9;
  std::vector<int64_t> prompt, out;
  for (int64_t t = 0; t <= i; ++t) prompt.push_back((31 * i + 7 * t) % 256);
  Generator generator(model, s, {prompt});
  while (static_cast<int64_t>(out.size()) < symbols) {
    const int64_t drawn = generator.next()[0];
    if (drawn >= 0) out.push_back(drawn);
  }
  return out;
}

models::SequenceModel sequence_model(const std::string& mixer, double gumbel) {
  models::SequenceModelConfig c;
  c.mixer = mixer, c.layers = 2, c.width = 32, c.length = 48, c.columns = 6;
  c.mixer.set({{"window", 5}, {"rank", 3}, {"heads", 4}, {"gumbel", gumbel}});
  models::SequenceModel model(c);
  stir(*model);
  model->eval();
  return model;
}

/// Long enough for several restarts of models with a maximum length.
void check(const std::string& mixer, double gumbel = 0) {
  SCOPED_TRACE(mixer);
  const models::SequenceModel model = sequence_model(mixer, gumbel);
  same_together<std::vector<int64_t>>(
      [&](int i) { return stream(model, i, 200); });
}

TEST(Threads, ShareASequenceModel) {
  for (const std::string& mixer : nn::mixer_kinds(true)) check(mixer);
}

TEST(Threads, ShareAModelWithOnePositionPerHead) { check("aft-conv", 0.5); }

TEST(Threads, ShareAnImageModel) {
  using Drawn = std::vector<std::vector<uint8_t>>;
  for (const Json& config :
       {small_sequence("aft-local"), small_network("pixelcnn"),
        small_network("pixelsnail")}) {
    SCOPED_TRACE(config.dump());
    const ImageModel model(complete_image_model(config, 3, 2), 3, 2);
    stir(*model.module());
    model.module()->eval();
    same_together<Drawn>([&](int i) {
      Sampling s;
      s.seed = 10 + static_cast<uint64_t>(i);
      const uint8_t first = static_cast<uint8_t>(20 * i);
      return model.complete(s, {{}, {first}, {first, 3, 4, 5}});
    });
  }
}

}  // namespace
}  // namespace aft::tasks
