// Untrusted model directories: any configuration and weights give a model or an
// error that names what is wrong.
#include "aft/tasks/task.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>

#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "aft/tasks/memory_limit.h"
#include "aft/tasks/presets.h"
#include "tests/scratch.h"
#include "tests/tasks/memory_guard.h"
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

  /// Saves the initial weights with one changed value.
  void save(const std::string& tensor, int64_t element, double value) const {
    at::NoGradGuard no_grad;
    const models::SequenceModel model(config_);
    const models::NamedTensors tensors = models::tensors_of(*model);
    bool found = false;
    for (const auto& [name, x] : tensors) {
      if (name != tensor) continue;
      x.flatten()[element] = value;
      found = true;
    }
    ASSERT_TRUE(found) << tensor;
    models::save_tensors(file(), tensors);
  }

  std::string failure() const {
    try {
      load_sequence_model(path_, config_);
    } catch (const io::Error& e) {
      return e.what();
    }
    return "no error";
  }

  std::string file() const { return path_ + "/model.safetensors"; }

  std::string path_;
  models::SequenceModelConfig config_;
};

TEST_F(ModelDirectory, RejectsNonFiniteWeights) {
  const double inf = std::numeric_limits<double>::infinity();
  save("head.weight", 5, 1e30);
  EXPECT_EQ(failure(), "no error");
  save("head.weight", 5, std::nan(""));
  EXPECT_EQ(failure(), file() +
                           ": tensor 'head.weight' must have finite values "
                           "(as Float), got nan at element 5");
  save("blocks_1.norm1.bias", 0, -inf);
  EXPECT_EQ(failure(), file() +
                           ": tensor 'blocks_1.norm1.bias' must have finite "
                           "values (as Float), got -inf at element 0");
}

TEST_F(ModelDirectory, RejectsWeightsOfAnotherModel) {
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

/// A small file must not cause a large allocation.
TEST_F(ModelDirectory, RejectsWeightsOfASmallerModel) {
  save("head.weight", 0, 0);
  EXPECT_EQ(failure(), "no error");
  const auto expect_refused = [&](const char* what) {
    EXPECT_EQ(failure().find(file() + ": has 60032 bytes of "), 0u)
        << what << failure();
    EXPECT_NE(failure().find("weights, but the sizes in the "
                             "configuration need more than 0.269 GB"),
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
  EXPECT_NE(failure().find("has no weights"), std::string::npos) << failure();
}

TEST_F(ModelDirectory, RejectsInvalidConfigurations) {
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
            "model.width must be an integer below 2^63, got number 1e+99");
  EXPECT_EQ(of(R"({"task": {"a": 1}})"),
            "task must be one of language, image, classification, got object "
            "{\"a\":1}");
}

/// Every key of a small configuration of every kind, with many values: each is
/// accepted, or rejected by complete() or the model; never another exception, a
/// crash, or a model that takes all memory.
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

TEST(Presets, AllAreValid) {
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

/// The keys before they were renamed.
constexpr const char* kOldTrain = R"({
    "steps": 7, "batch": 3, "accumulate": 5, "rate": 0.25, "warmup": 11,
    "floor": 0.125, "first": 0.5, "epoch": 13, "decay": 0.75, "clip": 17,
    "entropy": 19, "validate": 23, "save": 29, "report": 31})";
constexpr const char* kNewTrain = R"({
    "steps": 7, "batch_size": 3, "grad_accumulation": 5,
    "learning_rate": 0.25, "warmup_steps": 11, "min_learning_rate": 0.125,
    "warmup_learning_rate": 0.5, "steps_per_epoch": 13, "weight_decay": 0.75,
    "grad_clip": 17, "entropy_weight": 19, "validate_every": 23,
    "save_every": 29, "report_every": 31})";

TEST(RenamedKeys, OldConfigurationsLoad) {
  for (const char* task : {"language", "image", "classification"}) {
    const Json old{{"task", task}, {"train", Json::parse(kOldTrain)}},
        now{{"task", task}, {"train", Json::parse(kNewTrain)}};
    const Json config = task_kind(old).complete(old);
    EXPECT_EQ(config, task_kind(now).complete(now));
    for (const auto& item : now["train"].items())
      EXPECT_EQ(config["train"][item.key()], item.value()) << item.key();
    for (const auto& [before, after] : renamed_keys())
      EXPECT_FALSE(config["train"].contains(before.substr(6))) << before;
  }
  EXPECT_EQ(renamed_keys().size(), 13u);
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const base::ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(RenamedKeys, OldAndNewTogetherAreAnError) {
  for (const auto& [old, name] : renamed_keys()) {
    Json both = Json::object();
    both["train"] = {{old.substr(6), 1}, {name.substr(6), 1}};
    EXPECT_EQ(error_of([&] { task_kind(both).complete(both); }),
              old + " is the old name of " + name +
                  "; expected one of them, got both");
  }
}

/// Files in a new folder, some of which are based on others.
class PresetFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }
  static std::string failure(const std::string& path) {
    return error_of([&] { load_preset(path); });
  }

  std::string folder_ = new_folder();
};

TEST_F(PresetFiles, BasesAreMerged) {
  const Json& text = preset("text-aft-local-4x128").config;
  const auto changed = [&](const char* change) {
    Json out = text;
    base::merge(Json::parse(change), out);
    return out;
  };
  EXPECT_EQ(load_preset(write("same.json", R"({
      "base": "text-aft-local-4x128"})"))
                .config,
            text);
  // In both forms, and with an old key.
  const Preset full = load_preset(write("full.json", R"({
      "base": "text-aft-local-4x128", "about": "mine", "table": "mine",
      "paper": {"test": 1},
      "config": {"model": {"window": 5}, "train": {"rate": 0.5}}})"));
  EXPECT_EQ(full.config, changed(R"({"model": {"window": 5},
                                     "train": {"learning_rate": 0.5}})"));
  EXPECT_EQ(full.about, "mine");
  EXPECT_EQ(full.tables, std::vector<std::string>{"mine"});
  EXPECT_EQ(full.paper, Json::parse(R"({"test": 1})"));
  EXPECT_EQ(load_preset(write("plain.json", R"({
      "base": "text-aft-local-4x128", "model": {"window": 5}})"))
                .config,
            changed(R"({"model": {"window": 5}})"));
  // Files are relative to the one that names them; only the configuration is
  // inherited.
  write("deep/middle.json",
        R"({"base": "../full.json", "model": {"rank": 6}})");
  const Preset last = load_preset(write("last.json", R"({
      "base": "deep/middle.json", "config": {"model": {"window": 7}}})"));
  EXPECT_EQ(last.config, changed(R"({"model": {"window": 7, "rank": 6},
                                     "train": {"learning_rate": 0.5}})"));
  EXPECT_EQ(last.about, "");
  EXPECT_TRUE(last.tables.empty());
  EXPECT_TRUE(last.paper.is_null());
  EXPECT_EQ(load_preset(write("absolute.json",
                              R"({"base": ")" + folder_ + R"(/plain.json"})"))
                .config["model"]["window"],
            5);
}

TEST_F(PresetFiles, WrongBasesAreNamed) {
  const auto has = [](const std::string& message,
                      const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(failure(write("a.json", R"({"base": "text-aft-lokal-4x128"})")),
      {"a.json: there is no preset 'text-aft-lokal-4x128'",
       "text-aft-local-4x128"});
  has(failure(write("b.json", R"({"base": "none.json"})")),
      {"b.json: ", "none.json: cannot be opened"});
  has(failure(write("c.json", R"({"base": ["x"]})")),
      {"c.json: base must be the name of a preset or a file, got array"});
  has(failure(write("self.json", R"({"base": "./self.json"})")),
      {"self.json: ", "self.json is its own base"});
  write("x/one.json", R"({"base": "../x/two.json"})");
  has(failure(write("x/two.json", R"({"base": "one.json"})")),
      {"two.json: ", "one.json: ", "two.json is its own base"});
  has(failure(write("d.json", R"({"base": "a.json", "abuot": 1,
                                  "config": {}})")),
      {"d.json: unknown key 'abuot'; a preset has base, about, table, paper"});
  has(failure(write("e.json", R"({"about": 1, "config": {}})")),
      {"e.json: about must be a string, got number 1"});
  has(failure(write("f.json", R"({"table": [1], "config": {}})")),
      {"f.json: table must be a list of strings"});
  has(failure(write("g.json", R"({"config": 3})")),
      {"g.json: config must be an object {...}, got number 3"});
  has(failure(write("h.json", R"({"train": {"rate": 1, "learning_rate": 1}})")),
      {"h.json: train.rate is the old name of train.learning_rate"});
}

TEST(Presets, HaveTheNamesOfTheirTables) {
  std::map<std::string, int> rows;
  for (const Preset& p : presets())
    for (const std::string& table : p.tables) ++rows[table];
  // As many as the paper prints.
  for (const auto& [table, count] :
       std::map<std::string, int>{{"enwik8", 9},
                                  {"enwik8-window", 11},
                                  {"enwik8-length", 3},
                                  {"cifar10", 10},
                                  {"cifar10-factorisation", 2},
                                  {"imagenet", 12},
                                  {"imagenet-kernel", 7},
                                  {"imagenet-query", 4},
                                  {"imagenet-factorisation", 2},
                                  {"imagenet-reparameterisation", 2}})
    EXPECT_EQ(rows[table], count) << table;
  EXPECT_EQ(presets().size(), 94u);  // without the bases
  EXPECT_THROW(preset("enwik8"), base::ConfigError);
}

}  // namespace
}  // namespace aft::tasks
