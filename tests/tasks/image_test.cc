// Autoregressive image models: configuration and training.
#include "aft/tasks/image.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "aft/data/data.h"
#include "aft/tasks/presets.h"
#include "tests/tasks/small_models.h"

namespace aft::tasks {
namespace {

ImageConfig small(const Json& model) {
  const Json given{{"task", "image"},
                   {"model", model},
                   {"data", {{"height", 3}, {"width", 2}, {"valid_images", 5}}},
                   {"train", {{"batch_size", 2}}}};
  return config_as<ImageConfig>(task_kind(given).complete(given));
}

ImageConfig local() {
  return small({{"mixer", "aft-local"},
                {"layers", 2},
                {"width", 16},
                {"window", 5},
                {"rank", 3},
                {"out", false}});
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
    return config_as<models::SequenceModelConfig>(
        task_kind(j).complete(j).at("model"));
  };
  EXPECT_EQ(complete(R"({"task": "image"})").length, 3072);
  const auto c =
      complete(R"({"task": "image", "data": {"height": 4, "width": 5}})");
  EXPECT_EQ(c.length, 60);
  EXPECT_EQ(c.columns, 15);
  EXPECT_TRUE(c.start);
  EXPECT_EQ(c.inputs(), 257);
  for (const auto& [text, word] :
       std::vector<std::pair<std::string, std::string>>{
           {R"("model": {"length": 100})", "model.length must be"},
           {R"("model": {"columns": 100})", "model.columns must be"},
           {R"("model": {"start": false})", "model.start"},
           {R"("model": [])", "model must be an object"},
           {R"("model": {"network": "vgg"})",
            "model.network must be one of pixelcnn, pixelcnn++, pixelsnail"},
           {R"("model": {"network": 3})", "model.network must be one of"},
           {R"("model": {"network": "pixelcnn", "mixer": "aft-simple"})",
            "unknown key 'model.mixer'"},
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
TEST(ImagePresets, ParametersPerLayerMatchThePaper) {
  const auto mixer = [](const std::string& name) {
    Json j = preset(name).config;
    j["model"]["layers"] = 1;
    const auto c = config_as<models::SequenceModelConfig>(
        task_kind(j).complete(j).at("model"));
    EXPECT_EQ(c.length, 3072);
    models::SequenceModel model(c);
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

TEST(ImageTask, ExamplesAreReproducible) {
  const ImageConfig c = local();
  const auto open = [&] { return data::RawImages::open("", 3, 2, 5); };
  ImageTask a(c, open()), b(c, open());
  a.model().eval(), b.model().eval();
  const double first = a.loss(0, 3, 1).item<double>(),
               later = a.loss(1895, 3, 1).item<double>();
  EXPECT_NE(first, later);
  EXPECT_EQ(b.loss(1895, 3, 1).item<double>(), later);  // in any order
  EXPECT_EQ(b.loss(0, 3, 1).item<double>(), first);
  // The next epoch augments the same images differently, so the loss over all
  // images differs.
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
  EXPECT_THROW(ImageTask(none, data::RawImages::open("", 3, 2, 0)),
               data::DataError);
}

/// Networks over images are trained like models of sequences.
TEST(ImageTask, TrainsNetworks) {
  for (const char* network : {"pixelcnn", "pixelcnn++", "pixelsnail"}) {
    SCOPED_TRACE(network);
    ImageConfig c = small(small_network(network));
    ImageTask task(c, data::RawImages::open("", 3, 2, 5));
    EXPECT_EQ(task.tokens(), 18);
    task.model().train();
    torch::optim::Adam adam(task.model().parameters(), 1e-2);
    const double before = task.validate().loss;
    for (int64_t step = 0; step < 60; ++step) {
      adam.zero_grad();
      task.loss(8 * step, 8, static_cast<uint64_t>(step)).backward();
      adam.step();
    }
    EXPECT_LT(task.validate().loss, before - 0.1);
    EXPECT_TRUE(task.model().is_training());
    c.train.recompute = true;
    EXPECT_NE(failure([&] {
                ImageTask(c, data::RawImages::open("", 3, 2, 5));
              }).find("train.recompute must be false"),
              std::string::npos);
  }
}

/// Everything learns: the start symbol, positions and biases too.
TEST(ImageTask, EveryParameterHasAGradient) {
  ImageTask task(local(), data::RawImages::open("", 3, 2, 5));
  task.model().train();
  task.loss(0, 8, 1).backward();
  for (const auto& p : task.model().named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_GT(p.value().grad().abs().sum().item<double>(), 0) << p.key();
  }
  const auto embedding = task.model().named_parameters()["embedding.weight"];
  EXPECT_GT(embedding.grad()[256].abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace aft::tasks
