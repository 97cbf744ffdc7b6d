#include "bench/bench.h"

#include <iostream>

#include "cli/measure/measure.h"

namespace aft::bench {

std::unique_ptr<CLI::App> make_app() {
  auto app = std::make_unique<CLI::App>(
      "Benchmarks of aft: ratios to other implementations, to the bounds of "
      "this machine and to the paper's claims",
      "aft-bench");
  app->set_version_flag("--version", "aft-bench " AFT_VERSION);
  app->require_subcommand(0, 1);  // run() has a better message for 0
  app->footer(
      std::string(
          "Examples:\n"
          "  aft-bench ops --filter local\n"
          "  aft-bench train\n"
          "  aft-bench generate\n"
          "  aft-bench classify\n"
          "  aft-bench mixers\n"
          "  aft-bench distributed\n"
          "  aft-bench steady\n"
          "  aft-bench ops --help\n"
          "\n"
          "To measure one model on this machine, use `aft bench MODEL`.\n") +
      kExitCodes);
  for (const auto add :
       {add_ops, add_train, add_generate, add_classify, add_mixers,
        add_distributed, add_steady, add_distributed_rank, add_steady_rank})
    add(*app);
  add_measure_mixer(*add_measure(*app));
  cli::finish(*app);
  return app;
}

Repeat Options::repetitions(int usual, int quick_value) const {
  Repeat r;
  r.fixed = repeat > 0 ? repeat : quick ? quick_value : usual;
  return r;
}

void add_common(CLI::App& command, Options& o, const std::string& usual,
                const std::string& quick) {
  add_count(command, "--repeat", o.repeat, "Repetitions; default: " + usual);
  add_threads(command, o.threads);
  command.add_flag("--quick", o.quick,
                   quick + ", only to check that everything runs");
  command.add_flag("--json", o.json, "Print a JSON array instead of a table");
}

void Results::add(nlohmann::ordered_json object,
                  std::vector<std::string> cells) {
  objects_.push_back(std::move(object));
  rows_.push_back(std::move(cells));
}

void Results::print(bool json, const std::string& after,
                    const std::string& before) const {
  if (json)
    std::cout << objects_.dump(2) << '\n';
  else
    std::cout << before << table(header_, rows_, left_) << after;
}

std::string target_text(double x, double target, bool at_most) {
  const bool met = at_most ? x <= target : x >= target;
  return (at_most ? "<= " : ">= ") + number(target) +
         (met ? " met" : " MISSED");
}

std::string verdict(double x, double target, bool at_most) {
  return number(x) + (target == 0 ? "" : " " + target_text(x, target, at_most));
}

void SystemResult::append_to(nlohmann::ordered_json& object) const {
  object["peak_gb"] = peak_gb;
  if (speedup > 0) object["speedup"] = speedup;
  if (memory > 0) object["memory_share"] = memory;
}

std::string SystemResult::speedup_cell(double target) const {
  return speedup > 0 ? verdict(speedup, target, false) : "-";
}

std::string SystemResult::peak_cell() const {
  return peak_gb > 0 ? number(peak_gb) : "-";
}

std::string SystemResult::memory_cell(double target) const {
  return memory > 0 ? verdict(memory, target, true) : "-";
}

}  // namespace aft::bench
