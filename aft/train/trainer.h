// The training loop shared by all tasks: gradient accumulation, clipping, the
// learning rate schedule, EMA, validation and checkpoints. All randomness is a
// function of the seed and the step, so a resumed run is bit-identical to an
// uninterrupted one.
//
// It writes the weights, the checkpoint and the metrics of a run directory
// (aft/io/run_directory.h); the caller writes the configuration.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "aft/io/run_directory.h"
#include "aft/nn/aft.h"
#include "aft/train/distributed/gradients.h"
#include "aft/train/distributed/group.h"
#include "aft/train/optimizer.h"

namespace aft::train {

struct TrainConfig {
  int64_t steps = 1000;
  int64_t batch_size = 8;          ///< sequences per micro-batch
  int64_t grad_accumulation = 1;   ///< micro-batches per step
  double learning_rate = 3e-3;     ///< peak
  std::string schedule = "rsqrt";  ///< rsqrt, cosine, constant or deit
  int64_t warmup_steps = 100;
  double min_learning_rate = 0;     ///< cosine and deit: final rate
  double warmup_learning_rate = 0;  ///< deit: initial rate
  int64_t steps_per_epoch = 1;      ///< deit: the rate is constant in an epoch
  double weight_decay = 0.1;        ///< of linear and convolution weights only
  double beta1 = 0.9, beta2 = 0.95;
  double grad_clip = 1;  ///< maximum gradient norm; 0: no clipping
  double ema = 0;        ///< decay of the averaged weights, e.g. 0.999; 0: off
  double entropy_weight = 0;  ///< of the entropy of aft-conv's kernels; 0: off
  bool recompute = false;     ///< recompute activations of blocks in backward
  int64_t seed = 1;
  int64_t report_every = 10;     ///< steps between lines of metrics.jsonl
  int64_t validate_every = 100;  ///< steps; 0: only at the end
  int64_t save_every = 100;      ///< steps between checkpoints

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("steps", s.steps), f("batch_size", s.batch_size, "batch");
    f("grad_accumulation", s.grad_accumulation, "accumulate");
    f("learning_rate", s.learning_rate, "rate"), f("schedule", s.schedule);
    f("warmup_steps", s.warmup_steps, "warmup");
    f("min_learning_rate", s.min_learning_rate, "floor");
    f("warmup_learning_rate", s.warmup_learning_rate, "first");
    f("steps_per_epoch", s.steps_per_epoch, "epoch");
    f("weight_decay", s.weight_decay, "decay"), f("beta1", s.beta1);
    f("beta2", s.beta2), f("grad_clip", s.grad_clip, "clip"), f("ema", s.ema);
    f("entropy_weight", s.entropy_weight, "entropy");
    f("recompute", s.recompute), f("seed", s.seed);
    f("report_every", s.report_every, "report");
    f("validate_every", s.validate_every, "validate");
    f("save_every", s.save_every, "save");
  }
};

/// The steps over which the learning rate rises: train.warmup_steps, but at
/// most a quarter of all steps.
int64_t warmup_steps(const TrainConfig& config);

/// Results of a task on its validation data.
struct Validation {
  double loss = 0;   ///< nats
  double score = 0;  ///< above 0; the model with the smallest one is kept
  /// Further metrics by name, as fractions in [0, 1].
  std::vector<std::pair<std::string, double>> shares;
  double weight = 1;  ///< of this part when results of several are averaged
};

/// The interface between a task and the trainer.
class Task {
 public:
  virtual ~Task() = default;
  virtual torch::nn::Module& model() = 0;
  /// The mean loss of a micro-batch in nats, differentiable. `first` is the
  /// index of its first example in the infinite sequence of examples; `seed`
  /// determines dropout.
  virtual torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) = 0;
  /// The number of consecutive examples that depend on each other because they
  /// are mixed. They stay in one process when processes share a micro-batch.
  virtual int64_t together() const { return 1; }
  /// Validates on part `part` of `parts` of the validation data, in evaluation
  /// mode. The weight is 0 if the part is empty. The weighted mean over all
  /// parts equals the result on the whole data, up to rounding.
  virtual Validation validate(int part, int parts) = 0;
  Validation validate() { return validate(0, 1); }
  /// Predictions per example (bytes, sub-pixels, or 1 for a class), used to
  /// report throughput.
  virtual int64_t tokens() const = 0;
};

/// Training failed. The message is for the user; files already saved are
/// unaffected.
struct TrainError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Report {
  int64_t step = 0, steps = 0;
  double loss = 0;            ///< mean since the last report, nats
  double rate = 0, norm = 0;  ///< learning rate, gradient norm
  double seconds = 0;  ///< of training so far, without validation and saving
  double tokens_per_second = 0, seconds_left = 0;
  bool validated = false;
  bool stopped = false;                  ///< after Hooks::stop; validated
  Validation validation;                 ///< valid if `validated`
  double best = 0;                       ///< the smallest score so far
  c10::optional<nn::Sparsity> sparsity;  ///< of AFTConv; set if `validated`
};

struct Hooks {
  /// Called after every step, and when a stopped run has been validated.
  /// `reported`: the metrics have a new line for it.
  std::function<void(const Report&, bool reported)> progress;
  /// Polled after every step. True ends run() after saving a checkpoint, which
  /// is written once the next gradients show that training can resume from it,
  /// and validating its weights. If they are the best so far, the checkpoint
  /// says so: it then holds the weights to use (tasks::weights_of).
  std::function<bool()> stop;
  /// The checkpoint of a stopped run is written; its validation begins.
  std::function<void(int64_t step)> saved;
};

class Trainer {
 public:
  /// Throws TrainError for an invalid configuration. With a group, which must
  /// outlive the trainer, every process creates a trainer of the same task and
  /// calls the same functions. Each process then handles its part of every
  /// micro-batch, the weights of all processes are bit-identical, only rank 0
  /// reads and writes files, and functions also throw PeerError.
  Trainer(Task& task, const TrainConfig& config, std::string directory,
          Group* group = nullptr);

  /// Resumes from the checkpoint in the directory; `steps` may be larger than
  /// before. new_data: what validation measures has changed, so earlier scores
  /// do not count. Throws io::Error and changes nothing if the checkpoint does
  /// not exist or does not match. With a group, the number of processes may
  /// differ from the run that wrote it.
  void resume(bool new_data = false);
  bool has_checkpoint() const;
  /// Writes a checkpoint. run() calls this itself, also at its start. score: of
  /// its weights, if they are better than all that were validated before.
  void save(double score = 0);
  int64_t step() const { return step_; }

  /// Trains until the last step or stop(). Returns whether the last step was
  /// reached. Throws TrainError if the loss or the gradients are not finite.
  /// The last checkpoint is then intact and usable: a checkpoint is only
  /// written once the loss and the gradients computed from it are known to be
  /// finite.
  bool run(const Hooks& hooks);

  /// Performs one step without reports or checkpoints. Throws as run() does.
  Report advance();
  /// Bytes of gradients that a process sends per step; 0 without a group.
  int64_t exchanged() const { return gradients_ ? gradients_->bytes() : 0; }

 private:
  bool leads() const { return !group_ || group_->rank() == 0; }
  void load();
  struct Pass {
    double loss;
    bool stop;  // some process asked to stop; the checkpoint is written
  };
  Pass gradients(bool stop);
  Report update(double loss);
  void share();
  Schedule schedule() const;
  void validate(Report& report);
  void report_metrics(const Report& report) const;
  [[noreturn]] void fail(int64_t step, const std::string& what) const;
  void swap_ema();

  Task& task_;
  TrainConfig config_;
  io::RunDirectory directory_;
  Group* group_;
  AdamW optimizer_;
  std::unique_ptr<Gradients> gradients_;  // null without a group
  std::vector<torch::Tensor> ema_;        // empty if disabled
  int64_t step_ = 0;
  double best_ = 0;      // best validation score; 0: none yet
  double seconds_ = 0;   // of training
  bool due_ = false;     // the current weights are to be saved
  double loss_sum_ = 0;  // since the last report
  int64_t loss_count_ = 0;
};

}  // namespace aft::train
