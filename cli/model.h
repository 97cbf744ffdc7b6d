// What the commands on models share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "aft/io/file.h"
#include "aft/nn/aft.h"
#include "aft/tasks/generator.h"
#include "aft/tasks/task.h"

namespace aft::cli {

/// The configuration of a preset or a JSON file like one, as it was written.
/// Throws ConfigError.
models::Json preset_config(const std::string& what);
/// `--set` assignments on top of it, and every other key at its default.
/// Throws ConfigError.
models::Json apply_sets(models::Json config,
                        const std::vector<std::string>& sets);
/// The configuration that `what` names: the directory of a model, a preset, or
/// a JSON file; with `--set` assignments applied. Throws ConfigError.
models::Json choose_config(const std::string& what,
                           const std::vector<std::string>& sets);
/// Its part "model", which must be one of sequences (else UsageError), and its
/// part "train".
models::SequenceModelConfig model_config(const models::Json& config);
train::TrainConfig train_config(const models::Json& config);
/// Whether its model is no chain of mixers but what the key "network" names.
bool has_network(const models::Json& config);
/// Its part "model" in words: "aft-local, 24 layers of 256, length 1024";
/// "resnet, layers 50, width 64, classes 1000, small false".
std::string described(const models::Json& model);
/// "entropy 3.21 of 4.80 nats, 12.3 % in the top position"; of a model with one
/// position a head it says that these are of what positions are drawn from.
std::string described(const nn::Sparsity& sparsity, bool drawn = false);
/// Whether the heads of aft-conv have one position each: "gumbel" of a part
/// "model".
bool has_one_position(const models::Json& model);
bool is_directory(const std::string& path);
using io::exists;

/// `--set key=value`, as often as one likes.
void add_sets(CLI::App& command, std::vector<std::string>& sets);

/// A number in [low, high]; CLI::Range would let NaN pass.
CLI::Validator real(double low, double high);
/// How symbols are drawn: --temperature, --top-k, --top-p and --seed.
void add_sampling(CLI::App& command, tasks::Sampling& sampling,
                  const std::string& seed);

/// How a classifier looks at a picture: --size and --crop; 0: as the model's
/// configuration says.
void add_view(CLI::App& command, int64_t& size, double& crop);
/// Throws UsageError for a --size that is no multiple of a model's patch; 0:
/// none is given.
void check_size(const std::string& command, int64_t size,
                const models::Json& model);

/// Long work: what was done of it, the rate and the time left. On a terminal
/// one line that is overwritten, elsewhere a line every ten seconds.
class Meter {
 public:
  /// unit: what is counted, "images".
  explicit Meter(std::string unit) : unit_(std::move(unit)) {}
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  void show(int64_t done, int64_t all);

 private:
  std::string unit_;
  double begun_ = 0, shown_ = 0;  // seconds on a steady clock
  int64_t before_ = 0;            // done when it began
  bool open_ = false;
};

/// 1234567 as "1.23 M".
std::string count(double n);
/// Seconds as 12s, 3m05s, 2h10m.
std::string duration(double seconds);
/// Resident memory of this process in bytes; 0 where it is not known.
double resident();

/// Nats to bits.
inline constexpr double kBits = 1.4426950408889634;

}  // namespace aft::cli
