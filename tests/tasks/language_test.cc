// data::Text, windows, evaluation.
#include "aft/tasks/language.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <set>

namespace aft::tasks {
namespace {

models::SequenceModelConfig small(const std::string& mixer) {
  models::SequenceModelConfig c;
  c.mixer = mixer, c.layers = 2, c.width = 16, c.length = 8;
  c.mixer.set({{"window", 3}, {"rank", 3}, {"heads", 4}});
  c.dropout = 0, c.vocabulary = 256;
  return c;
}

std::string numbers(int64_t n) {
  std::string out;
  for (int64_t i = 0; i < n; ++i) out += static_cast<char>('a' + i * i % 23);
  return out;
}

TEST(Text, SplitsAndModes) {
  const data::Text bytes =
      data::Text::from("aab\nbaa\nab\ncaaaaaab\n", "bytes");
  EXPECT_EQ(bytes.train().size + bytes.valid().size + bytes.test().size, 20);
  EXPECT_EQ(bytes.train().size, 18);
  EXPECT_EQ(bytes.vocabulary(), 256);
  const data::Text txl = data::Text::from("aab\nbaa\nab\ncaaaaaab\n", "txl");
  EXPECT_EQ(txl.vocabulary(), 3);  // a, b, c
  EXPECT_EQ(txl.symbol_of('a'), 0);
  EXPECT_EQ(txl.symbol_of('b'), 1);
  EXPECT_EQ(txl.symbol_of('\n'), -1);
  EXPECT_EQ(txl.byte_of(2), 'c');
  EXPECT_EQ(txl.train().size + txl.valid().size + txl.test().size, 16);
  const data::Text eos = data::Text::from("aab\nbaa\nab\ncaaaaaab\n", "eos");
  EXPECT_EQ(eos.vocabulary(), 4);
  EXPECT_EQ(eos.byte_of(eos.symbol_of('\n')), '\n');
  EXPECT_THROW(data::Text::from("a", "words"), data::DataError);
  EXPECT_THROW(data::Text::open("/nowhere", "bytes"), data::DataError);
  EXPECT_THROW(bytes.split("dev"), data::DataError);
}

TEST(Windows, AnEpochIsEveryWindowOnce) {
  const int64_t size = 1000, T = 16;
  data::Windows windows(size, T, 1), again(size, T, 1), other(size, T, 2);
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
  EXPECT_THROW(data::Windows(20, 16, 1), data::DataError);
}

TEST(Evaluate, EveryByteOnce) {
  torch::manual_seed(1);
  const std::string text = numbers(45);
  const data::Bytes bytes{reinterpret_cast<const uint8_t*>(text.data()), 45};
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

}  // namespace
}  // namespace aft::tasks
