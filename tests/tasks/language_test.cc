// Text, windows, evaluation and generation.
#include "aft/tasks/language.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "aft/io/safetensors.h"
#include "aft/tasks/fetch.h"
#include "aft/tasks/presets.h"
#include "aft/train/checkpoint.h"

namespace aft::tasks {
namespace {

models::SequenceModelConfig small(const std::string& mixer) {
  models::SequenceModelConfig c;
  c.mixer = mixer, c.layers = 2, c.width = 16, c.length = 8, c.window = 3;
  c.rank = 3, c.heads = 4, c.dropout = 0, c.vocabulary = 256;
  return c;
}

std::string numbers(int64_t n) {
  std::string out;
  for (int64_t i = 0; i < n; ++i) out += static_cast<char>('a' + i * i % 23);
  return out;
}

TEST(Text, SplitsAndModes) {
  const Text bytes = Text::from("aab\nbaa\nab\ncaaaaaab\n", "bytes");
  EXPECT_EQ(bytes.train().size + bytes.valid().size + bytes.test().size, 20);
  EXPECT_EQ(bytes.train().size, 18);
  EXPECT_EQ(bytes.vocabulary(), 256);
  const Text txl = Text::from("aab\nbaa\nab\ncaaaaaab\n", "txl");
  EXPECT_EQ(txl.vocabulary(), 3);  // a, b, c
  EXPECT_EQ(txl.symbol_of('a'), 0);
  EXPECT_EQ(txl.symbol_of('b'), 1);
  EXPECT_EQ(txl.symbol_of('\n'), -1);
  EXPECT_EQ(txl.byte_of(2), 'c');
  EXPECT_EQ(txl.train().size + txl.valid().size + txl.test().size, 16);
  const Text eos = Text::from("aab\nbaa\nab\ncaaaaaab\n", "eos");
  EXPECT_EQ(eos.vocabulary(), 4);
  EXPECT_EQ(eos.byte_of(eos.symbol_of('\n')), '\n');
  EXPECT_THROW(Text::from("a", "words"), DataError);
  EXPECT_THROW(Text::open("/nowhere", "bytes"), DataError);
  EXPECT_THROW(bytes.split("dev"), DataError);
  EXPECT_GT(built_in_text().size, 100000);
}

TEST(Windows, AnEpochIsEveryWindowOnce) {
  const int64_t size = 1000, T = 16;
  Windows windows(size, T, 1), again(size, T, 1), other(size, T, 2);
  const int64_t n = windows.per_epoch();
  EXPECT_EQ(n, 61);
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < 2 * n; ++i)
    (i < n ? first : second).push_back(windows.start(i));
  for (const auto& epoch : {first, second}) {
    std::set<int64_t> starts(epoch.begin(), epoch.end());
    ASSERT_EQ(static_cast<int64_t>(starts.size()), n);
    EXPECT_GE(*starts.begin(), 0);
    EXPECT_LT(*starts.begin(), T);
    EXPECT_LT(*starts.rbegin() + T, size);
    int64_t last = *starts.begin() - T;
    for (const int64_t s : starts) {
      EXPECT_EQ(s, last + T);
      last = s;
    }
  }
  EXPECT_NE(first, second);
  // Any example, in any order, is the same.
  EXPECT_EQ(again.start(n + 5), second[5]);
  EXPECT_EQ(again.start(3), first[3]);
  EXPECT_NE(other.start(3), first[3]);
  EXPECT_THROW(Windows(20, 16, 1), DataError);
}

TEST(Evaluate, EveryByteOnce) {
  torch::manual_seed(1);
  const std::string text = numbers(45);
  const Bytes bytes{reinterpret_cast<const uint8_t*>(text.data()), 45};
  models::SequenceModel model(small("aft-local"));
  model->eval();
  torch::NoGradGuard no_grad;
  // By hand: byte i + 1 from the window that first covers it.
  const auto by_hand = [&](int64_t T, int64_t stride) {
    double total = 0;
    for (int64_t i = 0; i < 44; ++i) {
      int64_t start = 0;
      while (start + T <= i) start += stride;
      std::vector<int64_t> inputs;
      for (int64_t t = start; t <= i; ++t) inputs.push_back(bytes.data[t]);
      const torch::Tensor logits =
          model->forward(torch::tensor(inputs).unsqueeze(0))[0][-1];
      total -= logits.log_softmax(0)[bytes.data[i + 1]].item<double>();
    }
    return total / 44;
  };
  for (const auto& [T, stride] :
       {std::pair<int64_t, int64_t>{8, 8}, {8, 3}, {8, 1}, {5, 5}, {4, 2}}) {
    for (int64_t batch : {1, 3, 100}) {
      EXPECT_NEAR(evaluate(model, bytes, T, stride, batch), by_hand(T, stride),
                  1e-5)
          << T << " " << stride << " " << batch;
    }
  }
}

TEST(Draw, FollowsItsLimits) {
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

/// What greedy decoding should give, by forward passes on at most `length`
/// bytes, with the rule for a new start.
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

TEST(Generator, StreamsAreForwardPasses) {
  for (const std::string& mixer : nn::mixer_kinds()) {
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
      // Prompts of different lengths run together; 30 bytes pass the length of
      // 8 more than once.
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

TEST(Generator, GoesOnFromAFile) {
  const std::string path = ::testing::TempDir() + "/generator.safetensors";
  for (const std::string& mixer : nn::mixer_kinds()) {
    SCOPED_TRACE(mixer);
    torch::manual_seed(3);
    models::SequenceModel model(small(mixer));
    Generator whole(model, {}, {{1, 2}, {3, 4}});
    for (int t = 0; t < 11; ++t) whole.next();  // past the length, 8
    whole.save(path);
    Generator again(model, {}, path, {{}, {}});
    for (int t = 0; t < 20; ++t) ASSERT_EQ(whole.next(), again.next()) << t;
    // More to read before it goes on.
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
  train::save_tensors(path, {{"seen", torch::zeros({1, 1}, torch::kLong)}});
  models::SequenceModel model(small("aft-simple"));
  EXPECT_THROW(Generator(model, {}, path, {{}}), io::Error);
}

TEST(Fetch, ChecksWhatComes) {
  const std::string directory = ::testing::TempDir() + "/fetch_test",
                    source = directory + "/source", name = "abc";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directory(directory);
  std::ofstream(source) << "abc";
  // SHA-256 of "abc" is the standard's own example.
  Dataset set{name, "", "file://" + source, 3,
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015a"
              "d"};
  EXPECT_EQ(fetch(set, directory, true), directory + "/abc");
  check_file(set, directory + "/abc");
  set.address = "file:///nowhere";  // it is there already
  EXPECT_EQ(fetch(set, directory, true), directory + "/abc");
  std::ofstream(directory + "/abc") << "abd";
  EXPECT_THROW(fetch(set, directory, true), DataError);
  std::filesystem::remove(directory + "/abc");
  EXPECT_THROW(fetch(set, directory, true), DataError);
  set.address = "file://" + source, set.sha256[0] = 'c';
  EXPECT_THROW(fetch(set, directory, true), DataError);
  set.size = 4;
  EXPECT_THROW(fetch(set, directory, true), DataError);
  EXPECT_THROW(fetch(set, "/nowhere", true), DataError);
  size_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    left += entry.path().filename() != "source";
  EXPECT_EQ(left, 0u);
  EXPECT_NE(find_dataset("enwik8"), nullptr);
  EXPECT_EQ(find_dataset("enwik9"), nullptr);
}

TEST(Presets, AllOfThemFit) {
  EXPECT_GE(presets().size(), 25u);
  for (const Preset& p : presets()) {
    SCOPED_TRACE(p.name);
    LanguageConfig config;
    models::from_json(p.config, config);
    EXPECT_FALSE(p.about.empty());
    if (config.model.layers * config.model.width <= 2048)
      models::SequenceModel model(config.model);
  }
  EXPECT_THROW(preset("enwik8-aft-lokal"), models::ConfigError);
}

}  // namespace
}  // namespace aft::tasks
