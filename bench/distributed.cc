// `aft bench distributed`: training steps of several processes against one,
// and what they send against the least that a ring must.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aft/train/distributed/group.h"
#include "bench/time.h"
#include "cli/commands.h"
#include "cli/commands/launch.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

constexpr double kTimeout = 120;

struct Options {
  std::string preset = "text-aft-local-6x256";
  std::vector<std::string> sets;
  int processes = 2, steps = 0, repeat = 0, threads = 1;
  int64_t batch = 0;
  bool json = false, quick = false;
};

/// Bytes that have left over the loopback interface so far.
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
      "bench distributed: expected lo in /proc/net/dev, found none");
}

/// What one process does: two steps, then `steps` with a clock. Rank 0 prints
/// milliseconds of a step, bytes of gradients, and bytes that all processes
/// have sent in a step. silent: without an exchange of gradients, but all at
/// once.
void take_steps(const std::string& text, int steps, bool silent) {
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
  if (environment.rank == 0)  // interleave() warms up with one step more
    printf("%.6f %lld %.0f\n", ms, static_cast<long long>(trainer.exchanged()),
           sent / (steps + 1));
  if (group) group->leave();
}

struct Step {
  double ms = 0, gradients = 0, sent = 0;
};

Step measure(int processes, const std::string& config, int steps, bool silent) {
  std::vector<std::string> arguments = {"exchange", config,
                                        std::to_string(steps)};
  if (silent) arguments.push_back("--silent");
  Step step;
  if (sscanf(launch_for("bench distributed", processes, arguments).c_str(),
             "%lf %lf %lf", &step.ms, &step.gradients, &step.sent) != 3)
    throw std::runtime_error("bench distributed: nothing measured");
  return step;
}

void run(const Options& o) {
  std::vector<std::string> sets = o.sets;
  sets.insert(sets.begin(), {"train.accumulate=1", "data.path=",
                             "data.fingerprint=", "train.batch=4"});
  if (o.quick)
    sets.insert(sets.end(), {"model.layers=1", "model.width=32",
                             "model.length=32", "train.batch=2"});
  if (o.batch > 0) sets.push_back("train.batch=" + std::to_string(o.batch));
  const base::Json config = choose_config(o.preset, sets);
  const std::string text = config.dump();
  // Each process has as many threads, however many there are.
  setenv("OMP_NUM_THREADS", std::to_string(o.threads).c_str(), 1);
  const int steps = o.steps > 0 ? o.steps : o.quick ? 2 : 10;
  const int repeat = o.repeat > 0 ? o.repeat : o.quick ? 1 : 5;
  std::vector<double> one, several, silent;
  Step least;
  {
    Progress progress(static_cast<size_t>(repeat));
    for (int i = 0; i < repeat; ++i) {
      progress.next("1 and " + std::to_string(o.processes) +
                    " processes, in turns");
      one.push_back(measure(1, text, steps, false).ms);
      silent.push_back(measure(o.processes, text, steps, true).ms);
      const Step step = measure(o.processes, text, steps, false);
      several.push_back(step.ms);
      // What other programs send adds to it.
      if (i == 0 || step.sent < least.sent) least = step;
    }
  }
  const double n = o.processes, ms = median(several),
               efficiency = median(one) / ms, exchange = median(silent) / ms,
               bound = 2 * (n - 1) / n * least.gradients, sent = least.sent / n;
  if (o.json) {
    const nlohmann::ordered_json j = {{"preset", o.preset},
                                      {"processes", o.processes},
                                      {"threads", o.threads},
                                      {"one_ms", median(one)},
                                      {"silent_ms", median(silent)},
                                      {"step_ms", ms},
                                      {"efficiency", efficiency},
                                      {"exchange_efficiency", exchange},
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
                   {{std::to_string(o.processes), number(median(one)),
                     number(median(silent)), number(ms), number(efficiency),
                     number(exchange), number(sent / 1e6), number(bound / 1e6),
                     number(sent / bound)}},
                   0)
            << o.preset << ", batch " << train_config(config).batch_size
            << " and " << o.threads << (o.threads == 1 ? " thread" : " threads")
            << " a process; gradients of " << number(least.gradients / 1e6)
            << " MB\n";
}

}  // namespace

void add_exchange(CLI::App& app) {
  struct Hidden {
    std::string config;
    int steps = 1;
    bool silent = false;
  };
  auto o = std::make_shared<Hidden>();
  CLI::App* command = app.add_subcommand("exchange")->group("");
  command->add_option("config", o->config)->required();
  command->add_option("steps", o->steps)->required();
  command->add_flag("--silent", o->silent);
  command->callback([o] {
    set_threads(0);
    take_steps(o->config, o->steps, o->silent);
  });
}

void add_bench_distributed(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "distributed", "Several processes on this machine against one");
  command->add_option("preset", o->preset,
                      "What they train; default: text-aft-local-6x256");
  command->add_option("-n,--processes", o->processes, "How many; default: 2")
      ->check(CLI::Range(2, 4096).description(""))
      ->type_name("N");
  command
      ->add_option("--batch", o->batch,
                   "Examples of each process in a step; default: 4")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->type_name("N");
  command->add_option("--steps", o->steps, "Of one measurement; default: 10")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  command->add_option("--repeat", o->repeat, "Repetitions; default: 5")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  command->add_option("--threads", o->threads, "Of each process; default: 1")
      ->check(CLI::Range(1, 4096).description(""))
      ->type_name("N");
  add_sets(*command, o->sets);
  command->add_flag("--quick", o->quick, "A small model: does it all run?");
  command->add_flag("--json", o->json, "A JSON object instead of a table");
  command->footer(
      "The batch of a process stays the same, so a step of N does the work of "
      "N: efficiency = one_ms / step_ms.\n"
      "silent_ms: N processes at once that exchange nothing: what they lose by "
      "sharing the machine's memory and\n"
      "cores. sent_MB: what a process sends in a step, over the loopback "
      "interface, headers and all; ring_MB:\n"
      "2 (N - 1) / N of the gradients, the least that a ring must send. "
      "Medians; built-in data, nothing is written.\n"
      "\n"
      "Examples:\n"
      "  aft bench distributed\n"
      "  aft bench distributed enwik8-aft-local-12x512 -n 4 --batch 1");
  command->callback([o] { run(*o); });
}

}  // namespace aft::cli
