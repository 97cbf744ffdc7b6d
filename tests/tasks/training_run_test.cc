// Training a configuration into a directory: new, stopped, resumed, restarted.
#include "aft/tasks/training_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "aft/base/random.h"
#include "aft/io/file.h"
#include "aft/io/run_directory.h"
#include "aft/models/weights.h"
#include "aft/tasks/language.h"
#include "aft/tasks/memory_estimate.h"
#include "aft/train/metrics.h"
#include "tests/scratch.h"
#include "tests/tasks/memory_guard.h"
#include "tests/tasks/small_models.h"

namespace aft::tasks {
namespace {

using End = TrainingResult::End;

Json configuration() {
  const Json given = {{"task", "language"},
                      {"model",
                       {{"mixer", "aft-local"},
                        {"layers", 1},
                        {"width", 16},
                        {"length", 16},
                        {"window", 4},
                        {"rank", 3},
                        {"dropout", 0.1}}},
                      {"data", {{"valid_bytes", 200}}},
                      {"train",
                       {{"steps", 12},
                        {"batch", 2},
                        {"warmup", 3},
                        {"report", 2},
                        {"validate", 5},
                        {"save", 4},
                        {"ema", 0.9}}}};
  return task_kind(given).complete(given);
}

TrainingRun new_run() {
  TrainingRun run;
  run.config = configuration();
  run.directory = new_folder() + "/runs/text";
  return run;
}

/// Stops after `steps` steps of this call.
TrainingHooks stop_after(int64_t steps) {
  TrainingHooks hooks;
  hooks.stop = [steps, taken = int64_t{0}]() mutable {
    return ++taken >= steps;
  };
  return hooks;
}

std::string contents(const std::string& path) {
  return io::read_file(path, size_t{1} << 30);
}

void expect_same_files(const std::string& one, const std::string& other) {
  const io::RunDirectory a(one), b(other);
  EXPECT_TRUE(contents(a.weights()) == contents(b.weights()));
  EXPECT_TRUE(contents(a.checkpoint()) == contents(b.checkpoint()));
  EXPECT_EQ(contents(a.config()), contents(b.config()));
  const auto x = train::read_metrics(a.metrics()),
             y = train::read_metrics(b.metrics());
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].step, y[i].step);
    EXPECT_EQ(x[i].loss, y[i].loss);
    EXPECT_EQ(x[i].validation, y[i].validation);
  }
}

template <class E>
std::string failure(const TrainingRun& run) {
  try {
    run_training(run);
  } catch (const E& e) {
    return e.what();
  }
  return "no error";
}

TEST(TrainingRun, StoppedAndResumedEqualsUninterrupted) {
  const TrainingRun whole = new_run();
  const TrainingResult done = run_training(whole);
  EXPECT_EQ(done.end, End::kFinished);
  EXPECT_EQ(done.step, 12);
  EXPECT_EQ(load_config(whole.directory), done.config);
  EXPECT_NE(done.config["data"]["fingerprint"], "");

  TrainingRun parts = new_run();
  TrainingResult part = run_training(parts, stop_after(5));
  EXPECT_EQ(part.end, End::kStopped);
  EXPECT_EQ(part.step, 5);
  parts.mode = RunMode::kResume;
  parts.config = load_config(parts.directory);
  std::vector<int64_t> starts;
  TrainingHooks hooks = stop_after(3);
  hooks.started = [&](const RunStart& start) {
    EXPECT_TRUE(start.resumed);
    starts.push_back(start.step);
  };
  part = run_training(parts, hooks);
  EXPECT_EQ(part.end, End::kStopped);
  part = run_training(parts, hooks);
  EXPECT_EQ(part.end, End::kStopped);
  hooks.stop = nullptr;
  part = run_training(parts, hooks);
  EXPECT_EQ(part.end, End::kFinished);
  EXPECT_EQ(starts, (std::vector<int64_t>{5, 8, 11}));
  expect_same_files(whole.directory, parts.directory);

  part = run_training(parts, hooks);
  EXPECT_EQ(part.end, End::kNothingToDo);
  EXPECT_EQ(part.step, 12);
  EXPECT_EQ(starts.size(), 3u);
}

TEST(TrainingRun, CallsItsHooksInOrder) {
  const TrainingRun run = new_run();
  std::string calls;
  TrainingHooks hooks;
  hooks.ready = [&] {
    EXPECT_FALSE(io::exists(run.directory));
    calls += "ready ";
  };
  hooks.started = [&](const RunStart& start) {
    EXPECT_TRUE(io::RunDirectory(run.directory).has_config());
    EXPECT_TRUE(io::RunDirectory(run.directory).has_checkpoint());
    EXPECT_FALSE(start.resumed);
    calls += "started ";
  };
  hooks.progress = [&](const train::Report& r, bool) {
    calls += std::to_string(r.step) + " ";
  };
  run_training(run, hooks);
  EXPECT_EQ(calls, "ready started 1 2 3 4 5 6 7 8 9 10 11 12 ");
}

TEST(TrainingRun, RejectsADirectoryWithARun) {
  const TrainingRun run = new_run();
  run_training(run, stop_after(1));
  const std::string before =
      contents(io::RunDirectory(run.directory).checkpoint());
  EXPECT_EQ(failure<io::RunExists>(run),
            run.directory + ": already holds a run (config.json)");
  EXPECT_EQ(contents(io::RunDirectory(run.directory).checkpoint()), before);
}

TEST(TrainingRun, RestartsItsOwnRunOnly) {
  const TrainingRun whole = new_run();
  run_training(whole);
  TrainingRun run = new_run();
  run.mode = RunMode::kRestart;
  EXPECT_EQ(run_training(run, stop_after(5)).end, End::kStopped);  // new
  EXPECT_EQ(run_training(run).end, End::kFinished);                // resumed
  expect_same_files(whole.directory, run.directory);
  run.config["model"]["window"] = 3;
  EXPECT_EQ(
      failure<io::RunExists>(run),
      run.directory + ": holds another run, with a different model.window");
}

TEST(TrainingRun, ResumesWithSomeChangesOnly) {
  TrainingRun run = new_run();
  run_training(run, stop_after(1));
  run.mode = RunMode::kResume;
  const Json stored = load_config(run.directory);
  const auto with = [&](const char* section, const char* key, Json value) {
    run.config = stored;
    run.config[section][key] = std::move(value);
    return run;
  };
  EXPECT_EQ(failure<base::ConfigError>(with("model", "width", 32)),
            "model.width is 16 in this run and cannot be changed to 32; start "
            "a new run");
  EXPECT_NE(failure<base::ConfigError>(with("data", "mode", "txl")),
            "no error");
  EXPECT_NE(failure<base::ConfigError>(with("train", "ema", 0.0)), "no error");
  EXPECT_EQ(failure<base::ConfigError>(with("train", "ema", 0.5)), "no error");
  EXPECT_EQ(run_training(with("train", "steps", 14)).step, 14);
  EXPECT_EQ(run_training(with("model", "dropout", 0.0)).end, End::kNothingToDo);
  io::RunDirectory directory(run.directory);
  std::filesystem::remove(directory.checkpoint());
  EXPECT_EQ(failure<io::Error>(with("train", "steps", 20)),
            directory.checkpoint() +
                ": does not exist; the run cannot be resumed without it");
}

// ---- Which weights commands use ---------------------------------------------

std::vector<torch::Tensor> values(const torch::nn::Module& model) {
  std::vector<torch::Tensor> out;
  for (const auto& [name, x] : models::tensors_of(model))
    out.push_back(x.clone());
  return out;
}

/// The weights that load_weights() gives.
std::vector<torch::Tensor> loaded(const std::string& directory) {
  const auto model = make_model(load_config(directory), directory);
  load_weights(directory, *model);
  return values(*model);
}

void expect_equal(const std::vector<torch::Tensor>& a,
                  const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

TEST(Weights, OfAStoppedRunAreThoseThatWereSaved) {
  for (const double ema : {0.0, 0.9}) {
    TrainingRun run = new_run();
    run.config["train"]["ema"] = ema;
    run.config["train"]["validate_every"] = 0;  // only at the end
    // Of the weights or, with ema, their averages, which validation uses.
    torch::nn::Module* model = nullptr;
    TrainingHooks hooks = stop_after(3);
    std::vector<torch::Tensor> trained;
    std::vector<int64_t> saved;
    hooks.started = [&](const RunStart& s) { model = &s.model; };
    hooks.saved = [&](int64_t step) {
      saved.push_back(step);
      EXPECT_EQ(weights_of(run.directory).best, false);  // not validated yet
      trained = values(*model);
    };
    std::vector<train::Report> reports;
    hooks.progress = [&](const train::Report& r, bool reported) {
      if (r.stopped) {
        EXPECT_TRUE(reported && r.validated);
        reports.push_back(r);
      }
    };
    EXPECT_EQ(run_training(run, hooks).end, End::kStopped);
    EXPECT_EQ(saved, std::vector<int64_t>{3});
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].step, 3);
    const Weights weights = weights_of(run.directory);
    EXPECT_TRUE(weights.checkpoint && weights.best);
    EXPECT_EQ(weights.step, 3);
    if (ema == 0) expect_equal(loaded(run.directory), trained);
    // Their validation is the one that was reported.
    LanguageConfig config =
        config_as<LanguageConfig>(load_config(run.directory));
    const data::Text text =
        data::Text::open(config.data.path, config.data.mode);
    data::Bytes valid = text.valid();
    valid.size = config.data.valid_bytes;
    const int64_t T = config.model.length;
    EXPECT_NEAR(evaluate(load_sequence_model(run.directory, config.model),
                         valid, T, T, 2),
                reports[0].validation.loss, 1e-9);
    const auto lines =
        train::read_metrics(io::RunDirectory(run.directory).metrics());
    ASSERT_FALSE(lines.empty());
    EXPECT_EQ(lines.back().step, 3);
    EXPECT_EQ(lines.back().validation, reports[0].validation.loss);
  }
}

TEST(Weights, AreTheBestOnes) {
  TrainingRun run = new_run();
  run.config["train"]["learning_rate"] = 1e-3;
  run_training(run, stop_after(6));  // validated after 5 and 6 steps
  Weights weights = weights_of(run.directory);
  EXPECT_EQ(weights.step, 6);
  EXPECT_TRUE(weights.best && weights.checkpoint);
  // Weights that were validated later count, even if the checkpoint is older.
  const io::RunDirectory files(run.directory);
  const std::string old = contents(files.checkpoint());
  run.mode = RunMode::kResume;
  run.config = load_config(run.directory);
  run_training(run);
  const int64_t best = weights_of(run.directory).step;
  EXPECT_GE(best, 10);
  EXPECT_FALSE(weights_of(run.directory).checkpoint);
  io::write_file(files.checkpoint(), old);
  EXPECT_EQ(weights_of(run.directory).step, best);
  // A checkpoint is not needed, but it is enough.
  io::write_file(files.checkpoint(), "damaged");
  EXPECT_EQ(weights_of(run.directory).step, best);
  io::write_file(files.checkpoint(), old);
  std::filesystem::remove(files.weights());
  EXPECT_EQ(weights_of(run.directory).step, 6);
  std::filesystem::remove(files.checkpoint());
  try {
    weights_of(run.directory);
    FAIL() << "no error";
  } catch (const io::Error& e) {
    EXPECT_NE(std::string(e.what()).find("has no weights"), std::string::npos);
  }
}

// ---- Other data and initial weights -----------------------------------------

/// A file with bytes that no model can predict, or with a repeated line.
std::string text_file(bool noise) {
  std::string text;
  base::Random random(1);
  while (text.size() < 8000)
    text += noise ? std::string(1, static_cast<char>(random.below(256)))
                  : "All work and no play makes for a dull day.\n";
  const std::string path = new_folder() + "/text";
  io::write_file(path, text);
  return path;
}

TEST(TrainingRun, ResumedOnOtherDataForgetsTheBestScore) {
  TrainingRun run = new_run();
  run.config["data"]["path"] = text_file(/*noise=*/false);
  run.config["train"]["learning_rate"] = 0.01;
  run_training(run);
  EXPECT_LE(weights_of(run.directory).step, 12);
  run.mode = RunMode::kResume;
  run.config = load_config(run.directory);
  run.config["train"]["steps"] = 17;
  run.config["data"]["path"] = text_file(/*noise=*/true);
  run.config["data"]["fingerprint"] = "";
  bool new_data = false;
  TrainingHooks hooks;
  hooks.started = [&](const RunStart& start) { new_data = start.new_data; };
  // On noise, every score is worse than the best one on the first text.
  run_training(run, hooks);
  EXPECT_TRUE(new_data);
  EXPECT_GT(weights_of(run.directory).step, 12);
  run.config = load_config(run.directory);
  run.config["train"]["steps"] = 18;
  run_training(run, hooks);
  EXPECT_FALSE(new_data);
}

TEST(TrainingRun, StartsWithTheWeightsOfAnotherModel) {
  const TrainingRun first = new_run();
  run_training(first);
  const std::vector<torch::Tensor> source = loaded(first.directory);
  std::vector<torch::Tensor> begun;
  Transfer transfer;
  TrainingHooks hooks;
  hooks.initialised = [&](const Transfer& t) { transfer = t; };
  hooks.started = [&](const RunStart& start) { begun = values(start.model); };
  TrainingRun next = new_run();
  next.init = first.directory;
  next.config["data"]["path"] = text_file(/*noise=*/false);
  run_training(next, hooks);
  EXPECT_TRUE(transfer.fresh.empty());
  expect_equal(begun, source);

  // Of a longer model: the positions that both have.
  next = new_run();
  next.init = first.directory;
  next.config["model"]["length"] = 24;
  run_training(next, hooks);
  EXPECT_TRUE(transfer.fresh.empty());
  for (size_t i = 0; i < source.size(); ++i)
    EXPECT_TRUE(begun[i].narrow(0, 0, source[i].size(0)).equal(source[i])) << i;

  // Of another mixer: what both have.
  next = new_run();
  next.init = first.directory;
  next.config["model"] = {{"mixer", "attention"},
                          {"heads", 2},
                          {"layers", 1},
                          {"width", 16},
                          {"length", 16}};
  next.config = task_kind(next.config).complete(next.config);
  run_training(next, hooks);
  const auto names = [&](const std::vector<std::string>& all) {
    return " " + summary(all) + ",";
  };
  EXPECT_NE(names(transfer.copied).find(" embedding,"), std::string::npos);
  EXPECT_NE(names(transfer.fresh).find(" blocks.mixer.qkv,"),
            std::string::npos);
}

TEST(TrainingRun, RejectsInitialWeightsThatDoNotFit) {
  const TrainingRun first = new_run();
  run_training(first, stop_after(1));
  TrainingRun next = new_run();
  next.init = first.directory;
  next.config["model"]["width"] = 32;
  EXPECT_EQ(failure<io::Error>(next),
            first.directory +
                ": its weights do not fit this model; expected model.width "
                "32, got 16");
  next = new_run();
  next.init = first.directory;
  next.config["data"]["mode"] = "txl";
  EXPECT_NE(failure<io::Error>(next).find("data.mode"), std::string::npos);
  next.init = "/nowhere";
  EXPECT_EQ(failure<io::Error>(next),
            "/nowhere: expected the directory of a model");
  EXPECT_FALSE(io::exists(next.directory));
}

// ---- Limits -----------------------------------------------------------------

TEST(TrainingRun, RejectsABatchThatNeedsMoreMemoryThanTheMachineHas) {
  TrainingRun run = new_run();
  run.config["train"]["batch_size"] = int64_t{1} << 22;
  run.config["model"]["width"] = 512;
  const std::string message = failure<base::ConfigError>(run);
  EXPECT_NE(message.find("training with train.batch_size 4194304 needs about "),
            std::string::npos);
  EXPECT_FALSE(io::exists(run.directory));
}

/// Networks and mixers without a formula are measured.
TEST(TrainingRun, EstimatesTheMemoryOfEveryModel) {
  for (Json config : small_configurations()) {
    config["train"] = {{"steps", 1}, {"batch_size", 1 << 24}};
    TrainingRun run = new_run();
    run.config = task_kind(config).complete(config);
    SCOPED_TRACE(run.config["model"].dump());
    if (run.config["task"] == "classification") continue;  // needs images
    const std::string message = failure<base::ConfigError>(run);
    EXPECT_NE(message.find("train.batch_size 16777216 needs about "),
              std::string::npos)
        << message;
    EXPECT_FALSE(io::exists(run.directory));
  }
}

/// Neither buffers nor gradients remain.
TEST(TrainingRun, MeasuringMemoryChangesNothing) {
  Json config{{"task", "language"}, {"model", small_sequence("performer")}};
  config["model"]["redraw_every"] = 1;
  config = task_kind(config).complete(config);
  const auto task = make_task(config);
  std::vector<torch::Tensor> before;
  for (const auto& [name, x] : models::tensors_of(task->model()))
    before.push_back(x.clone());
  check_training_memory(config, *task);
  size_t i = 0;
  for (const auto& [name, x] : models::tensors_of(task->model()))
    EXPECT_TRUE(x.equal(before[i++])) << name;
  for (const torch::Tensor& p : task->model().parameters())
    EXPECT_FALSE(p.grad().defined());
}

TEST(TrainingRun, ErrorsNameKeysOfTheConfiguration) {
  for (const auto& [mixer, key, value, expected] :
       {std::tuple<const char*, const char*, Json, const char*>(
            "aft-conv", "heads", 7,
            "model.heads must divide model.width = 16, got 7"),
        {"aft-conv", "window", 0, "model.window must be 1 or more, got 0"},
        {"aft-local", "window", -1, "model.window must be 0 or more, got -1"},
        {"aft-local", "rank", 0, "model.rank must be 1 or more, got 0"},
        {"performer", "features", -1,
         "model.features must be 0 or more, got -1"},
        {"aft-local", "dropout", 1.5,
         "model.dropout must be in [0, 1), got 1.5"}}) {
    TrainingRun run = new_run();
    run.config["model"]["mixer"] = mixer;
    run.config["model"][key] = value;
    EXPECT_EQ(failure<base::ConfigError>(run), expected);
  }
  TrainingRun run = new_run();
  run.config["model"]["mixer"] = "foo";
  EXPECT_EQ(failure<base::ConfigError>(run).find("model.mixer must be one of "),
            0u);
}

TEST(TrainingRun, ATextThatIsTooSmallIsNamed) {
  TrainingRun run = new_run();
  const std::string text = new_folder() + "/small.txt";
  io::write_file(text, "short\n");
  run.config["data"]["path"] = text;
  const std::string message = failure<data::DataError>(run);
  EXPECT_EQ(message.find(text + ": has 6 bytes, of which nine tenths, 0, "), 0u)
      << message;
  EXPECT_NE(message.find("at least 40 bytes"), std::string::npos) << message;
  // That is enough.
  io::write_file(text, std::string(40, 'a'));
  run.config["train"]["steps"] = 1;
  EXPECT_EQ(run_training(run).end, End::kFinished);
}

}  // namespace
}  // namespace aft::tasks
