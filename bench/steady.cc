// `aft-bench steady`: whether the memory of a long run stays constant.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "aft/base/counted.h"
#include "aft/train/distributed/group.h"
#include "bench/bench.h"
#include "cli/commands/launch.h"
#include "cli/interrupt.h"
#include "cli/measure/workloads.h"
#include "cli/model.h"
#include "cli/subprocess.h"

namespace aft::bench {
namespace {

constexpr double kMost = 1.02;  // of the memory at the first step

struct SteadyOptions : Options {
  int64_t first = 100, last = 2000;
  int processes = 2;
};

/// A temporary directory, removed by the destructor.
struct TemporaryDirectory {
  std::string path =
      (std::filesystem::temp_directory_path() / "aft-steady-XXXXXX").string();
  TemporaryDirectory() {
    if (!mkdtemp(path.data()))
      throw std::runtime_error(path + ": cannot create the directory");
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

/// The work of a process: trains like `aft train`, with validation and
/// checkpoints. Rank 0 prints the resident bytes after the steps `first` and
/// `last`.
void run_rank(base::Json config, int64_t first, int64_t last) {
  config["train"]["steps"] = last;
  // Sent when the parent ends; the directory is then removed.
  catch_interrupts();
  const train::LaunchEnvironment environment = train::launch_environment();
  std::unique_ptr<train::Group> group;
  if (environment.size > 1)
    group = std::make_unique<train::Group>(environment, 120);
  const std::unique_ptr<train::Task> task = tasks::make_task(config);
  const TemporaryDirectory directory;
  train::Trainer trainer(*task, train_config(config), directory.path,
                         group.get());
  std::map<int64_t, double> seen;
  train::Hooks hooks;
  hooks.progress = [&](const train::Report& r, bool) {
    if (r.step == first || r.step == last) seen[r.step] = resident();
  };
  hooks.stop = [] { return interrupts() > 0; };
  const bool done = trainer.run(hooks);
  if (done && environment.rank == 0)
    printf("%.0f %.0f\n", seen[first], seen[last]);
  if (group) group->leave();
}

void run(const SteadyOptions& o) {
  if (o.first >= o.last)
    throw UsageError("steady: --first must be below --last, got " +
                     std::to_string(o.first) + " and " +
                     std::to_string(o.last));
  std::vector<std::pair<std::string, int>> runs;  // preset, processes
  for (const std::string& preset : o.presets) runs.emplace_back(preset, 1);
  if (o.processes > 1) runs.emplace_back(o.presets.at(0), o.processes);
  Results results({"preset", "processes", "MB at " + std::to_string(o.first),
                   "MB at " + std::to_string(o.last), "ratio"},
                  1);
  {
    Progress progress(runs.size());
    for (const auto& [preset, processes] : runs) {
      const std::string n = std::to_string(processes);
      progress.next(preset + ": " + base::counted(o.last, "step") +
                    (processes > 1 ? " in " + n + " processes" : ""));
      std::vector<std::string> sets = {
          "train.validate_every=100", "train.save_every=50", "model.layers=2",
          "model.width=32",
          "train.batch_size=" + std::to_string(std::max(4, 2 * processes))};
      sets.insert(sets.end(), o.sets.begin(), o.sets.end());
      const std::string out = launch_for(
          "steady: " + preset, processes,
          {"steady-rank", config_on_built_in_data(preset, sets).dump(),
           std::to_string(o.first), std::to_string(o.last)});
      double first = 0, last = 0;
      if (sscanf(out.c_str(), "%lf %lf", &first, &last) != 2)
        throw std::runtime_error("steady: " + preset +
                                 ": rank 0 printed no measurement");
      results.add({{"preset", preset},
                   {"processes", processes},
                   {"first_bytes", first},
                   {"last_bytes", last},
                   {"ratio", last / first}},
                  {preset, n, number(first / 1e6), number(last / 1e6),
                   verdict(last / first, kMost, true)});
    }
  }
  results.print(o.json);
}

}  // namespace

void add_steady(CLI::App& app) {
  auto o = std::make_shared<SteadyOptions>();
  o->presets = {"text-aft-local-4x128", "image-aft-conv-4x128",
                "classify-aft-conv-4x96"};
  CLI::App* command = app.add_subcommand(
      "steady", "Check that the memory of a long run stays constant");
  command->add_option("presets", o->presets,
                      "Models to train; default: a small one per task");
  constexpr int64_t kMostSteps = int64_t{1} << 40;
  add_count(*command, "--first", o->first,
            "The step of the first measurement; default: 100", int64_t{1},
            kMostSteps)
      ->type_name("STEP");
  add_count(*command, "--last", o->last,
            "The step of the last measurement; default: 2000", int64_t{2},
            kMostSteps)
      ->type_name("STEP");
  add_count(*command, "-n,--processes", o->processes,
            "Also train the first preset with N processes; 1: do not; "
            "default: 2",
            1, 4096);
  add_sets(*command, o->sets);
  command->add_flag("--json", o->json, "Print a JSON array instead of a table");
  command->footer(
      "Resident memory of a process (of several: rank 0) that trains like `aft "
      "train`, with validation every 100 steps and\n"
      "a checkpoint every 50, in a temporary directory. Models have 2 layers "
      "of 32, so that the test takes minutes.\n"
      "\n"
      "Examples:\n"
      "  aft-bench steady\n"
      "  aft-bench steady text-aft-full-4x128 --set model.width=128");
  command->callback([o] { run(*o); });
}

void add_steady_rank(CLI::App& app) {
  struct Arguments {
    std::string config;
    int64_t first = 0, last = 0;
  };
  auto o = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("steady-rank")->group("");
  command->add_option("config", o->config)->required();
  command->add_option("first", o->first)->required();
  command->add_option("last", o->last)->required();
  command->callback([o] {
    set_threads(0);
    run_rank(base::Json::parse(o->config), o->first, o->last);
  });
}

}  // namespace aft::bench
