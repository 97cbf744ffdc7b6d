// Trains a configuration into a run directory: the implementation of `aft
// train`, without options and output.
#pragma once

#include <functional>
#include <string>

#include "aft/tasks/initialise.h"
#include "aft/tasks/task.h"
#include "aft/train/distributed/group.h"
#include "aft/train/trainer.h"

namespace aft::tasks {

enum class RunMode {
  /// A new run: the directory must not hold one.
  kNew,
  /// Resumes the run in the directory with `config`, which may differ from the
  /// stored one in everything but the model (except dropout), what its symbols
  /// or classes mean, and whether weights are averaged.
  kResume,
  /// For launchers that repeat a command after a failure: resumes the run if
  /// the directory holds one, which must have been started with `config`, and
  /// starts it otherwise.
  kRestart,
};

struct TrainingRun {
  Json config;  ///< complete
  std::string directory;
  RunMode mode = RunMode::kNew;
  /// Initial weights of a new run: a model directory or, for classifiers, a
  /// safetensors file, see initialise(). "": random weights.
  std::string init;
  c10::Device device = c10::kCPU;
  /// The processes that train together; null: one. Every rank calls
  /// run_training(). Only rank 0 uses `config` and `init` and reads and writes
  /// the directory.
  train::Group* group = nullptr;
};

struct RunStart {
  const Json& config;  ///< with the identity of the data
  torch::nn::Module& model;
  int64_t step;  ///< steps completed before
  bool resumed;
  bool new_data;  ///< the best score starts again, since scores cannot be
                  ///< compared with those on other data
};

/// All are optional.
struct TrainingHooks {
  ProgressCallback reading;  ///< rank 0: progress of reading data files
  std::function<void(const Transfer&)> initialised;  ///< rank 0: `init` is read
  /// The model exists, but nothing has been written or changed yet.
  std::function<void()> ready;
  /// The directory holds a run that can be resumed.
  std::function<void(const RunStart&)> started;
  /// The next three: see train::Hooks. Rank 0 calls the first two.
  std::function<void(const train::Report&, bool reported)> progress;
  std::function<void(int64_t step)> saved;
  std::function<bool()> stop;
};

struct TrainingResult {
  enum class End {
    kFinished,     ///< reached the last step
    kStopped,      ///< `stop` returned true; resume to continue
    kNothingToDo,  ///< a resumed run that already had all steps
  } end;
  int64_t step;
  Json config;
};

/// Trains until the last step or stop(). At any time the directory holds
/// either no configuration or a run that can be resumed bit-exactly. Throws
/// io::RunExists, ConfigError, data::DataError, io::Error, TrainError,
/// c10::Error; with a group also PeerError.
TrainingResult run_training(const TrainingRun& run,
                            const TrainingHooks& hooks = {});

}  // namespace aft::tasks
