// Image models, both sequence models and networks: likelihood and completion.
#include "aft/tasks/image_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "aft/tasks/image.h"
#include "tests/tasks/small_models.h"

namespace aft::tasks {
namespace {

constexpr int64_t kSize = 18;  // 3 x 2 pixels

std::vector<Json> all_models() {
  std::vector<Json> out;
  for (const std::string& mixer : nn::mixer_kinds(true))
    out.push_back(small_sequence(mixer));
  for (const char* network : {"pixelcnn", "pixelcnn++", "pixelsnail"})
    out.push_back(small_network(network));
  return out;
}

/// A model with weights far from their initial values.
ImageModel stirred(const Json& model) {
  torch::manual_seed(4);
  ImageModel out(complete_image_model(model, 3, 2), 3, 2);
  torch::NoGradGuard no_grad;
  for (auto& p : out.module()->parameters()) p.add_(0.3 * torch::randn_like(p));
  out.module()->eval();
  return out;
}

/// The log-probabilities of the 256 values of sub-pixel t of an image, from
/// log_prob alone: one image for each value.
torch::Tensor next_value(const ImageModel& model,
                         const std::vector<uint8_t>& before) {
  const size_t t = before.size(), size = static_cast<size_t>(kSize);
  std::vector<uint8_t> images;
  for (int v = 0; v < 256; ++v) {
    std::vector<uint8_t> one = before;
    one.push_back(static_cast<uint8_t>(v));
    one.resize(size, 77);
    images.insert(images.end(), one.begin(), one.end());
  }
  torch::NoGradGuard no_grad;
  return model.log_prob(images.data(), 256)
      .select(1, static_cast<int64_t>(t))
      .to(torch::kDouble);
}

TEST(ImageModel, LikelihoodIsAProductOfDistributions) {
  const data::RawImages dataset = data::RawImages::open("", 3, 2, 0);
  data::ImagePart part = dataset.test();
  part.count = 1;
  for (const Json& config : all_models()) {
    SCOPED_TRACE(config.dump());
    const ImageModel model = stirred(config);
    const std::vector<uint8_t> image(part[0], part[0] + kSize);
    double total = 0;
    for (auto at = image.begin(); at != image.end(); ++at) {
      const torch::Tensor next = next_value(model, {image.begin(), at});
      EXPECT_NEAR(next.exp().sum().item<double>(), 1, 1e-4);
      total -= next[*at].item<double>();
    }
    EXPECT_NEAR(evaluate(model, part, 1), total / kSize, 1e-4);
    data::ImagePart more = part;
    more.count = 7;
    for (int64_t batch : {1, 3})
      EXPECT_NEAR(evaluate(model, more, batch), evaluate(model, more, 100),
                  1e-5);
  }
  const ImageModel model = stirred(small_sequence("aft-simple"));
  data::ImagePart other = data::RawImages::open("", 3, 3, 0).test();
  EXPECT_THROW(evaluate(model, other, 2), c10::Error);
  other.count = 0;
  EXPECT_THROW(evaluate(model, other, 2), c10::Error);
}

/// A sequence model with weights far from their initial values, and the same as
/// an image model.
std::pair<models::SequenceModel, ImageModel> stirred_sequence(
    const std::string& mixer) {
  torch::manual_seed(4);
  models::SequenceModel model(config_as<models::SequenceModelConfig>(
      complete_image_model(small_sequence(mixer), 3, 2)));
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(0.3 * torch::randn_like(p));
  model->eval();
  return {model, ImageModel(model, 3, 2)};
}

/// -log p of an image, one sub-pixel after the other.
double streamed(models::SequenceModel model, const uint8_t* image) {
  models::SequenceModelState state = model->start(1);
  double total = 0;
  for (int64_t t = 0; t < model->config.length; ++t) {
    const int64_t input = t == 0 ? 256 : image[t - 1];
    const torch::Tensor logits =
        model->step(torch::tensor({input}), state)[0].to(torch::kDouble);
    total -= logits.log_softmax(0)[image[t]].item<double>();
  }
  return total;
}

TEST(ImageModel, StreamedLikelihoodEqualsTheForwardPass) {
  const data::RawImages dataset = data::RawImages::open("", 3, 2, 0);
  data::ImagePart part = dataset.test();
  part.count = 7;
  for (const std::string& mixer : nn::mixer_kinds(true)) {
    SCOPED_TRACE(mixer);
    const auto [sequence, model] = stirred_sequence(mixer);
    double total = 0;
    for (int64_t i = 0; i < part.count; ++i)
      total += streamed(sequence, part[i]);
    for (int64_t batch : {1, 3, 100})
      EXPECT_NEAR(evaluate(model, part, batch), total / (7 * kSize), 1e-5);
  }
}

TEST(ImageModel, MostLikelyValuesEqualThoseOfForwardPasses) {
  const data::RawImages dataset = data::RawImages::open("", 3, 2, 0);
  const uint8_t* first = dataset.test()[0];
  for (const std::string& mixer : nn::mixer_kinds(true)) {
    SCOPED_TRACE(mixer);
    auto [sequence, model] = stirred_sequence(mixer);
    std::vector<uint8_t> by_hand(first, first + 6);
    Sampling s;
    s.temperature = 0;
    const auto got = model.complete(s, {by_hand})[0];
    torch::NoGradGuard no_grad;
    while (by_hand.size() < static_cast<size_t>(kSize)) {
      std::vector<int64_t> inputs = {256};
      inputs.insert(inputs.end(), by_hand.begin(), by_hand.end());
      by_hand.push_back(static_cast<uint8_t>(
          sequence->forward(torch::tensor(inputs).unsqueeze(0))[0][-1]
              .argmax()
              .item<int64_t>()));
    }
    EXPECT_EQ(got, by_hand);
  }
}

TEST(ImageModel, CompletionsStartWithTheGivenValues) {
  const data::RawImages dataset = data::RawImages::open("", 3, 2, 0);
  const auto first = [&](int64_t i, int64_t n) {
    const uint8_t* p = dataset.test()[i];
    return std::vector<uint8_t>(p, p + n);
  };
  const std::vector<std::vector<uint8_t>> given = {
      first(0, 6), first(1, 0), first(2, 17), first(3, 18), first(0, 6)};
  for (const Json& config : all_models()) {
    SCOPED_TRACE(config.dump());
    const ImageModel model = stirred(config);
    Sampling s;
    s.seed = 5;
    int64_t steps = 0;
    const auto got = model.complete(s, given, [&](int64_t done, int64_t all) {
      EXPECT_EQ(all, kSize);
      steps = done;
    });
    EXPECT_EQ(steps, kSize);
    ASSERT_EQ(got.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      ASSERT_EQ(got[i].size(), static_cast<size_t>(kSize));
      EXPECT_TRUE(std::equal(given[i].begin(), given[i].end(), got[i].begin()));
    }
    EXPECT_NE(got[0], got[4]);  // the same start, sampled twice
    EXPECT_EQ(got, model.complete(s, given));
    s.first = 4;  // the fifth alone
    EXPECT_EQ(model.complete(s, {given[4]})[0], got[4]);
    s.first = 0, s.seed = 6;
    EXPECT_NE(got, model.complete(s, given));

    // The most likely values agree with the likelihood.
    s.temperature = 0;
    const auto likeliest = model.complete(s, {given[0]})[0];
    for (size_t t = 6; t < static_cast<size_t>(kSize); t += 4) {
      const torch::Tensor next =
          next_value(model, {likeliest.begin(), likeliest.begin() + t});
      EXPECT_NEAR(next.max().item<double>(), next[likeliest[t]].item<double>(),
                  1e-4);
    }
  }
  EXPECT_THROW(stirred(small_sequence("aft-simple"))
                   .complete({}, {std::vector<uint8_t>(kSize + 1)}),
               c10::Error);
}

}  // namespace
}  // namespace aft::tasks
