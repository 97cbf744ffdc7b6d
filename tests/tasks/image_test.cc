// Autoregressive images: configuration, augmentation, likelihood, completion.
#include "aft/tasks/image.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "aft/tasks/data.h"
#include "aft/tasks/presets.h"

namespace aft::tasks {
namespace {

ImageConfig small(const std::string& mixer) {
  ImageConfig c;
  c.task = "image";
  c.data.height = 3, c.data.width = 2, c.data.valid_images = 5;
  auto& m = c.model;
  m.mixer = mixer, m.layers = 2, m.width = 16, m.length = 18, m.window = 5;
  m.rank = 3, m.heads = 4, m.dropout = 0.1, m.start = true, m.out = false;
  c.train.batch = 2;
  return c;
}

/// A model whose weights are far from where they start.
models::SequenceModel stirred(const std::string& mixer) {
  torch::manual_seed(4);
  models::SequenceModel model(small(mixer).model);
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(0.3 * torch::randn_like(p));
  model->eval();
  return model;
}

std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(ImageConfig, LengthFollowsFromTheSize) {
  const auto complete = [](const std::string& text) {
    const Json j = Json::parse(text);
    return config_as<ImageConfig>(task_kind(j).complete(j));
  };
  EXPECT_EQ(complete(R"({"task": "image"})").model.length, 3072);
  const ImageConfig c =
      complete(R"({"task": "image", "data": {"height": 4, "width": 5}})");
  EXPECT_EQ(c.model.length, 60);
  EXPECT_TRUE(c.model.start);
  EXPECT_EQ(c.model.inputs(), 257);
  for (const auto& [text, word] :
       std::vector<std::pair<std::string, std::string>>{
           {R"("model": {"length": 100})", "model.length must be"},
           {R"("model": {"start": false})", "model.start"},
           {R"("model": {"vocabulary": 10})", "model.vocabulary"},
           {R"("data": {"height": 0})", "data.height"},
           {R"("data": {"width": 9999999999})", "data.width"},
           {R"("data": {"shift": -1})", "data.shift"},
           {R"("data": {"mode": "txl"})", "unknown key 'data.mode'"},
           {R"("data": {"flip": 1})", "data.flip must be true or false"}}) {
    const std::string why =
        failure([&] { complete("{\"task\": \"image\", " + text + "}"); });
    EXPECT_NE(why.find(word), std::string::npos) << text << ": " << why;
  }
  EXPECT_NE(failure([&] {
              complete(R"({"task": "sound"})");
            }).find("task must be one of language, image"),
            std::string::npos);
}

/// The paper prints the parameters of an AFT layer of the CIFAR-10 models: 0.6
/// and 9.6 million.
TEST(ImagePresets, ParametersOfALayerAreThePapers) {
  const auto mixer = [](const std::string& name) {
    Json j = preset(name).config;
    j["model"]["layers"] = 1;
    const ImageConfig c = config_as<ImageConfig>(task_kind(j).complete(j));
    EXPECT_EQ(c.model.length, 3072);
    models::SequenceModel model(c.model);
    int64_t n = 0;
    for (const auto& p : model->blocks[0]->mixer->parameters()) n += p.numel();
    return n;
  };
  // Weights and biases of three projections, and u and v or w.
  EXPECT_EQ(mixer("cifar10-aft-local-24x256"),
            3 * 256 * 257 + 2 * 3072 * 64);  // 590,592
  EXPECT_EQ(mixer("cifar10-aft-local-24x256-dense"),
            3 * 256 * 257 + 3072 * 3072);  // 9,634,560
  EXPECT_EQ(mixer("cifar10-aft-local-12x512"), 3 * 512 * 513 + 2 * 3072 * 64);
  EXPECT_EQ(mixer("cifar10-aft-simple-24x256"), 3 * 256 * 257);
  EXPECT_EQ(mixer("cifar10-transformer-24x256"), 4 * 256 * 257);
}

TEST(Augment, FlipsShiftsAndClips) {
  PicturesConfig c;
  c.height = 2, c.width = 3;
  const std::vector<uint8_t> from = {0,  1,   2,   100, 101, 102, 250, 251, 252,
                                     10, 128, 255, 40,  50,  60,  70,  80,  90};
  std::set<std::pair<bool, int>> seen;
  for (uint64_t random = 0; random < 2000; ++random) {
    std::vector<uint8_t> got(18), again(18);
    augment(c, from.data(), random * 0x9E3779B97F4A7C15u, got.data());
    augment(c, from.data(), random * 0x9E3779B97F4A7C15u, again.data());
    ASSERT_EQ(got, again);
    // 100 and 128 are never clipped: they tell what was done.
    const int add = got[3] - 100;
    ASSERT_LE(std::abs(add), 10);
    const bool flip = got[16] == 128 + add;
    for (int y = 0; y < 2; ++y)
      for (int x = 0; x < 3; ++x)
        for (int k = 0; k < 3; ++k)
          ASSERT_EQ(got[static_cast<size_t>((y * 3 + x) * 3 + k)],
                    std::clamp(from[static_cast<size_t>(
                                   (y * 3 + (flip ? 2 - x : x)) * 3 + k)] +
                                   add,
                               0, 255));
    seen.emplace(flip, add);
  }
  EXPECT_EQ(seen.size(), 42u);  // both ways, -10 to 10
  c.flip = false, c.shift = 0;
  std::vector<uint8_t> got(18);
  augment(c, from.data(), 12345, got.data());
  EXPECT_EQ(got, from);
}

TEST(ImageTask, TheSameExamplesEachTime) {
  const ImageConfig c = small("aft-local");
  const auto open = [&] { return Pictures::open("", 3, 2, 5); };
  ImageTask a(c, open()), b(c, open());
  a.model().eval(), b.model().eval();
  const double first = a.loss(0, 3, 1).item<double>(),
               later = a.loss(1895, 3, 1).item<double>();
  EXPECT_NE(first, later);
  EXPECT_EQ(b.loss(1895, 3, 1).item<double>(), later);  // in any order
  EXPECT_EQ(b.loss(0, 3, 1).item<double>(), first);
  // The same pictures in another epoch are augmented otherwise: the loss of
  // all of them is another one.
  EXPECT_NE(a.loss(0, 1995, 1).item<double>(),
            a.loss(1995, 1995, 1).item<double>());
  ImageConfig plain = c;
  plain.data.flip = false, plain.data.shift = 0;
  ImageTask p(plain, open());
  p.model().eval();
  EXPECT_NEAR(p.loss(0, 1995, 1).item<double>(),
              p.loss(1995, 1995, 1).item<double>(), 1e-5);
  EXPECT_NEAR(a.validate().loss, std::log(256), 0.3);
  EXPECT_TRUE(a.model().parameters()[0].requires_grad());

  ImageConfig none = c;
  none.data.valid_images = 0;
  EXPECT_THROW(ImageTask(none, Pictures::open("", 3, 2, 0)), DataError);
}

/// Everything learns: the start symbol, positions and biases too.
TEST(ImageTask, EveryParameterHasAGradient) {
  ImageTask task(small("aft-local"), Pictures::open("", 3, 2, 5));
  task.model().train();
  task.loss(0, 8, 1).backward();
  for (const auto& p : task.model().named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_GT(p.value().grad().abs().sum().item<double>(), 0) << p.key();
  }
  const auto embedding = task.model().named_parameters()["embedding.weight"];
  EXPECT_GT(embedding.grad()[256].abs().sum().item<double>(), 0);
}

/// -log p of a picture, one sub-pixel after the other.
double streamed(models::SequenceModel model, const uint8_t* picture) {
  models::SequenceModelState state = model->start(1);
  double total = 0;
  for (int64_t t = 0; t < model->config.length; ++t) {
    const int64_t input = t == 0 ? 256 : picture[t - 1];
    const torch::Tensor logits =
        model->step(torch::tensor({input}), state)[0].to(torch::kDouble);
    total -= logits.log_softmax(0)[picture[t]].item<double>();
  }
  return total;
}

TEST(Likelihood, ByStreamingIsThatOfTheParallelForward) {
  const Pictures pictures = Pictures::open("", 3, 2, 0);
  PicturePart part = pictures.test();
  part.count = 7;
  for (const std::string& mixer : nn::mixer_kinds()) {
    SCOPED_TRACE(mixer);
    models::SequenceModel model = stirred(mixer);
    double total = 0;
    for (int64_t i = 0; i < part.count; ++i) total += streamed(model, part[i]);
    for (int64_t batch : {1, 3, 100})
      EXPECT_NEAR(evaluate(model, part, batch), total / (7 * 18), 1e-5);
  }
  PicturePart other = Pictures::open("", 3, 3, 0).test();
  EXPECT_THROW(evaluate(stirred("aft-simple"), other, 2), c10::Error);
  other.count = 0;
  EXPECT_THROW(evaluate(stirred("aft-simple"), other, 2), c10::Error);
}

TEST(Complete, BeginsWithWhatIsGiven) {
  const Pictures pictures = Pictures::open("", 3, 2, 0);
  const auto first = [&](int64_t i, int64_t n) {
    const uint8_t* p = pictures.test()[i];
    return std::vector<uint8_t>(p, p + n);
  };
  const std::vector<std::vector<uint8_t>> given = {
      first(0, 6), first(1, 0), first(2, 17), first(3, 18), first(0, 6)};
  for (const std::string& mixer : nn::mixer_kinds()) {
    SCOPED_TRACE(mixer);
    models::SequenceModel model = stirred(mixer);
    Sampling s;
    s.seed = 5;
    int64_t steps = 0;
    const auto got =
        complete_pictures(model, s, given, [&](int64_t done, int64_t all) {
          EXPECT_EQ(all, 18);
          steps = done;
        });
    EXPECT_EQ(steps, 18);
    ASSERT_EQ(got.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      ASSERT_EQ(got[i].size(), 18u);
      EXPECT_TRUE(std::equal(given[i].begin(), given[i].end(), got[i].begin()));
    }
    EXPECT_NE(got[0], got[4]);  // the same beginning, drawn twice
    EXPECT_EQ(got, complete_pictures(model, s, given));
    s.first = 4;  // the fifth alone
    EXPECT_EQ(complete_pictures(model, s, {given[4]})[0], got[4]);
    s.first = 0, s.seed = 6;
    EXPECT_NE(got, complete_pictures(model, s, given));

    // The likeliest values are those of forward passes.
    s.temperature = 0;
    std::vector<uint8_t> by_hand = given[0];
    torch::NoGradGuard no_grad;
    while (by_hand.size() < 18) {
      std::vector<int64_t> inputs = {256};
      inputs.insert(inputs.end(), by_hand.begin(), by_hand.end());
      by_hand.push_back(static_cast<uint8_t>(
          model->forward(torch::tensor(inputs).unsqueeze(0))[0][-1]
              .argmax()
              .item<int64_t>()));
    }
    EXPECT_EQ(complete_pictures(model, s, {given[0]})[0], by_hand);
  }
  EXPECT_THROW(
      complete_pictures(stirred("aft-simple"), {}, {std::vector<uint8_t>(19)}),
      c10::Error);
}

}  // namespace
}  // namespace aft::tasks
