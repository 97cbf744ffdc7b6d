// `aft bench steady`: whether the memory of a long run stays what it was.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "aft/train/distributed/group.h"
#include "cli/commands.h"
#include "cli/commands/launch.h"
#include "cli/model.h"
#include "cli/subprocess.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

constexpr double kMost = 1.02;  // of the memory at the first look

struct Options {
  std::vector<std::string> presets = {
      "text-aft-local-4x128", "image-aft-conv-4x128", "classify-aft-conv-4x96"};
  std::vector<std::string> sets;
  int64_t first = 100, last = 2000;
  int processes = 2;
  bool json = false;
};

/// A directory that goes when this does.
struct Scratch {
  std::string path =
      (std::filesystem::temp_directory_path() / "aft-steady-XXXXXX").string();
  Scratch() {
    if (!mkdtemp(path.data()))
      throw std::runtime_error(path + ": cannot be made");
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

/// A run as `aft train` does it, with validation and checkpoints, in a process
/// of its own, or one of several: rank 0 prints resident bytes after the steps
/// `first` and `last`.
void train_long(base::Json config, int64_t first, int64_t last) {
  config["train"]["steps"] = last;
  // Who ends the bench ends this too, and then the directory goes.
  signal(SIGTERM, [](int) { interrupted = 1; });
  const train::LaunchEnvironment environment = train::launch_environment();
  std::unique_ptr<train::Group> group;
  if (environment.size > 1)
    group = std::make_unique<train::Group>(environment, 120);
  const std::unique_ptr<train::Task> task = tasks::make_task(config);
  const Scratch scratch;
  train::Trainer trainer(*task, train_config(config), scratch.path,
                         group.get());
  std::map<int64_t, double> seen;
  train::Hooks hooks;
  hooks.progress = [&](const train::Report& r, bool) {
    if (r.step == first || r.step == last) seen[r.step] = resident();
  };
  hooks.stop = [] { return interrupted != 0; };
  const bool done = trainer.run(hooks);
  if (done && environment.rank == 0)
    printf("%.0f %.0f\n", seen[first], seen[last]);
  if (group) group->leave();
}

struct Row {
  std::string preset;
  int processes;
  double first, last;
};

void run(const Options& o) {
  if (o.first >= o.last)
    throw UsageError("bench steady: --first must be below --last, got " +
                     std::to_string(o.first) + " and " +
                     std::to_string(o.last));
  std::vector<Row> rows;
  for (const std::string& preset : o.presets) rows.push_back({preset, 1, 0, 0});
  if (o.processes > 1) rows.push_back({o.presets.at(0), o.processes, 0, 0});
  {
    Progress progress(rows.size());
    for (Row& row : rows) {
      progress.next(row.preset + ": " + std::to_string(o.last) + " steps" +
                    (row.processes > 1
                         ? " in " + std::to_string(row.processes) + " processes"
                         : ""));
      std::vector<std::string> sets = {
          "train.validate=100",
          "train.save=50",
          "data.path=",
          "data.fingerprint=",
          "model.layers=2",
          "model.width=32",
          "train.batch=" + std::to_string(std::max(4, 2 * row.processes))};
      sets.insert(sets.end(), o.sets.begin(), o.sets.end());
      const std::string out =
          launch_for("bench steady: " + row.preset, row.processes,
                     {"steady-of", choose_config(row.preset, sets).dump(),
                      std::to_string(o.first), std::to_string(o.last)});
      if (sscanf(out.c_str(), "%lf %lf", &row.first, &row.last) != 2)
        throw std::runtime_error("bench steady: " + row.preset +
                                 ": nothing measured");
    }
  }
  if (o.json) {
    auto j = nlohmann::ordered_json::array();
    for (const Row& r : rows)
      j.push_back({{"preset", r.preset},
                   {"processes", r.processes},
                   {"first_bytes", r.first},
                   {"last_bytes", r.last},
                   {"ratio", r.last / r.first}});
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::vector<std::vector<std::string>> cells;
  for (const Row& r : rows)
    cells.push_back({r.preset, std::to_string(r.processes),
                     number(r.first / 1e6), number(r.last / 1e6),
                     verdict(r.last / r.first, kMost, true)});
  std::cout << table({"preset", "processes", "MB at " + std::to_string(o.first),
                      "MB at " + std::to_string(o.last), "ratio"},
                     cells, 1);
}

}  // namespace

void add_bench_steady(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "steady", "Whether the memory of a long run stays what it was");
  command->add_option("presets", o->presets,
                      "What is trained; default: a small one of each task");
  command->add_option("--first", o->first, "The first look; default: 100")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("STEP");
  command->add_option("--last", o->last, "The last one; default: 2000")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40).description(""))
      ->type_name("STEP");
  command
      ->add_option("-n,--processes", o->processes,
                   "The first preset once more, trained by N processes; 1: "
                   "not; default: 2")
      ->check(CLI::Range(1, 4096).description(""))
      ->type_name("N");
  add_sets(*command, o->sets);
  command->add_flag("--json", o->json, "One JSON array instead of a table");
  command->footer(
      "Resident memory of a process (of several: of rank 0) that trains as "
      "`aft train` does, with "
      "validation every 100 steps and a checkpoint\n"
      "every 50, in a directory that is removed; models of 2 layers of 32, so "
      "that it takes minutes.\n"
      "\n"
      "Examples:\n"
      "  aft bench steady\n"
      "  aft bench steady text-aft-full-4x128 --set model.width=128");
  command->callback([o] { run(*o); });
}

void add_steady_of(CLI::App& app) {
  struct Hidden {
    std::string config;
    int64_t first = 0, last = 0;
  };
  auto o = std::make_shared<Hidden>();
  CLI::App* command = app.add_subcommand("steady-of")->group("");
  command->add_option("config", o->config)->required();
  command->add_option("first", o->first)->required();
  command->add_option("last", o->last)->required();
  command->callback([o] {
    set_threads(0);
    train_long(base::Json::parse(o->config), o->first, o->last);
  });
}

}  // namespace aft::cli
