// The training loop of every task: accumulation, clipping, the schedule, EMA,
// validation, checkpoints. Everything random is a function of the seed and the
// step, so a resumed run ends bit for bit where an undisturbed one would.
//
// On disk, in the output directory:
//   config.json               what is trained (written by the caller)
//   model.safetensors         the best weights so far (EMA where it is on)
//   state/checkpoint.safetensors
//                             weights, moments, EMA and step in one file: the
//                             last checkpoint, replaced in one step
//   metrics.jsonl             one line a report
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "aft/nn/aft.h"
#include "aft/train/gradients.h"
#include "aft/train/group.h"
#include "aft/train/optimizer.h"

namespace aft::train {

struct TrainConfig {
  int64_t steps = 1000;
  int64_t batch = 8;               ///< sequences of a micro-batch
  int64_t accumulate = 1;          ///< micro-batches of a step
  double rate = 3e-3;              ///< peak of the learning rate
  std::string schedule = "rsqrt";  ///< rsqrt, cosine, constant or deit
  int64_t warmup = 100;
  double floor = 0;    ///< cosine and deit end here
  double first = 0;    ///< deit begins here
  int64_t epoch = 1;   ///< deit: steps between changes of the rate
  double decay = 0.1;  ///< AdamW, linear weights only
  double beta1 = 0.9, beta2 = 0.95;
  double clip = 1;     ///< greatest norm of the gradients; 0: any
  double ema = 0;      ///< decay of averaged weights, for example 0.999; 0: off
  double entropy = 0;  ///< weight of the entropy of aft-conv's kernels; 0: off
  bool recompute = false;  ///< activations of blocks again in backward
  int64_t seed = 1;
  int64_t report = 10;     ///< steps between lines of metrics.jsonl
  int64_t validate = 100;  ///< steps between validations; 0: only at the end
  int64_t save = 100;      ///< steps between checkpoints

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("steps", s.steps), f("batch", s.batch), f("accumulate", s.accumulate);
    f("rate", s.rate), f("schedule", s.schedule), f("warmup", s.warmup);
    f("floor", s.floor), f("first", s.first), f("epoch", s.epoch);
    f("decay", s.decay), f("beta1", s.beta1);
    f("beta2", s.beta2), f("clip", s.clip), f("ema", s.ema);
    f("entropy", s.entropy), f("recompute", s.recompute), f("seed", s.seed),
        f("report", s.report);
    f("validate", s.validate), f("save", s.save);
  }
};

/// What a task says of the model on its validation data.
struct Validation {
  double loss = 0;   ///< nats
  double score = 0;  ///< above 0; the smallest so far is the best model
  /// What else there is to tell, by name: shares in [0, 1].
  std::vector<std::pair<std::string, double>> shares;
  double weight = 1;  ///< of this part, where there are several
};

/// What is trained, as the trainer sees it.
class Task {
 public:
  virtual ~Task() = default;
  virtual torch::nn::Module& model() = 0;
  /// The mean loss in nats of a micro-batch: `first` is the number of its first
  /// example in the endless order of all examples, `seed` chooses what dropout
  /// drops. Differentiable.
  virtual torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) = 0;
  /// So many examples in a row depend on each other (are mixed), and stay
  /// together where processes share a micro-batch.
  virtual int64_t together() const { return 1; }
  /// On part `part` of `parts` of the validation data, in evaluation mode; its
  /// weight is 0 where that part is empty. Means by weight over the parts are
  /// what the whole gives, but for rounding.
  virtual Validation validate(int part, int parts) = 0;
  Validation validate() { return validate(0, 1); }
  /// Predictions of one example (its bytes, its sub-pixels, 1 for a class): for
  /// the rate.
  virtual int64_t tokens() const = 0;
};

/// A failure of training: message for the user; what was saved stays.
struct TrainError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Report {
  int64_t step = 0, steps = 0;
  double loss = 0;            ///< mean since the last report, nats
  double rate = 0, norm = 0;  ///< learning rate, norm of the gradients
  double seconds = 0;  ///< of training so far, validation and saving aside
  double tokens_per_second = 0, seconds_left = 0;
  bool validated = false;
  Validation validation;                 ///< where validated
  double best = 0;                       ///< the smallest score so far
  c10::optional<nn::Sparsity> sparsity;  ///< where validated, of AFTConv
};

struct Hooks {
  /// After every step (reported: metrics.jsonl has a new line for it).
  std::function<void(const Report&, bool reported)> progress;
  /// Asked after every step: true saves a checkpoint and ends run(), once the
  /// gradients after that step have shown that it can be gone on from.
  std::function<bool()> stop;
};

class Trainer {
 public:
  /// Throws TrainError for a configuration that makes no sense. With a group,
  /// which must live longer, every process makes a trainer of the same task and
  /// calls the same functions: each takes its part of every micro-batch, all
  /// have the same weights to the bit, and rank 0 alone writes and reads
  /// files. Then functions throw PeerError too.
  Trainer(Task& task, const TrainConfig& config, std::string directory,
          Group* group = nullptr);

  /// Continues from the directory's checkpoint; `steps` may have grown. Throws
  /// io::Error where it is not there or does not fit, and changes nothing then.
  /// With a group, any number of processes may have written it.
  void resume();
  bool has_checkpoint() const;
  /// Writes the checkpoint. run() does so itself, at its start too.
  void save();
  int64_t step() const { return step_; }

  /// Runs to the end, or to stop(). Returns whether the end was reached. Throws
  /// TrainError at a loss that is not finite: the last checkpoint is kept, and
  /// is sound, as it is only written once the loss and the gradients after it
  /// were finite.
  bool run(const Hooks& hooks);

  /// One step and nothing else, neither report nor checkpoint; throws as run()
  /// does.
  Report advance();
  /// What a process sends of gradients in a step, in bytes; 0 without a group.
  int64_t exchanged() const { return gradients_ ? gradients_->bytes() : 0; }

 private:
  bool leads() const { return !group_ || group_->rank() == 0; }
  void load();
  struct Pass {
    double loss;
    bool stop;  // some process wants to: the checkpoint is written
  };
  Pass gradients(bool stop);
  Report update(double loss);
  void share();
  Schedule schedule() const;
  void validate(Report& report);
  [[noreturn]] void fail(int64_t step, const std::string& what) const;
  void swap_ema();
  std::string path(const std::string& name) const;

  Task& task_;
  TrainConfig config_;
  std::string directory_;
  Group* group_;
  AdamW optimizer_;
  std::unique_ptr<Gradients> gradients_;  // null: without a group
  std::vector<torch::Tensor> ema_;        // empty: off
  int64_t step_ = 0;
  double best_ = 0;      // score of validation; 0: none yet
  double seconds_ = 0;   // of training
  bool due_ = false;     // a checkpoint of the weights as they are
  double loss_sum_ = 0;  // since the last report
  int64_t loss_count_ = 0;
};

}  // namespace aft::train
