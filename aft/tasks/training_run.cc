#include "aft/tasks/training_run.h"

#include <utility>

#include "aft/io/run_directory.h"
#include "aft/tasks/memory_estimate.h"
#include "aft/tasks/memory_limit.h"

namespace aft::tasks {
namespace {

/// Throws ConfigError if the run `stored` cannot be resumed as `config`.
void check_resumable(const Json& stored, const Json& config) {
  const auto check = [&](const std::string& section, const std::string& key) {
    const Json &before = stored.at(section).at(key),
               &after = config.at(section).at(key);
    if (before != after)
      throw base::ConfigError(section + "." + key + " is " + before.dump() +
                              " in this run and cannot be changed to " +
                              after.dump() + "; start a new run");
  };
  for (const std::string& key : task_kind(stored).fixed) check("data", key);
  for (const auto& item : stored.at("model").items())
    if (item.key() != "dropout") check("model", item.key());
  const auto averages = [](const Json& c) {
    return c["train"]["ema"].get<double>() > 0;
  };
  if (averages(stored) != averages(config)) check("train", "ema");
}

/// Throws io::RunExists unless the run `stored` was started with `config`.
void check_same_run(const Json& stored, const Json& config,
                    const std::string& directory) {
  const auto check = [&](const std::string& key, bool same) {
    if (!same)
      throw io::RunExists(directory + ": holds another run, with a different " +
                          key);
  };
  check("task", config["task"] == stored["task"]);
  for (const std::string section : {"model", "train"})
    for (const auto& item : stored.at(section).items())
      check(section + "." + item.key(),
            item.key() == "classes" ||  // follows from the data
                (config[section].contains(item.key()) &&
                 config[section][item.key()] == item.value()));
}

/// The configuration that the run `stored` is resumed with.
Json resumed_config(const TrainingRun& run, const Json& stored) {
  if (run.mode == RunMode::kRestart) {
    check_same_run(stored, run.config, run.directory);
    return stored;
  }
  check_resumable(stored, run.config);
  return run.config;
}

std::string to_text(const Json& config) {
  try {
    return config.dump(2) + "\n";
  } catch (const Json::exception&) {
    throw base::ConfigError(
        config["data"]["path"].get<std::string>() +
        ": the path and the names of classes must be UTF-8");
  }
}

/// Whether what validation measures differs from that of the run `stored`.
bool has_new_data(const Json& stored, const Json& config) {
  for (const std::string& key : task_kind(stored).judged)
    if (stored.at("data").at(key) != config.at("data").at(key)) return true;
  return false;
}

}  // namespace

TrainingResult run_training(const TrainingRun& run,
                            const TrainingHooks& hooks) {
  using End = TrainingResult::End;
  train::Group* group = run.group;
  const bool leads = !group || group->rank() == 0;
  const io::RunDirectory directory(run.directory);
  bool resume = run.mode == RunMode::kResume ||
                (run.mode == RunMode::kRestart && directory.has_config());
  Json config, stored;
  std::unique_ptr<train::Task> task;
  std::string text;
  if (leads) {
    if (resume) stored = load_config(run.directory);
    config = resume ? resumed_config(run, stored) : run.config;
    if (resume && !directory.has_checkpoint())
      throw io::Error(directory.checkpoint() +
                      ": does not exist; the run cannot be resumed without it");
    task =
        make_task(config, hooks.reading, resume ? directory.checkpoint() : "");
    if (run.device.is_cpu())
      check_training_memory(config, *task, group ? group->size() : 1);
    if (!run.init.empty() && !resume) {
      const Transfer taken = initialise(task->model(), config, run.init);
      if (hooks.initialised) hooks.initialised(taken);
    }
    text = to_text(config);
  }
  if (group) text = group->broadcast(text);
  if (!leads) {
    config = Json::parse(text);
    task = make_task(config);
  }
  const auto settings = config_as<train::TrainConfig>(config.at("train"));
  if (!run.device.is_cpu()) task->model().to(run.device);
  train::Trainer trainer(*task, settings, run.directory, group);
  if (hooks.ready) hooks.ready();
  // The other ranks may not see rank 0's files.
  if (group) resume = group->any(leads && resume);
  const bool new_data = leads && resume && has_new_data(stored, config);
  io::RunLock lock;
  if (resume) {
    if (leads) lock.acquire(directory);
    trainer.resume(new_data);
    if (trainer.step() >= settings.steps)
      return {End::kNothingToDo, trainer.step(), config};
  } else if (leads) {
    lock.create(directory);
    // Before the configuration: a run that can be resumed has its initial
    // weights, which may be those of run.init.
    trainer.save();
  }
  if (leads) directory.write_config(text);
  if (group) group->any(false);  // wait until rank 0 has written it
  if (hooks.started)
    hooks.started({config, task->model(), trainer.step(), resume, new_data});
  train::Hooks inner;
  inner.stop = hooks.stop;
  if (leads) inner.progress = hooks.progress, inner.saved = hooks.saved;
  bool finished = false;
  try {
    finished = trainer.run(inner);
  } catch (const TooLarge& e) {
    throw train::TrainError(
        "training ran out of memory: " + std::string(e.what()) +
        "; use a smaller train.batch_size, with a larger "
        "train.grad_accumulation for the same result");
  }
  return {finished ? End::kFinished : End::kStopped, trainer.step(), config};
}

}  // namespace aft::tasks
