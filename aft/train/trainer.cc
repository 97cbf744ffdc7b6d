#include "aft/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>

#include "aft/base/config.h"
#include "aft/base/counted.h"
#include "aft/base/escape.h"
#include "aft/io/file.h"
#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "aft/nn/batch_norm.h"
#include "aft/nn/block.h"
#include "aft/ops/pointwise.h"
#include "aft/train/metrics.h"

namespace aft::train {
namespace {

double now() {
  const std::chrono::duration<double> d =
      std::chrono::steady_clock::now().time_since_epoch();
  return d.count();
}

/// Formats a double for metadata without loss of precision.
std::string exact(double x) {
  char text[40];
  snprintf(text, sizeof(text), "%a", x);
  return text;
}

/// The tensors that EMA averages: parameters, and the running statistics that
/// belong to them. Other buffers are drawn, not learned.
models::NamedTensors averaged(const torch::nn::Module& model) {
  models::NamedTensors out;
  for (const auto& p : model.named_parameters())
    out.emplace_back(p.key(), p.value().detach());
  for (const auto& b : model.named_buffers())
    if (b.key().find("running_") != std::string::npos)
      out.emplace_back(b.key(), b.value());
  return out;
}

/// Swaps the values of two tensors.
void exchange(torch::Tensor a, torch::Tensor b) {
  const torch::Tensor copy = a.clone();
  a.copy_(b), b.copy_(copy);
}

}  // namespace

Trainer::Trainer(Task& task, const TrainConfig& config, std::string directory,
                 Group* group)
    : task_(task),
      config_(config),
      directory_(std::move(directory)),
      group_(group),
      optimizer_(task.model(),
                 {config.beta1, config.beta2, 1e-8, config.weight_decay}) {
  const auto positive = [](const char* name, int64_t x) {
    if (x < 1)
      throw TrainError(std::string("train.") + name +
                       " must be 1 or more, got " + std::to_string(x));
  };
  positive("steps", config.steps), positive("batch_size", config.batch_size);
  positive("grad_accumulation", config.grad_accumulation),
      positive("report_every", config.report_every);
  positive("save_every", config.save_every);
  for (const auto& [name, x] : {std::pair("seed", config.seed),
                                {"warmup_steps", config.warmup_steps},
                                {"validate_every", config.validate_every}})
    if (x < 0)
      throw TrainError(std::string("train.") + name +
                       " must be 0 or more, got " + std::to_string(x));
  constexpr int64_t kMostRows = int64_t{1} << 24;
  if (config.batch_size > kMostRows)
    throw TrainError("train.batch_size must be at most " +
                     std::to_string(kMostRows) + ", got " +
                     std::to_string(config.batch_size));
  // Examples are numbered with int64_t.
  if (!(static_cast<double>(config.steps) *
            static_cast<double>(config.batch_size) *
            static_cast<double>(config.grad_accumulation) <
        0x1p62))
    throw TrainError(
        "train.steps times train.batch_size times train.grad_accumulation must "
        "be below 2^62, got " +
        std::to_string(config.steps) + " times " +
        std::to_string(config.batch_size) + " times " +
        std::to_string(config.grad_accumulation));
  const auto within = [](const char* name, double x, double low, double high) {
    if (!(x >= low && x < high))
      throw TrainError(std::string("train.") + name + " must be in [" +
                       base::shown(low) + ", " + base::shown(high) + "), got " +
                       base::shown(x));
  };
  within("ema", config.ema, 0, 1),
      within("learning_rate", config.learning_rate, 0, 1e30);
  within("beta1", config.beta1, 0, 1), within("beta2", config.beta2, 0, 1);
  within("weight_decay", config.weight_decay, 0, 1e30),
      within("grad_clip", config.grad_clip, 0, 1e30);
  within("warmup_learning_rate", config.warmup_learning_rate, 0, 1e30);
  positive("steps_per_epoch", config.steps_per_epoch);
  within("entropy_weight", config.entropy_weight, 0, 1e30);
  if (config.entropy_weight > 0 && !nn::sparsity(task.model()))
    throw TrainError(
        "train.entropy_weight is for models with aft-conv, and must be 0 for "
        "others, got " +
        base::shown(config.entropy_weight));
  schedule().at(config.steps);  // throws for an unknown kind
  if (config.ema > 0) {
    for (const auto& [name, x] : averaged(task.model()))
      ema_.push_back(x.clone());
  }
  if (group) {
    const int64_t least = group->size() * task.together();
    if (config.batch_size < least)
      throw TrainError("train.batch_size must be " + std::to_string(least) +
                       " or more for " +
                       base::counted(group->size(), "process") + ", got " +
                       std::to_string(config.batch_size));
    for (const auto& m : task.model().modules())
      if (m->as<nn::BatchNormImpl>())
        throw TrainError(
            "several processes cannot train a model with batch normalisation: "
            "its statistics are those of a whole batch, and each process sees "
            "a part; train it in one process");
    gradients_ = std::make_unique<Gradients>(task.model(), *group);
  }
}

int64_t warmup_steps(const TrainConfig& config) {
  return std::min(config.warmup_steps, std::max<int64_t>(config.steps / 4, 1));
}

Schedule Trainer::schedule() const {
  return {config_.schedule,       config_.learning_rate,
          warmup_steps(config_),  config_.min_learning_rate,
          config_.steps,          config_.warmup_learning_rate,
          config_.steps_per_epoch};
}

bool Trainer::has_checkpoint() const { return directory_.has_checkpoint(); }

namespace {

/// All tensors of a checkpoint.
models::NamedTensors everything(torch::nn::Module& model,
                                const AdamW& optimizer,
                                const std::vector<torch::Tensor>& ema) {
  models::NamedTensors all = models::tensors_of(model, "model.");
  for (auto& item : optimizer.state()) all.push_back(std::move(item));
  size_t i = 0;
  for (const auto& item : averaged(model)) {
    if (!ema.empty()) all.emplace_back("ema." + item.first, ema[i++]);
  }
  return all;
}

}  // namespace

void Trainer::save(double score) {
  due_ = false;
  if (!leads()) return;
  io::make_directory(directory_.state());
  std::map<std::string, std::string> metadata = {
      {"step", std::to_string(step_)},
      {"best", exact(best_)},
      {"loss_sum", exact(loss_sum_)},
      {"loss_count", std::to_string(loss_count_)}};
  if (score > 0) metadata["score"] = exact(score);
  models::save_tensors(directory_.checkpoint(),
                       everything(task_.model(), optimizer_, ema_), metadata);
}

void Trainer::resume(bool new_data) {
  if (leads()) {
    load();
    if (new_data && step_ < config_.steps) {  // a finished run is unchanged
      best_ = 0;
      save();
    }
  }
  share();
}

/// Copies rank 0's training state to all processes.
void Trainer::share() {
  if (!group_) return;
  at::NoGradGuard no_grad;
  for (const auto& item : everything(task_.model(), optimizer_, ema_)) {
    torch::Tensor x = item.second;
    group_->broadcast(x);
  }
  torch::Tensor counts = at::tensor({step_, loss_count_}, at::kLong),
                sums = at::tensor({best_, loss_sum_}, at::kDouble);
  group_->broadcast(counts), group_->broadcast(sums);
  step_ = counts[0].item<int64_t>(), loss_count_ = counts[1].item<int64_t>();
  best_ = sums[0].item<double>(), loss_sum_ = sums[1].item<double>();
}

void Trainer::load() {
  const std::string file = directory_.checkpoint();
  std::map<std::string, std::string> metadata =
      io::SafeTensors::open(file).metadata();
  // Parse the metadata before changing anything.
  const auto parse = [&](const char* key, auto convert) {
    const std::string& text = metadata[key];
    char* end = nullptr;
    const auto x = convert(text.c_str(), &end);
    if (text.empty() || *end != 0 || !(x >= 0 && x <= 0x1p62))
      throw io::Error(file + ": expected a number from 0 to 2^62 as '" + key +
                      "' in the metadata, got '" + base::printable(text) + "'");
    return x;
  };
  const auto integer = [](const char* text, char** end) {
    return static_cast<int64_t>(std::strtoll(text, end, 10));
  };
  const int64_t step = parse("step", integer),
                loss_count = parse("loss_count", integer);
  const double best = parse("best", std::strtod),
               loss_sum = parse("loss_sum", std::strtod);
  models::load_tensors(file, everything(task_.model(), optimizer_, ema_));
  step_ = step, best_ = best, loss_sum_ = loss_sum, loss_count_ = loss_count;
  directory_.remove_unfinished();
  seconds_ = truncate_metrics(directory_.metrics(), step_).seconds;
}

void Trainer::swap_ema() {
  at::NoGradGuard no_grad;
  size_t i = 0;
  for (const auto& item : averaged(task_.model())) {
    if (ema_.empty()) return;
    exchange(item.second, ema_[i++]);
  }
}

namespace {

/// Each process validates on a part of the data.
Validation together(Group& group, Task& task) {
  Validation v = task.validate(group.rank(), group.size());
  torch::Tensor sums =
      at::zeros({static_cast<int64_t>(v.shares.size()) + 3}, at::kDouble);
  double* s = sums.data_ptr<double>();
  s[0] = v.weight;
  if (v.weight > 0) {
    s[1] = v.weight * v.loss, s[2] = v.weight * v.score;
    for (size_t i = 0; i < v.shares.size(); ++i)
      s[3 + i] = v.weight * v.shares[i].second;
  }
  group.sum(sums);
  v.loss = s[1] / s[0], v.score = s[2] / s[0];
  for (size_t i = 0; i < v.shares.size(); ++i)
    v.shares[i].second = s[3 + i] / s[0];
  return v;
}

/// The line of the metrics for a report.
Metrics metrics_of(const Report& r) {
  Metrics m;
  m.step = r.step, m.loss = r.loss, m.rate = r.rate, m.norm = r.norm;
  m.seconds = r.seconds, m.tokens_per_second = r.tokens_per_second;
  if (!r.validated) return m;
  m.validation = r.validation.loss, m.values = r.validation.shares;
  m.stopped = r.stopped;
  if (r.sparsity) {
    m.values.emplace_back("kernel_entropy", r.sparsity->entropy);
    m.values.emplace_back("kernel_top", r.sparsity->top);
  }
  return m;
}

}  // namespace

void Trainer::validate(Report& report) {
  swap_ema();  // validate and save the averaged weights
  task_.model().eval();
  report.validation = group_ ? together(*group_, task_) : task_.validate();
  report.validated = true;
  report.sparsity = nn::sparsity(task_.model());
  task_.model().train();
  if (!std::isfinite(report.validation.loss))
    fail(step_, "the validation loss is");
  const double score = report.validation.score;
  const bool better = best_ == 0 || score < best_;
  report.best = better ? score : best_;
  // A stopped run must be able to resume as if it had not been validated here:
  // best_ and the best weights stay those of the regular validations.
  if (better && !report.stopped) {
    best_ = score;
    if (leads())
      models::save_tensors(directory_.weights(),
                           models::tensors_of(task_.model()),
                           {{"format", "pt"}, {"step", std::to_string(step_)}});
  }
  swap_ema();
  if (better && report.stopped) save(score);
}

void Trainer::report_metrics(const Report& report) const {
  if (leads()) append_metrics(directory_.metrics(), metrics_of(report));
}

void Trainer::fail(int64_t step, const std::string& what) const {
  std::ostringstream message;
  message << "step " << step << ": " << what << " not finite; ";
  if (!leads() || has_checkpoint()) {  // only rank 0 may see the file
    message << "the last checkpoint, in " << directory_.state()
            << ", is intact: resume from it with a smaller "
               "train.learning_rate";
  } else {
    message << "no checkpoint was saved: start again with a smaller "
               "train.learning_rate";
  }
  throw TrainError(message.str());
}

/// Computes the gradients of the next step, summed over all processes. If a
/// checkpoint is due or some process asked to stop, writes it if the loss and
/// the gradients are finite: training can then resume from these weights.
Trainer::Pass Trainer::gradients(bool stop) {
  const int64_t examples = config_.batch_size * config_.grad_accumulation;
  const uint64_t seed = base::mix(static_cast<uint64_t>(config_.seed),
                                  static_cast<uint64_t>(step_));
  // The forward pass updates running statistics, and a resumed run repeats it:
  // the checkpoint needs the values from before.
  const std::vector<torch::Tensor> buffers = task_.model().buffers();
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& b : buffers) before.push_back(b.clone());
  // The rows of a micro-batch that this process handles, and their fraction.
  const int64_t units = config_.batch_size / task_.together(),
                rank = group_ ? group_->rank() : 0,
                size = group_ ? group_->size() : 1,
                begin = units * rank / size * task_.together(),
                end = rank + 1 == size
                          ? config_.batch_size
                          : units * (rank + 1) / size * task_.together();
  const double share = static_cast<double>(end - begin) /
                       static_cast<double>(config_.batch_size);
  // Dropout masks are the same as in a single process.
  const ops::FirstRow rows(begin);
  // Must precede the last backward pass over the model, which sends gradients.
  if (config_.entropy_weight > 0)
    (config_.entropy_weight * share * nn::kernel_entropy(task_.model()))
        .backward();
  double loss = 0;
  for (int64_t micro = 0; micro < config_.grad_accumulation; ++micro) {
    if (gradients_ && micro + 1 == config_.grad_accumulation)
      gradients_->expect();
    const torch::Tensor part =
        task_.loss(step_ * examples + micro * config_.batch_size + begin,
                   end - begin, base::mix(seed, static_cast<uint64_t>(micro))) *
        (share / static_cast<double>(config_.grad_accumulation));
    loss += part.item<double>();
    part.backward();
  }
  if (gradients_) gradients_->finish();
  if (group_) {  // one exchange for both values: latency dominates
    torch::Tensor sums = at::tensor({loss, stop ? 1.0 : 0.0}, at::kDouble);
    group_->sum(sums);
    loss = sums[0].item<double>(), stop = sums[1].item<double>() > 0;
  }
  if (!std::isfinite(loss)) fail(step_ + 1, "the loss is");
  const auto swap = [&] {
    for (size_t i = 0; i < buffers.size(); ++i) exchange(buffers[i], before[i]);
  };
  if ((due_ || stop) && std::isfinite(optimizer_.norm())) {
    swap();
    save();
    if (!stop) swap();
  } else if (stop) {
    fail(step_ + 1, "the gradients are");
  }
  return {loss, stop};
}

Report Trainer::advance() { return update(gradients(/*stop=*/false).loss); }

Report Trainer::update(double loss) {
  Report report;
  report.steps = config_.steps;
  report.rate = schedule().at(step_ + 1);
  report.norm = optimizer_.step(report.rate, config_.grad_clip, step_ + 1);
  if (!std::isfinite(report.norm)) fail(step_ + 1, "the gradients are");
  optimizer_.zero_grad();
  if (!ema_.empty()) {
    at::NoGradGuard no_grad;
    size_t i = 0;
    for (const auto& item : averaged(task_.model()))
      ema_[i++].lerp_(item.second, 1 - config_.ema);
  }
  report.step = ++step_;
  loss_sum_ += loss, ++loss_count_;
  report.loss = loss_sum_ / static_cast<double>(loss_count_);
  return report;
}

bool Trainer::run(const Hooks& hooks) {
  task_.model().train();
  share();
  // A run that is killed during its first steps can be resumed too.
  if (leads() && step_ == 0 && !has_checkpoint()) save();
  double last_time = now(), smooth = 0;
  const double tokens = static_cast<double>(config_.batch_size) *
                        static_cast<double>(config_.grad_accumulation) *
                        static_cast<double>(task_.tokens());
  bool stop = false;
  Report report;
  while (step_ < config_.steps) {
    const Pass pass = gradients(stop);
    if (pass.stop) {
      optimizer_.zero_grad();
      if (hooks.saved) hooks.saved(step_);
      if (!report.validated) {
        report.stopped = true;
        validate(report);
        report_metrics(report);
        if (hooks.progress) hooks.progress(report, true);
      }
      return false;
    }
    report = update(pass.loss);
    const double time = now(), took = time - last_time;
    last_time = time;
    seconds_ += took;
    report.seconds = seconds_;
    smooth = smooth == 0 ? took : 0.9 * smooth + 0.1 * took;
    report.tokens_per_second = tokens / smooth;
    report.seconds_left = smooth * static_cast<double>(config_.steps - step_);
    const bool last = step_ == config_.steps;
    stop = hooks.stop && hooks.stop();
    if (last ||
        (config_.validate_every > 0 && step_ % config_.validate_every == 0)) {
      validate(report);
    }
    const bool reported = report.validated || step_ % config_.report_every == 0;
    if (reported) {
      report_metrics(report);
      loss_sum_ = 0, loss_count_ = 0;
    }
    if (hooks.progress) hooks.progress(report, reported);
    due_ = due_ || step_ % config_.save_every == 0;
    if (last) save();
    last_time = now();
  }
  return true;
}

}  // namespace aft::train
