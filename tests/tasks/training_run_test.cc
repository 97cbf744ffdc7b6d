// Training a configuration into a directory: new, stopped, resumed, restarted.
#include "aft/tasks/training_run.h"

#include <gtest/gtest.h>

#include <fstream>

#include "aft/io/file.h"
#include "aft/io/run_directory.h"
#include "aft/train/metrics.h"
#include "tests/scratch.h"

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

TEST(TrainingRun, InitialisesClassifiersOnly) {
  TrainingRun run = new_run();
  run.init = run.directory;
  EXPECT_NE(failure<InvalidRun>(run).find("task classification"),
            std::string::npos);
  EXPECT_FALSE(io::exists(run.directory));
}

}  // namespace
}  // namespace aft::tasks
