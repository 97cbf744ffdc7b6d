// Classification: the targets of the loss, reproducible examples, accuracy, and
// invalid configurations.
#include "aft/tasks/classification.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>

#include "aft/tasks/class_names.h"
#include "aft/tasks/presets.h"
#include "aft/tasks/vit_weights.h"

namespace aft::tasks {
namespace {

Json small_json() {
  return Json::parse(R"({"task": "classification",
    "model": {"mixer": "aft-conv", "layers": 1, "width": 16, "heads": 4,
              "window": 3, "patch": 8},
    "data": {"height": 32, "width": 32, "valid_images": 30, "workers": 2},
    "train": {"batch_size": 6}})");
}

std::unique_ptr<train::Task> small_task(Json json = small_json()) {
  json = classification_kind().complete(json);
  return classification_kind().make(json, {});
}

std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Train, LossIsThatOfTheMixedTargets) {
  // With a uniform output, the loss is log(6) for any target that sums to 1; if
  // the output favours class c, the loss gives the share of class c.
  Json json = small_json();
  auto task = small_task(json);
  auto* model = task->model().as<models::ClassifierImpl>();
  torch::NoGradGuard no_grad;
  model->head->weight.zero_();
  model->head->bias.zero_();
  EXPECT_NEAR(task->loss(0, 6, 1).item<double>(), std::log(6), 1e-5);
  double mean = 0;
  for (int64_t c = 0; c < 6; ++c) {
    model->head->bias.zero_();
    model->head->bias[c] = 5;
    mean += task->loss(0, 6, 1).item<double>() / 6;
  }
  // mean_c of logsumexp - 5 share_c, and the shares sum to 1.
  const double lse = std::log(5 + std::exp(5));
  EXPECT_NEAR(mean, lse - 5. / 6, 1e-4);
}

TEST(Train, WithoutSmoothingAndMixingTargetsAreOneHot) {
  Json json = small_json();
  json["data"]["mixup"] = 0, json["data"]["cutmix"] = 0;
  json["data"]["smoothing"] = 0;
  auto task = small_task(json);
  auto* model = task->model().as<models::ClassifierImpl>();
  torch::NoGradGuard no_grad;
  model->head->weight.zero_(), model->head->bias.zero_();
  model->head->bias[0] = 40;
  // The output is class 0 with a margin of 40: the loss of an image is 0 or 40.
  std::set<int64_t> costs;
  for (int64_t i = 0; i < 30; ++i)
    costs.insert(std::llround(task->loss(i, 1, 1).item<double>()));
  EXPECT_EQ(costs, (std::set<int64_t>{0, 40}));
}

TEST(Train, ExamplesDoNotDependOnEarlierCalls) {
  auto a = small_task(), b = small_task();
  torch::NoGradGuard no_grad;
  std::vector<double> first;
  for (int64_t i = 0; i < 4; ++i)
    first.push_back(a->loss(6 * i, 6, 7).item<double>());
  EXPECT_EQ(b->loss(18, 6, 7).item<double>(), first[3]);
  EXPECT_EQ(b->loss(6, 6, 7).item<double>(), first[1]);
  EXPECT_NE(first[0], first[1]);
}

TEST(Train, OrderRepeatsItems) {
  data::Order order(10, 1, 3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 10; ++i) {
      const int64_t e = 10 * epoch + i;
      EXPECT_EQ(order.at(e), order.at(10 * epoch + i / 3 * 3));
      seen.insert(order.at(e));
    }
    EXPECT_EQ(seen.size(), 4u);  // 3, 3, 3 and 1 times
  }
}

TEST(Train, Validates) {
  auto task = small_task();
  const train::Validation v = task->validate();
  EXPECT_NEAR(v.loss, std::log(6), 0.3);
  ASSERT_EQ(v.shares.size(), 2u);
  EXPECT_EQ(v.shares[0].first, "top1");
  EXPECT_LE(v.shares[0].second, v.shares[1].second);
  EXPECT_NEAR(v.score, 1 - v.shares[0].second, 1e-4);
  EXPECT_GT(v.score, 0);
}

TEST(Evaluate, CountsCorrectPredictions) {
  const auto dataset = data::LabelledImages::open("", 30, 32);
  models::ClassifierConfig c;
  c.mixer = "aft-simple", c.layers = 1, c.width = 8, c.patch = 8;
  c.rows = c.columns = 4, c.classes = 6;
  models::Classifier model(c);
  torch::NoGradGuard no_grad;
  model->head->weight.zero_();
  for (int64_t i = 0; i < 6; ++i)
    model->head->bias[i] =
        static_cast<double>(-i);  // ranks class 0 first, then 1, ...
  LabelledConfig how;
  how.height = how.width = 32;
  const std::vector<int64_t> same{0, 1, 2, 3, 4, 5};
  const Accuracy a = evaluate(*model, dataset, dataset.valid(), same, how, 7);
  EXPECT_EQ(a.images, 30);
  EXPECT_NEAR(a.top1, 1. / 6, 1e-9);
  EXPECT_NEAR(a.top5, 5. / 6, 1e-9);
  double lse = 0, mean = 0;
  for (int i = 0; i < 6; ++i) lse += std::exp(-i), mean += i / 6.;
  EXPECT_NEAR(a.loss, std::log(lse) + mean, 1e-5);
  // Classes in another order, and one that the model does not know.
  EXPECT_NEAR(
      evaluate(*model, dataset, dataset.valid(), {5, 0, 0, 1, 2, 3}, how, 30)
          .top1,
      2. / 6, 1e-9);
  const std::string unknown = failure([&] {
    evaluate(*model, dataset, dataset.valid(), {0, 1, -1, 3, 4, 5}, how, 7);
  });
  EXPECT_NE(unknown.find("'triangle' is not one of the model's 6"),
            std::string::npos)
      << unknown;
}

TEST(Config, FollowsTheMixerAndTheData) {
  const auto complete = [](const std::string& text) {
    return classification_kind().complete(Json::parse(text));
  };
  const Json conv = complete(
      R"({"task": "classification", "model": {"mixer": "aft-conv"},
          "data": {"height": 64, "width": 96}})");
  EXPECT_EQ(conv["model"]["pool"], "mean");
  EXPECT_EQ(conv["model"]["positions"], false);
  EXPECT_EQ(conv["model"]["rows"], 4);
  EXPECT_EQ(conv["model"]["columns"], 6);
  const Json vit = complete(
      R"({"task": "classification", "data": {"classes": ["a", "b"]}})");
  EXPECT_EQ(vit["model"]["pool"], "token");
  EXPECT_EQ(vit["model"]["positions"], true);
  EXPECT_EQ(vit["model"]["classes"], 2);
  EXPECT_EQ(complete(vit.dump()), vit);
  const auto wrong = [&](const std::string& part, const std::string& expected) {
    const std::string text = failure(
        [&] { complete(R"({"task": "classification", )" + part + "}"); });
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  };
  wrong(R"("data": {"height": 230})", "multiple of model.patch = 16, got 230");
  wrong(R"("model": {"rows": 3})", "model.rows must be data.height");
  wrong(R"("model": {"patch": 0})", "model.patch must be 1 or more");
  wrong(R"("data": {"classes": ["a"]}, "model": {"classes": 2})",
        "model.classes must be the number of data.classes, 1");
  const Json resnet = complete(
      R"({"task": "classification", "model": {"network": "resnet"},
          "data": {"height": 33, "classes": ["a", "b"]}})");
  EXPECT_EQ(resnet["model"]["classes"], 2);
  EXPECT_EQ(complete(resnet.dump()), resnet);
  wrong(R"("model": {"network": "vgg"})",
        "model.network must be one of resnet (or not be given), got");
  wrong(R"("model": {"network": "resnet", "patch": 16})",
        "unknown key 'model.patch'");
  wrong(R"("data": {"classes": "a"})", "a list of strings");
  wrong(R"("data": {"classes": [1]})", "a list of strings");
  wrong(R"("data": {"smoothing": 1})", "data.smoothing must be in [0");
  wrong(R"("data": {"workers": 0})", "data.workers must be in [1");
  wrong(R"("data": {"crop": 1.5})", "data.crop must be in");
  Json odd = small_json();
  odd["train"]["batch_size"] = 5;
  EXPECT_NE(
      failure([&] { small_task(odd); }).find("train.batch_size must be even"),
      std::string::npos);
}

/// A network other than Classifier: trained, validated with its running
/// statistics, and rejected with options that it does not support.
TEST(Train, AResNetLearns) {
  Json json = small_json();
  json["model"] = {
      {"network", "resnet"}, {"layers", 14}, {"width", 4}, {"small", true}};
  for (const char* off : {"mixup", "cutmix", "erase", "rand_ops", "smoothing"})
    json["data"][off] = 0;
  const auto task = small_task(json);
  torch::optim::Adam adam(task->model().parameters(), 1e-2);
  double first = 0, last = 0;  // of the same images, memorised
  for (int64_t step = 0; step < 40; ++step) {
    adam.zero_grad();
    const torch::Tensor loss = task->loss(0, 12, 1);
    loss.backward();
    adam.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.3 * first);
  EXPECT_TRUE(std::isfinite(task->validate().loss));
  EXPECT_TRUE(task->model().is_training());
  json["train"]["recompute"] = true;
  EXPECT_NE(failure([&] { small_task(json); }).find("train.recompute"),
            std::string::npos);
}

TEST(Config, EveryPresetCreatesItsNetwork) {
  int found = 0;
  for (const Preset& p : presets()) {
    if (task_kind(p.config).name != "classification") continue;
    const Json config = classification_kind().complete(p.config);
    ++found;
    if (config["model"]["width"] > 192) continue;  // large models take too long
    int64_t parameters = 0;
    for (const auto& x : classification_kind().model(config)->parameters())
      parameters += x.numel();
    const double millions = static_cast<double>(parameters) / 1e6;
    if (p.paper.is_object() && p.paper.contains("million_parameters")) {
      EXPECT_NEAR(millions, p.paper["million_parameters"].get<double>(), 0.1)
          << p.name;
    }
  }
  EXPECT_GE(found, 30);
}

TEST(RealData, DeiTTinyReachesItsAccuracy) {
  const char* data = std::getenv("AFT_DATA");
  if (!data) GTEST_SKIP() << "AFT_DATA is not set";
  const std::string root = data;
  const auto dataset =
      data::LabelledImages::open(root + "/imagenet_val1000_224", 0);
  ASSERT_EQ(dataset.test().size(), 1000u);
  EXPECT_EQ(dataset.classes()[0], "n01440764 tench, Tinca tinca");
  const ClassifierWeights weights =
      read_vit(root + "/deit_tiny/deit_tiny_patch16_224.safetensors");
  models::Classifier model(weights.config);
  transfer(weights, *model);
  model->pack_for_inference();
  data::LabelledPart part;  // of all classes
  for (size_t i = 0; i < 1000; i += 10) part.push_back(dataset.test()[i]);
  LabelledConfig how;
  how.crop = 1;  // the images are already cropped
  const Accuracy a = evaluate(*model, dataset, part,
                              match_classes(dataset, {}, 1000), how, 10);
  // 71.1 % and 89.4 % on all 1000 images; bounds of two standard deviations for
  // 100 images.
  EXPECT_NEAR(a.top1, 0.711, 0.09);
  EXPECT_NEAR(a.top5, 0.894, 0.06);
}

}  // namespace
}  // namespace aft::tasks
