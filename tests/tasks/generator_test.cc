// Sampling of symbols, and generation in streams.
#include "aft/tasks/generator.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "tests/scratch.h"

namespace aft::tasks {
namespace {

models::SequenceModelConfig small(const std::string& mixer) {
  models::SequenceModelConfig c;
  c.mixer = mixer, c.layers = 2, c.width = 16, c.length = 8;
  c.mixer.set({{"window", 3}, {"rank", 3}, {"heads", 4}});
  c.dropout = 0, c.vocabulary = 256, c.columns = 5;
  return c;
}

TEST(Draw, RespectsItsLimits) {
  const torch::Tensor logits = torch::tensor({1.0, 3.0, 2.0, -10.0});
  Sampling s;
  s.temperature = 0;
  EXPECT_EQ(draw(logits, s, 0.99), 1);
  s.temperature = 1;
  EXPECT_EQ(draw(logits, s, 0), 1);
  EXPECT_EQ(draw(logits, s, 1 - 1e-12), 3);
  s.top_k = 2;
  EXPECT_EQ(draw(logits, s, 1 - 1e-12), 2);
  s.top_k = 0, s.top_p = 0.5;
  EXPECT_EQ(draw(logits, s, 1 - 1e-12), 1);
  s.top_p = 0.7;
  EXPECT_EQ(draw(logits, s, 1 - 1e-12), 2);
  s.top_p = 1, s.symbols = 1;
  EXPECT_EQ(draw(logits, s, 1 - 1e-12), 0);
}

TEST(Draw, RejectsNonFiniteLogits) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    for (const double temperature : {0.0, 1.0}) {
      Sampling s;
      s.temperature = temperature;
      EXPECT_THROW(draw(torch::tensor({1.0, bad, 2.0}), s, 0.5), c10::Error);
    }
  }
  EXPECT_EQ(draw(torch::tensor({1.0, -HUGE_VAL}), Sampling(), 0.99), 0);
}

/// The expected result of greedy decoding, from forward passes on at most
/// `length` bytes, with the rule for restarts.
std::vector<int64_t> greedy(models::SequenceModel model,
                            std::vector<int64_t> context, int64_t n) {
  torch::NoGradGuard no_grad;
  std::vector<int64_t> out;
  const int64_t length = model->config.length;
  for (int64_t i = 0; i < n; ++i) {
    if (model->config.has_end() &&
        static_cast<int64_t>(context.size()) > length)
      context.erase(context.begin(), context.end() - length / 2 - 1);
    const torch::Tensor logits =
        model->forward(torch::tensor(context).unsqueeze(0))[0][-1];
    out.push_back(logits.argmax().item<int64_t>());
    context.push_back(out.back());
  }
  return out;
}

TEST(Generator, StreamsEqualForwardPasses) {
  for (const std::string& mixer : nn::mixer_kinds(true)) {
    for (bool positions : {true, false}) {
      SCOPED_TRACE(mixer + (positions ? ", positions" : ""));
      torch::manual_seed(2);
      models::SequenceModelConfig c = small(mixer);
      c.positions = positions;
      models::SequenceModel model(c);
      {
        torch::NoGradGuard no_grad;
        for (auto& p : model->parameters()) p.add_(0.5 * torch::randn_like(p));
      }
      model->eval();
      Sampling s;
      s.temperature = 0;
      // Prompts of different lengths run together; 30 bytes exceed the length
      // of 8 more than once.
      const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {9}};
      Generator generator(model, s, prompts);
      std::vector<std::vector<int64_t>> got(2);
      for (int t = 0; t < 30; ++t) {
        const auto drawn = generator.next();
        for (size_t i = 0; i < 2; ++i)
          if (drawn[i] >= 0) got[i].push_back(drawn[i]);
      }
      EXPECT_EQ(got[0].size(), 28u);
      EXPECT_EQ(got[1].size(), 30u);
      EXPECT_EQ(got[0], greedy(model, prompts[0], 28));
      EXPECT_EQ(got[1], greedy(model, prompts[1], 30));
    }
  }
}

TEST(Generator, ResumesFromAFile) {
  const std::string path = scratch() + "/generator.safetensors";
  for (const std::string& mixer : nn::mixer_kinds(true)) {
    SCOPED_TRACE(mixer);
    torch::manual_seed(3);
    models::SequenceModel model(small(mixer));
    Generator whole(model, {}, {{1, 2}, {3, 4}});
    for (int t = 0; t < 11; ++t) whole.next();  // past the length, 8
    whole.save(path);
    Generator again(model, {}, path, {{}, {}});
    for (int t = 0; t < 20; ++t) ASSERT_EQ(whole.next(), again.next()) << t;
    // A prompt to read first.
    Generator fed(model, {}, path, {{5}, {6, 7}});
    EXPECT_EQ(fed.next(), (std::vector<int64_t>{-1, -1}));
    // Another model, another number of streams.
    models::SequenceModelConfig wide = small(mixer);
    wide.width = 32;
    EXPECT_THROW(Generator(models::SequenceModel(wide), {}, path, {{}, {}}),
                 io::Error);
    EXPECT_THROW(Generator(model, {}, path, {{}}), io::Error);
    EXPECT_THROW(Generator(model, {}, path, {{}, {256}}), c10::Error);
  }
  models::save_tensors(path, {{"seen", torch::zeros({1, 1}, torch::kLong)}});
  models::SequenceModel model(small("aft-simple"));
  EXPECT_THROW(Generator(model, {}, path, {{}}), io::Error);
}

/// The header of an empty tensor may claim any length.
TEST(Generator, RejectsFilesThatNeedAllMemory) {
  const std::string path = scratch() + "/generator_hostile";
  const int64_t kMuch = int64_t{1} << 40;
  const auto failure = [&](const char* mixer, const models::NamedTensors& all,
                           int64_t position) {
    models::save_tensors(path, all, {{"position", std::to_string(position)}});
    models::SequenceModelConfig config = small(mixer);
    config.positions = false;  // streams without an end
    try {
      Generator(models::SequenceModel(config), {}, path, {{}});
    } catch (const io::Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(
      failure("aft-simple", {{"seen", at::empty({0, kMuch}, at::kLong)}}, 1),
      path + ": 'seen' must be [B, n] = [1, n], got [0, 1099511627776]");
  EXPECT_EQ(failure("aft-simple", {{"seen", at::zeros({1}, at::kLong)}}, 1),
            path + ": 'seen' must be [B, n] = [1, n], got [1]");
  EXPECT_EQ(failure("attention",
                    {{"seen", at::empty({1, 0}, at::kLong)},
                     {"layers.0.ring_v", at::empty({0, kMuch, 16})}},
                    kMuch),
            path +
                ": 'layers.0.ring_v' must be [1, 1099511627776, 16], got "
                "[0, 1099511627776, 16]");
}

}  // namespace
}  // namespace aft::tasks
