// The commands of `aft-bench`, and what they share: options, printed results
// and the comparison with attention.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "aft/nn/mixer.h"
#include "cli/measure/timing.h"
#include "cli/program.h"
#include "cli/table.h"

namespace aft::bench {

using namespace cli;

/// Creates the command line of `aft-bench` with all commands.
std::unique_ptr<CLI::App> make_app();

void add_ops(CLI::App& app);
void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_classify(CLI::App& app);
void add_mixers(CLI::App& app);
void add_distributed(CLI::App& app);
void add_steady(CLI::App& app);
// Hidden: what subprocesses of the commands run.
void add_measure_mixer(CLI::App& measure);
void add_distributed_rank(CLI::App& app);
void add_steady_rank(CLI::App& app);

/// Options that several commands have.
struct Options {
  std::vector<std::string> presets, sets;
  std::string plot;  ///< SVG file
  int64_t batch = 0;
  int repeat = 0, threads = 0;  ///< 0: the default
  bool json = false, quick = false;

  /// The value of --repeat, or the default, which --quick changes.
  Repeat repetitions(int usual, int quick_value) const;
};

/// Adds --repeat, --threads, --quick and --json. usual: the default of
/// --repeat, as text. quick: what --quick changes.
void add_common(CLI::App& command, Options& o, const std::string& usual,
                const std::string& quick);

/// The results of a command.
class Results {
 public:
  /// The columns of the table; the first `left` are left-aligned.
  Results(std::vector<std::string> header, size_t left)
      : header_(std::move(header)), left_(left) {}
  /// Adds a result: an object for --json, and the cells of a table row.
  void add(nlohmann::ordered_json object, std::vector<std::string> cells);
  /// Prints one JSON array, or the table between two texts.
  void print(bool json, const std::string& after = "",
             const std::string& before = "") const;

 private:
  std::vector<std::string> header_;
  size_t left_;
  nlohmann::ordered_json objects_ = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows_;
};

/// Formats a target and whether x meets it: ">= 1.00 met".
std::string target_text(double x, double target, bool at_most);
/// Formats x next to its target: "1.23 >= 1.00 met". target 0: x alone.
std::string verdict(double x, double target, bool at_most);

/// One system that is compared with attention.
struct SystemResult {
  std::string name, mixer;
  double ms = 0;                   ///< per step or batch
  double peak_gb = 0;              ///< 0: unknown
  double speedup = 0, memory = 0;  ///< relative to attention; 0: unknown

  /// Appends "peak_gb", "speedup" and "memory_share" to a JSON object.
  void append_to(nlohmann::ordered_json& object) const;
  // Table cells; target 0: none.
  std::string speedup_cell(double target) const;
  std::string peak_cell() const;
  std::string memory_cell(double target) const;
};

/// Sets `speedup` and `memory` of the systems, if one of them is attention.
template <class Result>  // derived from SystemResult
void compare_with_attention(std::vector<Result>& systems) {
  const SystemResult* attention = nullptr;
  for (const SystemResult& s : systems)
    if (nn::mixer_traits(s.mixer).attention) attention = &s;
  for (SystemResult& s : systems) {
    if (!attention || &s == attention) continue;
    s.speedup = attention->ms / s.ms;
    if (attention->peak_gb > 0) s.memory = s.peak_gb / attention->peak_gb;
  }
}

}  // namespace aft::bench
