// Helpers shared by the commands that work on models: configurations, common
// options and progress.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "aft/data/text.h"
#include "aft/io/file.h"
#include "aft/nn/aft.h"
#include "aft/tasks/generator.h"
#include "aft/tasks/task.h"
#include "cli/program.h"

namespace aft::cli {

// Each of these returns a complete configuration with the `--set` assignments
// applied. Throws ConfigError; UsageError for a wrong or unknown key.

/// Of a preset or of a JSON file.
base::Json preset_config(const std::string& what,
                         const std::vector<std::string>& sets);
/// Of a model directory.
base::Json directory_config(const std::string& directory,
                            const std::vector<std::string>& sets);
/// Of any of these.
base::Json choose_config(const std::string& what,
                         const std::vector<std::string>& sets);
/// Completes `given`.
base::Json apply_sets(const base::Json& given,
                      const std::vector<std::string>& sets);

/// Returns the section "model", which must describe a sequence model. Throws
/// UsageError otherwise.
models::SequenceModelConfig model_config(const base::Json& config);
/// Returns the section "train".
train::TrainConfig train_config(const base::Json& config);
/// Whether the key "network" names the model; otherwise it is made of mixer
/// blocks.
bool has_network(const base::Json& config);
/// Describes the section "model": "aft-local, 24 layers of 256, length 1024" or
/// "resnet, layers 50, width 64, classes 1000, small false".
std::string described(const base::Json& model);
/// Describes the sparsity of kernels: "entropy 3.21 of 4.80 nats, 12.3 % in the
/// top position". drawn: the model has one position per head, and the text says
/// that the figures describe the distribution the positions are sampled from.
std::string described(const nn::Sparsity& sparsity, bool drawn = false);
/// Whether each head of aft-conv has a single position: "gumbel" > 0 in the
/// section "model".
bool has_one_position(const base::Json& model);
/// Prints to stderr which weights of a model directory a command uses: "runs/x:
/// weights of step 200, the best by validation".
void report_weights(const std::string& directory);
bool is_directory(const std::string& path);
/// io::prepare_file() for the value of an option. Throws UsageError if it is a
/// file of a run directory, which would be lost.
void prepare_output(const std::string& option, const std::string& path);
/// Reads the standard input, which must not be empty. Throws io::Error.
std::string read_text_input();
/// data::Text::open(); path "-": the standard input.
data::Text open_text(const std::string& path, const std::string& mode,
                     const std::string& symbols = "");
using io::exists;

// ---- options that several commands have -------------------------------------

/// Adds an option with a text value, which the help shows as `type`.
CLI::Option* add_text(CLI::App& command, const std::string& name,
                      std::string& value, const std::string& type,
                      const std::string& help);
/// The same for an option that may be repeated.
CLI::Option* add_texts(CLI::App& command, const std::string& name,
                       std::vector<std::string>& values,
                       const std::string& type, const std::string& help);
/// Adds --batch, whose default is the value of `batch`.
void add_batch(CLI::App& command, int64_t& batch, const std::string& what);
/// Adds the required positional argument `model`, a model directory.
void add_model(CLI::App& command, std::string& model);
/// Adds --data and --split, which select what a model is evaluated on. what,
/// splits: the help.
void add_split(
    CLI::App& command, std::string& data, std::string& split,
    const std::string& what,
    const std::string& splits = "train, valid, test (default) or all");

/// Adds `--set key=value`, which may be repeated.
void add_sets(CLI::App& command, std::vector<std::string>& sets);

/// Accepts a number in [low, high]. Unlike CLI::Range, it rejects NaN.
CLI::Validator real(double low, double high);
/// Adds an option with a value in [low, high].
CLI::Option* add_real(CLI::App& command, const std::string& name, double& value,
                      const std::string& help, double low, double high);
/// Adds the sampling options --temperature, --top-k, --top-p and --seed.
void add_sampling(CLI::App& command, tasks::Sampling& sampling,
                  const std::string& seed);

/// Adds --size and --crop, which control how an image is preprocessed for a
/// classifier. 0: the value in the model's configuration.
void add_view(CLI::App& command, int64_t& size, double& crop);
/// Throws UsageError if `size` is not a multiple of the model's patch size. 0:
/// --size was not given.
void check_size(const std::string& command, int64_t size,
                const base::Json& model);

/// Shows the progress of a long operation on stderr: items done, rate and time
/// left. On a terminal it overwrites one line; elsewhere it prints a line every
/// ten seconds.
class ProgressMeter {
 public:
  /// unit: what is counted, for example "images".
  explicit ProgressMeter(std::string unit) : unit_(std::move(unit)) {}
  ~ProgressMeter();
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;
  void show(int64_t done, int64_t all);

 private:
  std::string unit_;
  double begun_ = 0, shown_ = 0;  // seconds on a steady clock
  int64_t before_ = 0;            // `done` at the first call of show()
  bool open_ = false;
};

/// Formats 1234567 as "1.23 M".
std::string count(double n);
/// Formats seconds as 12s, 3m05s or 2h10m.
std::string duration(double seconds);
/// Resident memory of this process in bytes; 0 if unknown.
double resident();

/// Bits per nat, 1 / ln 2.
inline constexpr double kBits = 1.4426950408889634;

}  // namespace aft::cli
