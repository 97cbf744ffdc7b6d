// `aft-bench distributed`: training steps of several processes relative to one
// process, and the bytes sent relative to the minimum of a ring.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "aft/base/counted.h"
#include "aft/train/distributed/group.h"
#include "bench/bench.h"
#include "cli/commands/launch.h"
#include "cli/measure/workloads.h"
#include "cli/model.h"

namespace aft::bench {
namespace {

constexpr double kTimeout = 120;

struct DistributedOptions : Options {
  std::string preset = "text-aft-local-6x256";
  int processes = 2, steps = 0;
};

/// Bytes sent over the loopback interface so far.
double loopback_bytes() {
  std::ifstream in("/proc/net/dev");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find("lo:");
    if (colon == std::string::npos) continue;
    std::istringstream numbers(line.substr(colon + 3));
    double x = 0;
    for (int i = 0; i < 9 && numbers >> x; ++i) {
    }
    return x;
  }
  throw std::runtime_error(
      "distributed: expected lo in /proc/net/dev, found none");
}

/// The work of one process: two steps, then `steps` timed ones. Rank 0 prints
/// the milliseconds per step, the bytes of the gradients, and the bytes that
/// all processes sent per step. silent: the processes run at the same time but
/// exchange no gradients.
void run_rank(const std::string& text, int steps, bool silent) {
  const train::LaunchEnvironment environment = train::launch_environment();
  std::unique_ptr<train::Group> group;
  if (environment.size > 1)
    group = std::make_unique<train::Group>(environment, kTimeout);
  base::Json config = base::Json::parse(text);
  const std::unique_ptr<train::Task> task = tasks::make_task(config);
  train::TrainConfig recipe = train_config(config);
  if (!silent) recipe.batch_size *= environment.size;
  train::Trainer trainer(*task, recipe, "", silent ? nullptr : group.get());
  task->model().train();
  for (int i = 0; i < 2; ++i) trainer.advance();
  if (group) group->any(false);
  const double before = loopback_bytes();
  const double ms = interleave({[&] { trainer.advance(); }}, {steps, 0})[0];
  const double sent = loopback_bytes() - before;
  if (group) group->any(false);
  if (environment.rank == 0)  // interleave() adds a warm-up step
    printf("%.6f %lld %.0f\n", ms, static_cast<long long>(trainer.exchanged()),
           sent / (steps + 1));
  if (group) group->leave();
}

struct StepCost {
  double ms = 0, gradients = 0, sent = 0;  // bytes
};

StepCost measure(int processes, const std::string& config, int steps,
                 bool silent) {
  std::vector<std::string> arguments = {"distributed-rank", config,
                                        std::to_string(steps)};
  if (silent) arguments.push_back("--silent");
  StepCost cost;
  if (sscanf(launch_for("distributed", processes, arguments).c_str(),
             "%lf %lf %lf", &cost.ms, &cost.gradients, &cost.sent) != 3)
    throw std::runtime_error("distributed: rank 0 printed no measurement");
  return cost;
}

void run(const DistributedOptions& o) {
  std::vector<std::string> sets = {"train.grad_accumulation=1",
                                   "train.batch_size=4"};
  sets.insert(sets.end(), o.sets.begin(), o.sets.end());
  if (o.quick)
    sets.insert(sets.end(), {"model.layers=1", "model.width=32",
                             "model.length=32", "train.batch_size=2"});
  if (o.batch > 0)
    sets.push_back("train.batch_size=" + std::to_string(o.batch));
  const base::Json config = config_on_built_in_data(o.preset, sets);
  const std::string text = config.dump();
  // For the subprocesses.
  setenv("OMP_NUM_THREADS", std::to_string(o.threads).c_str(), 1);
  const int steps = o.steps > 0 ? o.steps
                    : o.quick   ? 2
                                : 10,
            repeat = o.repetitions(5, 1).fixed;
  std::vector<double> one, several, silent;
  StepCost least;
  {
    Progress progress(static_cast<size_t>(repeat));
    for (int i = 0; i < repeat; ++i) {
      progress.next("1 and " + base::counted(o.processes, "process") +
                    ", alternating");
      one.push_back(measure(1, text, steps, false).ms);
      silent.push_back(measure(o.processes, text, steps, true).ms);
      const StepCost cost = measure(o.processes, text, steps, false);
      several.push_back(cost.ms);
      // The counter includes other programs, so the smallest value is used.
      if (i == 0 || cost.sent < least.sent) least = cost;
    }
  }
  const double n = o.processes, ms = median(several), one_ms = median(one),
               silent_ms = median(silent), sent = least.sent / n,
               bound = 2 * (n - 1) / n * least.gradients;
  if (o.json) {
    const nlohmann::ordered_json j = {{"preset", o.preset},
                                      {"processes", o.processes},
                                      {"threads", o.threads},
                                      {"one_ms", one_ms},
                                      {"silent_ms", silent_ms},
                                      {"step_ms", ms},
                                      {"efficiency", one_ms / ms},
                                      {"exchange_efficiency", silent_ms / ms},
                                      {"gradient_bytes", least.gradients},
                                      {"sent_bytes", sent},
                                      {"ring_bound_bytes", bound},
                                      {"sent_over_bound", sent / bound}};
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::cout << table(
                   {"processes", "one_ms", "silent_ms", "step_ms", "efficiency",
                    "of silent", "sent_MB", "ring_MB", "sent/ring"},
                   {{std::to_string(o.processes), number(one_ms),
                     number(silent_ms), number(ms), number(one_ms / ms),
                     number(silent_ms / ms), number(sent / 1e6),
                     number(bound / 1e6), number(sent / bound)}},
                   0)
            << o.preset << ", batch " << train_config(config).batch_size
            << " and " << base::counted(o.threads, "thread")
            << " per process; gradients of " << number(least.gradients / 1e6)
            << " MB\n";
}

}  // namespace

void add_distributed_rank(CLI::App& app) {
  struct Arguments {
    std::string config;
    int steps = 1;
    bool silent = false;
  };
  auto o = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("distributed-rank")->group("");
  command->add_option("config", o->config)->required();
  command->add_option("steps", o->steps)->required();
  command->add_flag("--silent", o->silent);
  command->callback([o] {
    set_threads(0);
    run_rank(o->config, o->steps, o->silent);
  });
}

void add_distributed(CLI::App& app) {
  auto o = std::make_shared<DistributedOptions>();
  o->threads = 1;
  CLI::App* command =
      app.add_subcommand("distributed",
                         "Training with several processes on this machine, "
                         "relative to one process");
  command->add_option("preset", o->preset,
                      "The model to train; default: text-aft-local-6x256");
  add_count(*command, "-n,--processes", o->processes, "Processes; default: 2",
            2, 4096);
  add_count(*command, "--batch", o->batch,
            "Examples per process and step; default: 4", int64_t{1},
            int64_t{1} << 30);
  add_count(*command, "--steps", o->steps, "Steps per timing; default: 10");
  add_count(*command, "--repeat", o->repeat, "Repetitions; default: 5");
  add_count(*command, "--threads", o->threads,
            "Threads per process; default: 1", 1, 4096);
  add_sets(*command, o->sets);
  command->add_flag("--quick", o->quick,
                    "A small model, only to check that everything runs");
  command->add_flag("--json", o->json,
                    "Print a JSON object instead of a table");
  command->footer(
      "The batch per process stays the same, so a step of N processes does N "
      "times the work: efficiency = one_ms / step_ms.\n"
      "silent_ms: N processes that run at the same time without exchanging "
      "gradients: the slowdown from sharing memory\n"
      "and cores. sent_MB: the data that a process sends per step over the "
      "loopback interface, including headers;\n"
      "ring_MB: 2 (N - 1) / N of the gradients, the minimum of a ring. Times "
      "are medians. Reads only built-in data and\n"
      "writes nothing.\n"
      "\n"
      "Examples:\n"
      "  aft-bench distributed\n"
      "  aft-bench distributed enwik8-aft-local-12x512 -n 4 --batch 1");
  command->callback([o] { run(*o); });
}

}  // namespace aft::bench
