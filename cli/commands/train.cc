// `aft train`: trains a preset or a configuration into a run directory.
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>

#include "aft/base/counted.h"
#include "aft/io/run_directory.h"
#include "aft/tasks/training_run.h"
#include "aft/train/device.h"
#include "cli/commands.h"
#include "cli/distributed_run.h"
#include "cli/interrupt.h"
#include "cli/model.h"
#include "cli/plot/training_curve.h"
#include "cli/training_progress.h"

namespace aft::cli {
namespace {

struct Options {
  std::string preset, out, resume, data, init, device = "cpu";
  std::vector<std::string> sets;
  int64_t steps = 0;
  int threads = 0;
  double timeout = 120;
};

/// The run directory. Throws UsageError for contradictory options.
std::string directory_of(const Options& o) {
  const bool resume = !o.resume.empty();
  if (resume == !o.preset.empty())
    throw UsageError("train: expected a preset or --resume DIR, " +
                     std::string(resume ? "got both" : "got neither"));
  if (resume && !o.out.empty())
    throw UsageError(
        "train: --resume DIR continues in DIR; --out is not "
        "allowed with it");
  if (resume && !o.init.empty())
    throw UsageError(
        "train: --init is for new runs; a resumed run has its "
        "weights");
  if (resume) return o.resume;
  const std::string name = o.preset.substr(o.preset.find_last_of('/') + 1);
  return o.out.empty() ? "runs/" + name : o.out;
}

/// data: --data, or where it is stored.
base::Json configuration(const Options& o, const std::string& data) {
  if (!o.resume.empty() && !io::RunDirectory(o.resume).has_config())
    throw io::Error(io::RunDirectory(o.resume).config() +
                    ": does not exist; expected --resume with the directory "
                    "of a run");
  base::Json config = o.resume.empty() ? preset_config(o.preset, o.sets)
                                       : directory_config(o.resume, o.sets);
  if (!data.empty()) {
    config["data"]["path"] = data;
    config["data"]["fingerprint"] = "";  // accept changed data
  }
  if (o.steps > 0) config["train"]["steps"] = o.steps;
  return config;
}

/// Throws as run() would for options that contradict each other, unknown
/// presets and keys, and a run that does not exist.
void check(const Options& o) {
  directory_of(o);
  configuration(o, o.data);
}

/// With --data -, writes the standard input to the run directory, from which a
/// resumed run reads it, and returns that path; otherwise --data. Throws
/// UsageError, io::RunExists, io::Error.
std::string stored_data(const Options& o, const std::string& directory,
                        int processes) {
  if (o.data != "-") return o.data;
  if (!o.resume.empty())
    throw UsageError("train: --data - is for new runs; give --resume a file");
  if (processes > 1)
    throw UsageError(
        "train: --data - is for one process; give several processes a file");
  if (preset_config(o.preset, o.sets)["task"] != "language")
    throw UsageError("train: --data - reads a text; " + o.preset +
                     " is not a preset for text");
  const io::RunDirectory run(directory);
  io::RunLock().create(run);
  io::write_file(run.data(), read_text_input());
  return run.data();
}

c10::Device device_of(const Options& o,
                      const train::LaunchEnvironment& environment) {
  try {
    return train::device_for(o.device, environment);
  } catch (const std::invalid_argument& e) {
    throw UsageError(std::string("train: --device: ") + e.what());
  }
}

void report_start(const tasks::TrainingRun& run, const tasks::RunStart& start) {
  if (start.resumed)
    std::cerr << run.directory << ": resuming from step " << start.step << '\n';
  if (start.new_data)
    std::cerr << run.directory
              << ": the data differ from those of the last checkpoint, so the "
                 "best validation score starts again\n";
  int64_t parameters = 0;
  for (const auto& p : start.model.parameters()) parameters += p.numel();
  std::cerr << run.directory << ": " << described(start.config["model"]) << ", "
            << count(static_cast<double>(parameters)) << " parameters"
            << (run.group ? ", " + base::counted(run.group->size(), "process")
                          : "")
            << (run.device.is_cpu() ? "" : ", on " + run.device.str())
            << "; Ctrl-C saves and stops\n";
  const train::TrainConfig recipe = train_config(start.config);
  if (const int64_t n = train::warmup_steps(recipe); n < recipe.warmup_steps)
    std::cerr << "note: the warm-up is " << base::counted(n, "step")
              << ", a quarter of " << recipe.steps
              << ", instead of train.warmup_steps = " << recipe.warmup_steps
              << "\n";
}

void report_end(const std::string& directory, const std::string& data,
                const tasks::TrainingResult& result) {
  using End = tasks::TrainingResult::End;
  std::cout << directory;
  if (result.end == End::kNothingToDo) {
    std::cout << ": already has " << base::counted(result.step, "step")
              << (data.empty() ? "" : ", so --data " + data + " is not used")
              << "; use a larger `--steps N` to train further"
              << (data.empty() ? "" : " on it") << "\n";
  } else if (result.end == End::kStopped) {
    std::cout << ": saved at step " << result.step
              << "; resume with `aft train --resume " << directory << "`\n";
  } else {
    std::string next = tasks::task_kind(result.config).next;
    for (size_t at = 0; (at = next.find("DIR", at)) != std::string::npos;
         at += directory.size())
      next.replace(at, 3, directory);
    std::cout << ": done; the training curve is "
              << io::RunDirectory(directory).curve() << "; " << next << "\n";
  }
}

/// group: null for one process. Sets `begun` once the run can be resumed.
void run(const Options& o, tasks::TrainingRun run, std::atomic<bool>& begun) {
  const bool leads = !run.group || run.group->rank() == 0;
  const int processes = run.group ? run.group->size() : 1;
  std::optional<ProgressMeter> meter("files read");
  std::optional<TrainingProgress> line;
  tasks::TrainingHooks hooks;
  hooks.reading = [&](int64_t done, int64_t all) { meter->show(done, all); };
  hooks.initialised = [&](const tasks::Transfer& taken) {
    meter.reset();
    std::cerr << o.init << ": copied " << tasks::summary(taken.copied) << "\n";
    if (!taken.fresh.empty())
      std::cerr << "  newly initialised: " << tasks::summary(taken.fresh)
                << "\n";
  };
  hooks.ready = [&] {
    meter.reset();
    // Stops the run after the current step, with a checkpoint.
    catch_interrupts();
  };
  hooks.started = [&](const tasks::RunStart& start) {
    begun = true;
    if (!leads) return;
    report_start(run, start);
    line.emplace(tasks::task_kind(start.config).unit,
                 has_one_position(start.config["model"]));
  };
  hooks.progress = [&](const train::Report& r, bool reported) {
    line->show(r, reported);
    if (r.validated) write_curve(run.directory);
  };
  hooks.saved = [&](int64_t step) {
    line->close();
    std::cerr << run.directory << ": saved at step " << step
              << "; validating (Ctrl-C skips this)\n";
  };
  hooks.stop = [] { return interrupts() > 0; };
  try {
    if (leads)
      run.config = configuration(o, stored_data(o, run.directory, processes));
    const tasks::TrainingResult result = tasks::run_training(run, hooks);
    line.reset();
    if (leads) report_end(run.directory, o.data, result);
    if (result.end == tasks::TrainingResult::End::kStopped) throw Interrupted();
  } catch (const io::RunExists& e) {
    throw UsageError(std::string(e.what()) +
                     "; resume it with `aft train --resume " + run.directory +
                     "` or choose another --out");
  }
}

/// Trains in this process alone or, if started by a launcher, as one rank of a
/// distributed run.
void run(const Options& o) {
  const train::LaunchEnvironment environment = train::launch_environment();
  tasks::TrainingRun request;
  request.directory = directory_of(o);
  request.device = device_of(o, environment);
  request.init = o.init;
  const auto mode = [&](bool restarted) {
    return !o.resume.empty() ? tasks::RunMode::kResume
           : restarted       ? tasks::RunMode::kRestart
                             : tasks::RunMode::kNew;
  };
  // Shared with a background thread of the group, which may end the process.
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  if (environment.size == 1) {
    request.mode = mode(environment.restarts > 0);
    return run(o, request, *begun);
  }
  const auto advised = [begun,
                        directory = request.directory](const std::string& why) {
    return *begun ? why +
                        "; the last checkpoint is kept: resume with `aft train "
                        "--resume " +
                        directory + "`"
                  : why;
  };
  run_distributed(environment, o.timeout, advised, [&](train::Group& group) {
    // torchrun's agents count restarts separately.
    request.mode = mode(group.any(environment.restarts > 0));
    request.group = &group;
    run(o, request, *begun);
  });
}

}  // namespace

namespace {

/// Adds the command, which then calls `act`.
void add_train(CLI::App& app, void (*act)(const Options&)) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a model on text, images or labelled images: your own or the "
      "built-in data");
  command->add_option("preset", o->preset,
                      "A preset (`aft presets`) or a JSON file of that form");
  add_text(
      *command, "--data", o->data, "PATH",
      "Training data: text (any file) or images (CIFAR-10 or a folder of "
      "PNG and JPEG files; for classification, one subfolder per class); "
      "-: text from the standard input, which is kept in the run directory; "
      "default: the preset's, or built-in data");
  add_text(*command, "--out", o->out, "DIR",
           "Run directory; default: runs/PRESET");
  add_text(
      *command, "--init", o->init, "PATH",
      "Fine-tune: copy the matching weights of a model directory into the new "
      "model; for classification, also those of a safetensors file of a ViT "
      "or DeiT");
  add_text(*command, "--resume", o->resume, "DIR",
           "Resume the run in DIR; the result is bit-identical to that of an "
           "uninterrupted run");
  add_count(*command, "--steps", o->steps, "Short for --set train.steps=N");
  add_text(
      *command, "--device", o->device, "DEVICE",
      "Device in torch's notation: cpu, cuda, cuda:1; with several "
      "processes per machine, `cuda` assigns one GPU to each; default: cpu");
  add_real(*command, "--timeout", o->timeout,
           "Several processes (`aft launch`): fail if a process does not "
           "respond for S seconds; default: 120",
           1, 1e6)
      ->type_name("S");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->footer(
      "Files in the directory: config.json, model.safetensors (the best "
      "weights so far), state/ (to resume), metrics.jsonl,\n"
      "curve.svg.\n"
      "\n"
      "Examples:\n"
      "  aft train text-aft-local-4x128\n"
      "  aft train text-aft-simple-6x256 --data book.txt --out book\n"
      "  aft train text-aft-local-6x256 --set model.window=64 --steps 500\n"
      "  aft train image-aft-local-4x128 --data holiday/ --out holiday-model\n"
      "  aft train classify-aft-conv-4x96 --data flowers/ --out flowers-model\n"
      "  aft train --resume book");
  command->callback([o, act] { act(*o); });
}

}  // namespace

void add_train(CLI::App& app) {
  add_train(app, [](const Options& o) {
    set_threads(o.threads);
    run(o);
  });
}

void check_train(const std::vector<std::string>& arguments) {
  CLI::App app("", "aft");
  add_train(app, check);
  finish(app);
  std::vector<const char*> words = {"aft"};
  for (const std::string& word : arguments) words.push_back(word.c_str());
  run(app, static_cast<int>(words.size()), words.data());
}

}  // namespace aft::cli
