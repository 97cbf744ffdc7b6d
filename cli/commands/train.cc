// `aft train`: a preset or a configuration to a model directory.
#include <signal.h>

#include <atomic>
#include <iostream>
#include <memory>

#include "aft/io/file.h"
#include "aft/tasks/vit_weights.h"
#include "aft/train/device.h"
#include "cli/commands.h"
#include "cli/distributed_run.h"
#include "cli/model.h"
#include "cli/plot/training_curve.h"
#include "cli/run_lock.h"
#include "cli/training_progress.h"

namespace aft::cli {
namespace {

volatile sig_atomic_t stop_asked = 0;

/// Ctrl-C and a polite kill end the run after the current step, with a
/// checkpoint; the second one ends it at once.
void on_signal(int signal) {
  stop_asked = 1;
  ::signal(signal, SIG_DFL);
}

struct Options {
  std::string what, out, resume, data, init, device = "cpu";
  std::vector<std::string> sets;
  int64_t steps = 0;
  int threads = 0;
  double timeout = 120;
};

/// What may not change in a run that goes on: the model (dropout aside), and
/// what its symbols mean.
void check_same(const base::Json& stored, const base::Json& now) {
  const auto check = [&](const std::string& part, const std::string& key) {
    const base::Json &before = stored.at(part).at(key),
                     &after = now.at(part).at(key);
    if (before != after)
      throw base::ConfigError(part + "." + key + " is " + before.dump() +
                              " in this run, and cannot become " +
                              after.dump() + "; that takes a new run");
  };
  for (const std::string& key : tasks::task_kind(stored).fixed)
    check("data", key);
  for (const auto& item : stored.at("model").items())
    if (item.key() != "dropout") check("model", item.key());
  // Averages begin with the weights.
  const auto averages = [](const base::Json& config) {
    return config["train"]["ema"].get<double>() > 0;
  };
  if (averages(stored) != averages(now)) check("train", "ema");
}

/// Weights of another model for a new run, and a word on what was taken.
void initialise(torch::nn::Module& model, const std::string& from) {
  auto* classifier = model.as<models::ClassifierImpl>();
  if (!classifier)
    throw UsageError(
        "train: --init is for tasks of classification, and models made of "
        "blocks");
  const tasks::Transfer taken = tasks::initialise(*classifier, from);
  std::cerr << from << ": took " << tasks::summary(taken.copied) << "\n";
  if (!taken.fresh.empty())
    std::cerr << "  begin afresh: " << tasks::summary(taken.fresh) << "\n";
}

/// The directory of a run. Throws UsageError for a call that makes no sense.
std::string directory_of(const Options& o) {
  const bool resume = !o.resume.empty();
  if (resume == !o.what.empty())
    throw UsageError("train: expected a preset or --resume DIR, " +
                     std::string(resume ? "got both" : "got neither"));
  if (resume && !o.out.empty())
    throw UsageError(
        "train: --resume goes on in its own directory, without "
        "--out");
  if (resume && !o.init.empty())
    throw UsageError(
        "train: a run that goes on has its weights; --init is "
        "for new ones");
  if (resume) return o.resume;
  const std::string name = o.what.substr(o.what.find_last_of('/') + 1);
  return o.out.empty() ? "runs/" + name : o.out;
}

/// That directory, and whether its run goes on.
struct Place {
  std::string directory;
  bool resume;
};

/// again: a launcher has begun again, with the same command.
Place place_of(const Options& o, bool again) {
  const std::string directory = directory_of(o);
  return {directory,
          !o.resume.empty() || (again && exists(directory + "/config.json"))};
}

/// What is to be trained, with what the options change.
base::Json changed(const Options& o, const base::Json& from) {
  base::Json config = apply_sets(from, o.sets);
  if (!o.data.empty()) {
    config["data"]["path"] = o.data;
    config["data"]["fingerprint"] = "";  // may be others than before
  }
  if (o.steps > 0) config["train"]["steps"] = o.steps;
  return config;
}

/// That the run in a directory is the one that this call began.
void check_begun(const base::Json& own, const base::Json& there,
                 const std::string& directory) {
  const auto check = [&](const std::string& key, bool same) {
    if (!same)
      throw UsageError(directory + ": holds another run (its " + key +
                       " is another), which this one cannot go on with; choose "
                       "another --out");
  };
  check("task", own["task"] == there["task"]);
  for (const std::string part : {"model", "train"})
    for (const auto& item : there.at(part).items())
      check(part + "." + item.key(),
            item.key() == "classes" ||  // as many as the data have
                (own[part].contains(item.key()) &&
                 own[part][item.key()] == item.value()));
}

base::Json wanted(const Options& o, const Place& place) {
  if (!place.resume) return changed(o, preset_config(o.what));
  const base::Json stored = tasks::load_config(place.directory);
  if (o.resume.empty()) {
    // A launcher begins again; it may have been refused the directory before.
    check_begun(changed(o, preset_config(o.what)), stored, place.directory);
    return stored;
  }
  base::Json config = changed(o, stored);
  check_same(stored, config);
  return config;
}

/// What a run goes on from.
std::string checkpoint_of(const std::string& directory) {
  std::string file = directory + "/state/checkpoint.safetensors";
  if (!exists(file))
    throw std::runtime_error(
        file + ": is not there, and without it the run cannot go on");
  return file;
}

std::string text_of(const base::Json& config) {
  try {
    return config.dump(2) + "\n";
  } catch (const base::Json::exception&) {
    throw base::ConfigError(
        config["data"]["path"].get<std::string>() +
        ": the path and the names of classes must be UTF-8, as config.json is");
  }
}

/// group: null for one process. Rank 0 alone reads and writes the directory,
/// and speaks. begun becomes true where the directory has a checkpoint.
void run(const Options& o, const Place& place, c10::Device device,
         train::Group* group, std::atomic<bool>& begun) {
  const bool lead = !group || group->rank() == 0;
  const std::string& directory = place.directory;
  base::Json config;
  std::unique_ptr<train::Task> task;
  std::string json;
  if (lead) {
    config = wanted(o, place);
    {
      ProgressMeter meter("files read");
      task = tasks::make_task(
          config, [&](int64_t done, int64_t all) { meter.show(done, all); },
          place.resume ? checkpoint_of(directory) : "");
    }
    json = text_of(config);
    if (!o.init.empty() && !place.resume) initialise(task->model(), o.init);
  }
  if (group) json = group->broadcast(json);
  if (!lead) {
    config = base::Json::parse(json);
    task = tasks::make_task(config);
  }
  const tasks::TaskKind& kind = tasks::task_kind(config);
  const train::TrainConfig recipe = train_config(config);
  if (!device.is_cpu()) task->model().to(device);
  train::Trainer trainer(*task, recipe, directory, group);
  // Before there is a directory, in any process: nothing was lost until here.
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Rank 0 knows, where others do not see its files.
  const bool resume = group ? group->any(lead && place.resume) : place.resume;
  RunLock lock;
  if (resume) {
    if (lead) lock.take(directory);
    trainer.resume();
    if (trainer.step() >= recipe.steps) {
      if (lead)
        std::cout << directory << ": has " << trainer.step()
                  << " steps already; `--steps N` with more goes on\n";
      return;
    }
    if (lead)
      std::cerr << directory << ": going on from step " << trainer.step()
                << '\n';
  } else if (lead) {
    const size_t slash = directory.find_last_of('/');
    if (slash != std::string::npos && slash > 0 &&
        !exists(directory.substr(0, slash)))
      io::make_directory(directory.substr(0, slash));
    lock.make(directory);
    // Before config.json: who resumes finds these first weights, which may be
    // --init's, and never others.
    trainer.save();
  }
  if (lead) io::write_file(directory + "/config.json", json);
  // In all processes: rank 0 has come here.
  begun = !group || group->any(true);

  if (lead) {
    int64_t parameters = 0;
    for (const auto& p : task->model().parameters()) parameters += p.numel();
    std::cerr << directory << ": " << described(config["model"]) << ", "
              << count(static_cast<double>(parameters)) << " parameters"
              << (group ? ", " + std::to_string(group->size()) + " processes"
                        : "")
              << (device.is_cpu() ? "" : ", on " + device.str())
              << "; Ctrl-C saves\n";
  }
  TrainingProgress line(kind.unit, has_one_position(config["model"]));
  train::Hooks hooks;
  hooks.stop = [] { return stop_asked != 0; };
  if (lead)
    hooks.progress = [&](const train::Report& r, bool reported) {
      line.show(r, reported);
      if (r.validated) write_curve(directory);
    };
  const bool done = trainer.run(hooks);
  line.close();
  if (!lead) return;
  if (done) {
    std::string next = kind.next;
    for (size_t at = 0; (at = next.find("DIR", at)) != std::string::npos;
         at += directory.size())
      next.replace(at, 3, directory);
    std::cout << directory << ": done; the curve is " << directory
              << "/curve.svg; " << next << "\n";
  } else {
    std::cout << directory << ": saved at step " << trainer.step()
              << "; go on with `aft train --resume " << directory << "`\n";
  }
}

c10::Device device_of(const Options& o,
                      const train::LaunchEnvironment& environment) {
  try {
    return train::device_for(o.device, environment);
  } catch (const std::invalid_argument& e) {
    throw UsageError(std::string("train: --device: ") + e.what());
  }
}

/// As one of several processes, where a launcher says so.
void run(const Options& o) {
  const train::LaunchEnvironment environment = train::launch_environment();
  const std::string directory = directory_of(o);
  const c10::Device device = device_of(o, environment);
  // Shared with a thread of the group's, which may be about to end the process.
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  if (environment.size == 1)
    return run(o, place_of(o, environment.restarts > 0), device, nullptr,
               *begun);
  const auto advised = [begun, directory](const std::string& why) {
    return *begun ? why +
                        "; the last checkpoint is kept: go on with `aft train "
                        "--resume " +
                        directory + "`"
                  : why;
  };
  run_distributed(environment, o.timeout, advised, [&](train::Group& group) {
    // torchrun's agents count apart.
    run(o, place_of(o, group.any(environment.restarts > 0)), device, &group,
        *begun);
  });
}

}  // namespace

void add_train(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a model on a text, on pictures or on classes of pictures, yours "
      "or the built-in ones");
  command->add_option("preset", o->what,
                      "A preset (`aft presets`), or a JSON file like one");
  command
      ->add_option("--data", o->data,
                   "Text (any file) or pictures (CIFAR-10 or a folder of PNG "
                   "and JPEG; for classes, one folder a class) to train on; "
                   "default: the preset's, or built-in data")
      ->type_name("PATH");
  command
      ->add_option("--out", o->out,
                   "Directory of the run; default: runs/PRESET")
      ->type_name("DIR");
  command
      ->add_option("--init", o->init,
                   "Classes: first weights from the model in DIR, or from a "
                   "safetensors file of ViT or DeiT: all that fit")
      ->type_name("PATH");
  command
      ->add_option("--resume", o->resume,
                   "Go on with the run in DIR, to the bit as if it had never "
                   "stopped")
      ->type_name("DIR");
  command->add_option("--steps", o->steps, "Short for --set train.steps=N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command
      ->add_option("--device", o->device,
                   "Where to train, as torch names it: cpu, cuda, cuda:1; "
                   "with several processes a machine, `cuda` gives each its "
                   "own; default: cpu")
      ->type_name("DEVICE");
  command
      ->add_option("--timeout", o->timeout,
                   "Several processes (`aft launch`): a process that is silent "
                   "for S seconds ends all; default: 120")
      ->check(real(1, 1e6))
      ->type_name("S");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->footer(
      "In the directory: config.json, model.safetensors (the best so far), "
      "state/ (to go on), metrics.jsonl, curve.svg.\n"
      "\n"
      "Examples:\n"
      "  aft train text-aft-local-4x128\n"
      "  aft train text-aft-simple-6x256 --data book.txt --out book\n"
      "  aft train text-aft-local-6x256 --set model.window=64 --steps 500\n"
      "  aft train image-aft-local-4x128 --data holiday/ --out holiday-model\n"
      "  aft train classify-aft-conv-4x96 --data flowers/ --out flowers-model\n"
      "  aft train --resume book");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
