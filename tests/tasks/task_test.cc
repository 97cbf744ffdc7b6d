// Model directories that somebody else made: whatever config.json and
// model.safetensors hold, a model or an error that names what is wrong.
#include "aft/tasks/task.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>

#include "aft/io/safetensors.h"
#include "aft/tasks/memory_limit.h"
#include "aft/tasks/presets.h"
#include "aft/train/checkpoint.h"
#include "tests/scratch.h"
#include "tests/tasks/small_models.h"

namespace aft::tasks {
namespace {

/// A model directory with the small model of `config`.
class ModelDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = new_folder();
    config_.layers = 2, config_.width = 16, config_.length = 8;
    config_.mixer.set({{"rank", 3}, {"heads", 4}});
  }

  /// Saves the first weights with one number in one tensor changed.
  void save(const std::string& tensor, int64_t element, double value) const {
    at::NoGradGuard no_grad;
    const models::SequenceModel model(config_);
    const train::NamedTensors tensors = train::tensors_of(*model);
    bool found = false;
    for (const auto& [name, x] : tensors) {
      if (name != tensor) continue;
      x.flatten()[element] = value;
      found = true;
    }
    ASSERT_TRUE(found) << tensor;
    train::save_tensors(file(), tensors);
  }

  std::string failure() const {
    try {
      load_model(path_, config_);
    } catch (const io::Error& e) {
      return e.what();
    }
    return "no error";
  }

  std::string file() const { return path_ + "/model.safetensors"; }

  std::string path_;
  models::SequenceModelConfig config_;
};

TEST_F(ModelDirectory, WeightsThatAreNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  save("head.weight", 5, 1e30);
  EXPECT_EQ(failure(), "no error");
  save("head.weight", 5, std::nan(""));
  EXPECT_EQ(failure(), file() +
                           ": tensor 'head.weight' must have finite numbers "
                           "(as Float), got nan at element 5");
  save("blocks_1.norm1.bias", 0, -inf);
  EXPECT_EQ(failure(), file() +
                           ": tensor 'blocks_1.norm1.bias' must have finite "
                           "numbers (as Float), got -inf at element 0");
}

TEST_F(ModelDirectory, WeightsOfAnotherModel) {
  save("head.weight", 0, 0);
  config_.width = 32;
  EXPECT_NE(failure().find("must be F32 "), std::string::npos) << failure();
  EXPECT_NE(failure().find(file()), std::string::npos) << failure();
  config_.width = 16, config_.layers = 3;
  EXPECT_NE(failure().find("must hold tensor 'blocks_2."), std::string::npos)
      << failure();
  config_.layers = 1;
  EXPECT_NE(failure().find("has a tensor 'blocks_1."), std::string::npos)
      << failure();
}

/// A small file gets no memory for a large model.
TEST_F(ModelDirectory, WeightsOfASmallerModel) {
  save("head.weight", 0, 0);
  EXPECT_EQ(failure(), "no error");
  const auto expect_refused = [&](const char* what) {
    EXPECT_EQ(failure().find(file() + ": has 60032 bytes of "), 0u)
        << what << failure();
    EXPECT_NE(failure().find("weights, but the sizes in config.json "
                             "ask for a model that takes more than 0.269 GB"),
              std::string::npos)
        << what << failure();
  };
  config_.width = 1 << 20;  // 70 TB
  expect_refused("width ");
  config_.width = 16, config_.vocabulary = 1 << 30;
  expect_refused("vocabulary ");
  config_.vocabulary = 256, config_.length = 100000;
  config_.mixer.set({{"dense", true}});
  expect_refused("length ");
  config_.mixer.set({{"dense", false}});
  std::filesystem::remove(file());
  config_.width = 1 << 20;
  EXPECT_NE(failure().find("No such file"), std::string::npos) << failure();
}

TEST_F(ModelDirectory, AConfigurationThatNobodyWrote) {
  const auto of = [&](const std::string& text) {
    std::ofstream(path_ + "/config.json", std::ios::binary) << text;
    try {
      load_config(path_);
    } catch (const base::ConfigError& e) {
      EXPECT_EQ(std::string(e.what()).find(path_ + "/config.json: "), 0u)
          << e.what();
      return std::string(e.what()).substr(path_.size() + 14);
    }
    return std::string("no error");
  };
  EXPECT_EQ(of("{}"), "no error");
  EXPECT_EQ(of(std::string(100000, '[')), "nested deeper than 32");
  EXPECT_EQ(of("null"),
            "the configuration must be an object {...}, got null "
            "null");
  EXPECT_EQ(of(R"({"model": {"layers": 1000000000000}})"),
            "model.layers must be at most 10000, got 1000000000000");
  EXPECT_EQ(of(R"({"model": {"width": 1e99}})"),
            "model.width must be a whole number, got number 1e+99");
  EXPECT_EQ(of(R"({"task": {"a": 1}})"),
            "task must be one of language, image, classification, got object "
            "{\"a\":1}");
}

/// Every key of a small configuration of every kind, each with values that it
/// cannot have: refused by complete() or by the model, or taken; never another
/// exception, a crash, or a model that takes all memory.
TEST(Configurations, EveryKeyWithEveryValue) {
  const Json values = Json::parse(
      R"([0, -1, 9223372036854775807, -9223372036854775808, 2147483648,
          2147483649, 100000,
          4611686018427387904, 0.5, -1e308, 1e308, "x", "", null, true, [],
          [1], {}, {"a": 1}])");
  int taken = 0, refused = 0, large = 0;
  for (const Json& config : small_configurations()) {
    const Json complete = task_kind(config).complete(config);
    for (const std::string& key : base::paths(complete)) {
      for (const Json& value : values) {
        SCOPED_TRACE(config["model"].dump() + " " + key + "=" + value.dump());
        Json changed = config;
        const size_t dot = key.find('.');
        if (dot == std::string::npos)
          changed[key] = value;
        else
          changed[key.substr(0, dot)][key.substr(dot + 1)] = value;
        try {
          const Json whole = task_kind(changed).complete(changed);
          const MemoryLimit limit(1 << 26);
          if (key.rfind("model.", 0) == 0) task_kind(whole).model(whole);
          ++taken;
        } catch (const TooLarge&) {
          ++large;
        } catch (const base::ConfigError&) {
          ++refused;
        } catch (const c10::Error&) {
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(taken, 500);
  EXPECT_GT(refused, 5000);
  EXPECT_GT(large, 50);
}

TEST(Presets, AllOfThemFit) {
  EXPECT_GE(presets().size(), 25u);
  for (const Preset& p : presets()) {
    SCOPED_TRACE(p.name);
    const Json config = task_kind(p.config).complete(p.config);
    EXPECT_FALSE(p.about.empty());
    const Json& model = config.at("model");
    if (model.contains("network") ||
        model["layers"].get<int64_t>() * model["width"].get<int64_t>() <=
            2048) {
      EXPECT_FALSE(task_kind(config).model(config)->parameters().empty());
    }
  }
  EXPECT_THROW(preset("enwik8-aft-lokal"), base::ConfigError);
}

}  // namespace
}  // namespace aft::tasks
