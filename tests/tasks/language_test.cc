// Evaluation of language models.
#include "aft/tasks/language.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

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
