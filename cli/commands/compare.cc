// `aft compare`: trains several systems on one task for the same number of
// steps or seconds, or only times them, each in a separate process.
#include "cli/commands/compare.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "aft/base/counted.h"
#include "aft/io/file.h"
#include "aft/io/json_file.h"
#include "aft/io/run_directory.h"
#include "aft/nn/mixer.h"
#include "aft/train/metrics.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/measure/measure.h"
#include "cli/model.h"
#include "cli/plot/training_curve.h"
#include "cli/subprocess.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

using base::Json;

struct Options {
  std::vector<std::string> what, sets;
  std::string data, out;
  bool speed = false, json = false;
  int64_t steps = 0, seconds = 0, batch = 0;
  int repeat = 3, threads = 0;
};

/// The first of the paper's figures that exists, or 0.
double figure(const Json& paper, const std::vector<const char*>& keys) {
  for (const char* key : keys)
    if (paper.is_object() && paper.contains(key) && paper[key].is_number())
      return paper[key];
  return 0;
}

/// Sets result.error if the model cannot be created.
void count_parameters(const Json& config, ComparisonResult& result) {
  try {
    for (const auto& p : tasks::make_model(config)->parameters())
      result.parameters += p.numel();
  } catch (const c10::Error& e) {
    result.error = e.what_without_backtrace();
  } catch (const base::ConfigError& e) {
    result.error = e.what();
  }
}

/// The mixer's name; "" for other networks.
std::string mixer_of(const ComparedSystem& s) {
  return s.config["model"].value("mixer", "");
}

bool is_classifier(const ComparedSystem& s) {
  return s.config["task"] == "classification";
}

/// Times training steps on built-in data or, for classifiers, inference.
void measure_speed(const ComparedSystem& s, const Options& o,
                   ComparisonResult& result) {
  Json config = s.config;
  config["data"]["path"] = "", config["data"]["fingerprint"] = "";
  config["train"]["grad_accumulation"] = 1;
  if (s.config["task"] == "language") config["data"]["mode"] = "bytes";
  const int64_t batch = is_classifier(s) ? (o.batch > 0 ? o.batch : 32) : 1;
  const Measured m = is_classifier(s)
                         ? measure_inference(config.dump(), batch, 0, o.repeat)
                         : measure_training(config.dump(), o.repeat);
  result.error = m.error + batch_hint(m.error, o.batch);
  result.peak_gb = m.peak / 1e9;
  if (m.ms > 0) result.rate = 1e3 * static_cast<double>(batch) / m.ms;
}

/// Reads the results of a run from its metrics.
void read_run(double scale, ComparisonResult& result) {
  double best = INFINITY;
  for (const train::Metrics& m :
       train::read_metrics(io::RunDirectory(result.directory).metrics())) {
    if (m.seconds > 0) result.rate = static_cast<double>(m.step) / m.seconds;
    if (!m.validation) continue;
    if (*m.validation < best) {  // the weights of this step are kept
      best = *m.validation;
      result.kernel_entropy = m.value("kernel_entropy");
      result.kernel_top = m.value("kernel_top");
    }
    result.loss = best * scale;
    result.top1 = std::max(result.top1, 100 * m.value("top1"));
  }
}

/// Trains a system, or resumes its training. Does nothing further once this
/// process is interrupted.
void train(const ComparedSystem& s, const Options& o,
           ComparisonResult& result) {
  int64_t steps =
      o.steps > 0 ? o.steps : s.config["train"]["steps"].get<int64_t>();
  const bool resume = io::RunDirectory(result.directory).has_config();
  if (o.seconds > 0 && resume) {
    // Measuring again would give a different number of steps.
    steps = train_config(tasks::load_config(result.directory)).steps;
  } else if (o.seconds > 0) {
    const Measured m = measure_training(s.config.dump(), o.repeat);
    result.error = m.error;
    if (m.ms > 0)
      steps = std::max<int64_t>(
          1, std::llround(1e3 * static_cast<double>(o.seconds) / m.ms));
    if (!result.error.empty()) return;
  }
  const std::string file = result.directory + ".json";
  std::vector<std::string> arguments{"train", "--resume", result.directory};
  if (!resume) {
    io::write_file(file, s.config.dump(2) + "\n");
    arguments = {"train", file, "--out", result.directory};
  }
  arguments.insert(arguments.end(),
                   {"--steps", std::to_string(steps), "--threads",
                    std::to_string(at::get_num_threads())});
  const SubprocessResult child = run_aft(arguments, /*keep_stderr=*/false);
  result.peak_gb = std::max(result.peak_gb, child.peak / 1e9);
  if (interrupts() > 0) return;
  const std::string unit = tasks::task_kind(s.config).unit;
  read_run(unit.empty() ? 1 : kBits, result);
  result.error = child.code == 0
                     ? ""
                     : "training failed with exit code " +
                           std::to_string(child.code) +
                           (io::RunDirectory(result.directory).has_config()
                                ? "; `aft train --resume " + result.directory +
                                      "` shows why"
                                : "; the message is above");
}

/// Continues from `result`, which may be empty or from an earlier call.
void evaluate(const ComparedSystem& s, const Options& o,
              const std::string& directory, ComparisonResult& result) {
  result.name = s.name;
  result.aft = nn::mixer_traits(mixer_of(s)).aft;
  result.paper_test = figure(s.paper, {"test"});
  result.paper_rate =
      figure(s.paper, {"iterations_per_second", "images_per_second"});
  result.paper_gb = figure(s.paper, {"gb_per_gpu", "gb"});
  result.parameters = 0, result.error = "";
  count_parameters(s.config, result);
  if (!result.error.empty()) return;
  if (o.speed) return measure_speed(s, o, result);
  result.directory = directory + "/" + s.name;
  train(s, o, result);
}

/// The index of the system that the charts compare with: the first one with
/// attention and results, or -1.
int reference(const std::vector<ComparedSystem>& systems,
              const std::vector<ComparisonResult>& results) {
  for (size_t i = 0; i < results.size(); ++i)
    if (nn::mixer_traits(mixer_of(systems[i])).attention &&
        results[i].error.empty() && results[i].rate > 0)
      return static_cast<int>(i);
  return -1;
}

Json to_array(const std::vector<ComparisonResult>& results) {
  Json out = Json::array();
  for (const ComparisonResult& r : results) out.push_back(base::to_json(r));
  return out;
}

void write_files(const std::string& directory, const Json& settings,
                 const std::vector<ComparedSystem>& systems,
                 const Comparison& c) {
  const Json j{{"settings", settings}, {"systems", to_array(c.systems)}};
  io::write_file(directory + "/compare.json", j.dump(2) + "\n");
  const std::string chart = as_chart(c, reference(systems, c.systems));
  io::write_file(directory + "/compare.svg", chart);
  std::vector<std::string> runs;
  for (const ComparisonResult& r : c.systems)
    if (r.loss > 0) runs.push_back(r.directory);
  const bool curves = !runs.empty() && runs.size() <= kMostCurves;
  io::write_file(directory + "/report.html",
                 as_page(c, chart, curves ? plot(runs_chart(runs)) : ""));
}

/// The results of an earlier run of the same comparison. Throws if the
/// directory holds a different one.
std::vector<ComparisonResult> earlier_results(const std::string& directory,
                                              const Json& settings) {
  const std::string path = directory + "/compare.json";
  if (!exists(path)) return {};
  const Json j = io::read_json_file(path);
  if (!j.is_object() || !j.contains("settings") || !j.contains("systems") ||
      !j["settings"].is_object() || !j["systems"].is_array())
    throw std::runtime_error(path + ": was not written by `aft compare`");
  for (const auto& item : settings.items()) {
    const Json before = j["settings"].value(item.key(), Json());
    if (before != item.value())
      throw std::runtime_error(directory + ": holds another comparison, with " +
                               item.key() + " " + before.dump() +
                               " instead of " + item.value().dump() +
                               "; choose another --out");
  }
  std::vector<ComparisonResult> out;
  for (const Json& s : j["systems"]) {
    out.emplace_back();
    try {
      base::from_json(s, out.back());
    } catch (const base::ConfigError& e) {
      throw std::runtime_error(path + ": " + e.what());
    }
  }
  return out;
}

std::vector<ComparedSystem> chosen_systems(const Options& o) {
  if ((o.steps > 0) + (o.seconds > 0) + o.speed > 1)
    throw UsageError(
        "compare: expected one of --speed, --steps and --seconds, got more");
  if (o.speed && !o.data.empty())
    throw UsageError("compare: --speed uses built-in data, without --data");
  if (o.data == "-")
    throw UsageError(
        "compare: every system reads the data: give --data a file");
  std::vector<ComparedSystem> systems = compared_systems(o.what, o.sets);
  for (ComparedSystem& s : systems) {
    if (!o.data.empty()) s.config["data"]["path"] = o.data;
    if (o.batch > 0)
      s.config["train"].update(
          {{"batch_size", o.batch}, {"grad_accumulation", 1}});
  }
  return systems;
}

/// The shell command that repeats the comparison.
std::string command_of(const Options& o) {
  std::vector<std::string> words = o.what;
  const auto add = [&](const char* option, int64_t value) {
    if (value > 0) words.insert(words.end(), {option, std::to_string(value)});
  };
  if (o.speed) words.emplace_back("--speed");
  add("--steps", o.steps), add("--seconds", o.seconds), add("--batch", o.batch);
  if (o.speed || o.seconds > 0) add("--repeat", o.repeat);
  if (!o.data.empty()) words.insert(words.end(), {"--data", o.data});
  for (const std::string& set : o.sets)
    words.insert(words.end(), {"--set", set});
  add("--threads", at::get_num_threads());
  if (!o.out.empty()) words.insert(words.end(), {"--out", o.out});
  std::string out = "aft compare";
  for (const std::string& word : words) out += " " + shell_quoted(word);
  return out;
}

/// Throws if systems failed. Their results are already shown.
void check_failures(const Comparison& c) {
  const auto failed =
      std::count_if(c.systems.begin(), c.systems.end(),
                    [](const ComparisonResult& r) { return !r.error.empty(); });
  if (failed > 0)
    throw std::runtime_error("compare: " + std::to_string(failed) + " of " +
                             base::counted(c.systems.size(), "system") +
                             " failed");
}

void run(const Options& o) {
  const std::vector<ComparedSystem> systems = chosen_systems(o);
  const tasks::TaskKind& kind = tasks::task_kind(systems[0].config);
  const bool inference = o.speed && is_classifier(systems[0]);
  const std::string name = o.what.size() == 1 ? o.what[0] : kind.name;
  const std::string directory =
      o.out.empty()
          ? "runs/compare-" + base_name(name) + (o.speed ? "-speed" : "")
          : o.out;
  const Json settings{{"task", kind.name}, {"speed", o.speed},
                      {"steps", o.steps},  {"seconds", o.seconds},
                      {"batch", o.batch},  {"set", o.sets},
                      {"data", o.data},    {"threads", at::get_num_threads()}};
  if (const std::string run = io::RunDirectory(directory).proof(); !run.empty())
    throw UsageError("compare: " + directory + ": holds a run (" + run +
                     "); choose another --out");
  io::prepare_file(directory + "/compare.json");
  const std::vector<ComparisonResult> earlier =
      earlier_results(directory, settings);

  Comparison c;
  c.trained = !o.speed;
  c.unit = kind.unit.empty() ? "nats" : kind.unit;
  c.rate = inference ? "images/s" : "steps/s";
  c.title = "Comparison: " + name;
  c.command = command_of(o);
  c.how = std::string(
              inference ? "Inference, with images of the preset's size."
              : o.speed
                  ? "Training steps: batch, forward, backward, clipping, AdamW."
                  : "Training; the loss is the lowest validation loss.") +
          " Each system runs in a separate process with " +
          base::counted(at::get_num_threads(), "thread") + ".";
  catch_interrupts();

  Progress progress(systems.size(), /*overwrite=*/o.speed);
  for (const ComparedSystem& s : systems) {
    ComparisonResult result;
    for (const ComparisonResult& r : earlier)
      if (r.name == s.name) result = r;
    const bool done =
        !result.name.empty() && result.error.empty() && result.rate > 0;
    progress.next(s.name + (done ? ": already done" : ""));
    if (!done) evaluate(s, o, directory, result);
    if (interrupts() > 0) {
      std::cout << directory << ": stopped at " << s.name << " with "
                << c.systems.size() << " of "
                << base::counted(systems.size(), "system")
                << " done; the same command resumes\n";
      throw Interrupted();
    }
    c.systems.push_back(std::move(result));
    if (!done) write_files(directory, settings, systems, c);
  }
  write_files(directory, settings, systems, c);
  if (o.json) {
    std::cout << to_array(c.systems).dump(2) << '\n';
    return check_failures(c);
  }
  std::cout << as_table(c) << "\n"
            << c.how << "\nBar chart: " << directory
            << "/compare.svg; report: " << directory << "/report.html\n";
  check_failures(c);
}

}  // namespace

void add_compare(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "compare",
      "Train or time several systems on one task, next to the paper's results");
  command
      ->add_option("systems", o->what,
                   "Presets, JSON files, or the name of a table (below)")
      ->required();
  command->add_flag(
      "--speed", o->speed,
      "Only time the systems: training steps on built-in data; for "
      "classifiers, inference");
  add_count(*command, "--steps", o->steps,
            "Train each system for N steps; default: the preset's");
  add_count(*command, "--seconds", o->seconds,
            "Train each system for about N seconds", 1, 1 << 30);
  add_count(*command, "--batch", o->batch,
            "Examples per step; default: the preset's; 32 images for inference",
            1, 1 << 20);
  add_count(*command, "--repeat", o->repeat,
            "Timed steps, after two that are not timed; default: 3", 1,
            1000000);
  add_text(*command, "--data", o->data, "PATH",
           "Training data; default: the presets', or built-in data");
  add_text(*command, "--out", o->out, "DIR",
           "Directory of the comparison; default: runs/compare-...");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->add_flag("--json", o->json, "Print a JSON array instead of a table");
  command->footer(
      "Tables:\n" + tables_of_systems() +
      "\n"
      "The directory contains compare.json, compare.svg, report.html and the "
      "run of each system. After an interruption,\n"
      "the same command resumes.\n"
      "\n"
      "Examples:\n"
      "  aft compare enwik8 --speed --batch 1\n"
      "  aft compare text --data book.txt --steps 500\n"
      "  aft compare text-aft-local-4x128 text-transformer-4x128 --seconds "
      "300\n"
      "  aft compare imagenet --speed --batch 8");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
