// `aft compare`: several systems on one task, each in a process of its own, for
// the same number of steps or seconds, or only with a clock.
#include "cli/commands/compare.h"

#include <ATen/Parallel.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aft/io/file.h"
#include "aft/io/json_file.h"
#include "cli/measure/measure.h"
#include "cli/commands.h"
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

double figure(const Json& paper, const std::vector<const char*>& keys) {
  for (const char* key : keys)
    if (paper.is_object() && paper.contains(key)) return paper[key];
  return 0;
}

/// 0, and an error, where there is no such model.
int64_t parameters_of(const Json& config, std::string& error) {
  int64_t all = 0;
  try {
    for (const auto& p : tasks::make_model(config)->parameters())
      all += p.numel();
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const base::ConfigError& e) {
    error = e.what();
  }
  return all;
}

/// "" of a network that has none.
std::string mixer_of(const System& s) {
  return s.config["model"].value("mixer", "");
}

bool classes(const System& s) { return s.config["task"] == "classification"; }

/// Steps a second of training on built-in data, or images of inference.
void time(const System& s, const Options& o, Outcome& out) {
  Json config = s.config;
  config["data"]["path"] = "", config["data"]["fingerprint"] = "";
  if (s.config["task"] == "language") config["data"]["mode"] = "bytes";
  if (classes(s)) {
    const int64_t batch = o.batch > 0 ? o.batch : 32;
    const Measured m = measure_inference(config.dump(), batch, 0, o.repeat);
    out.error = m.error, out.peak_gb = m.peak / 1e9;
    if (m.ms > 0) out.rate = 1e3 * static_cast<double>(batch) / m.ms;
    return;
  }
  config["train"]["accumulate"] = 1;
  const Measured m = measure_training(config.dump(), o.repeat);
  out.error = m.error, out.peak_gb = m.peak / 1e9;
  if (m.ms > 0) out.rate = 1e3 / m.ms;
}

/// What metrics.jsonl says of a run.
void read_run(const std::string& directory, double scale, Outcome& out) {
  constexpr size_t kMost = size_t{1} << 30;  // millions of lines
  const std::string path = directory + "/metrics.jsonl";
  std::istringstream in(exists(path) ? io::read_file(path, kMost) : "");
  double best = INFINITY;
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object()) continue;
    const auto number = [&](const char* key) {
      return j.contains(key) && j[key].is_number() ? j[key].get<double>() : 0;
    };
    if (number("seconds") > 0) out.rate = number("step") / number("seconds");
    if (!j.contains("validation") || !j["validation"].is_number()) continue;
    if (number("validation") < best) {  // the weights that are kept
      best = number("validation");
      out.kernel_entropy = number("kernel_entropy");
      out.kernel_top = number("kernel_top");
    }
    out.loss = best * scale;
    out.top1 = std::max(out.top1, 100 * number("top1"));
  }
}

/// Trains, or goes on. False: interrupted.
bool train(const System& s, int64_t steps, Outcome& out) {
  std::vector<std::string> arguments{"train"};
  const auto add = [&](const std::string& name, const std::string& value) {
    arguments.push_back(name), arguments.push_back(value);
  };
  if (exists(out.directory + "/config.json")) {
    add("--resume", out.directory);
  } else {
    const std::string file = out.directory + ".json";
    io::write_file(file, s.config.dump(2) + "\n");
    arguments.push_back(file);
    add("--out", out.directory);
  }
  add("--steps", std::to_string(steps));
  add("--threads", std::to_string(at::get_num_threads()));
  const SubprocessResult child = run_aft(arguments, /*keep_stderr=*/false);
  out.peak_gb = std::max(out.peak_gb, child.peak / 1e9);
  if (interrupted != 0) return false;
  const std::string unit = tasks::task_kind(s.config).unit;
  read_run(out.directory, unit.empty() ? 1 : kBits, out);
  out.error = child.code == 0
                  ? ""
                  : "training ended with code " + std::to_string(child.code) +
                        "; `aft train --resume " + out.directory +
                        "` shows why";
  return true;
}

/// The place of the system that the others are put over: the first with
/// attention that has figures.
int reference(const std::vector<System>& systems,
              const std::vector<Outcome>& outcomes) {
  for (size_t i = 0; i < outcomes.size(); ++i)
    if (mixer_of(systems[i]) == "attention" && outcomes[i].error.empty() &&
        outcomes[i].rate > 0)
      return static_cast<int>(i);
  return -1;
}

void write_all(const std::string& directory, const Json& settings,
               const std::vector<System>& systems, const Comparison& c) {
  Json j{{"settings", settings}, {"systems", Json::array()}};
  std::vector<std::string> runs;
  for (const Outcome& s : c.systems) {
    j["systems"].push_back(base::to_json(s));
    if (s.loss > 0) runs.push_back(s.directory);
  }
  io::write_file(directory + "/compare.json", j.dump(2) + "\n");
  const std::string picture = as_picture(c, reference(systems, c.systems));
  io::write_file(directory + "/compare.svg", picture);
  std::string lines;
  if (!runs.empty() && runs.size() <= kMostCurves)
    lines = svg(runs_chart(runs));
  io::write_file(directory + "/report.html", as_page(c, picture, lines));
}

/// What an earlier run of the same comparison has found. Throws where the
/// directory holds another one.
std::vector<Outcome> found_before(const std::string& directory,
                                  const Json& settings) {
  const std::string path = directory + "/compare.json";
  if (!exists(path)) return {};
  const Json j = io::read_json_file(path);
  if (!j.is_object() || !j.contains("settings") || !j.contains("systems") ||
      !j["settings"].is_object() || !j["systems"].is_array())
    throw std::runtime_error(path + ": is not what `aft compare` writes");
  for (const auto& item : settings.items()) {
    const Json before = j["settings"].value(item.key(), Json());
    if (before != item.value())
      throw std::runtime_error(directory + ": holds another comparison, with " +
                               item.key() + " " + before.dump() +
                               " instead of " + item.value().dump() +
                               "; choose another --out");
  }
  std::vector<Outcome> out;
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

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += " " + word;
  return out;
}

void run(const Options& o) {
  if ((o.steps > 0) + (o.seconds > 0) + o.speed > 1)
    throw UsageError(
        "compare: expected one of --speed, --steps and --seconds, got more");
  if (o.speed && !o.data.empty())
    throw UsageError(
        "compare: --speed takes built-in data, which --data cannot change");
  std::vector<System> systems = systems_of(o.what, o.sets);
  for (System& s : systems) {
    if (!o.data.empty()) s.config["data"]["path"] = o.data;
    if (o.batch > 0)
      s.config["train"].update({{"batch", o.batch}, {"accumulate", 1}});
  }
  const tasks::TaskKind& kind = tasks::task_kind(systems[0].config);
  const bool images = o.speed && classes(systems[0]);
  const std::string directory =
      !o.out.empty()
          ? o.out
          : "runs/compare-" +
                (o.what.size() == 1 ? plain_name(o.what[0]) : kind.name) +
                (o.speed ? "-speed" : "");
  const Json settings{{"task", kind.name}, {"speed", o.speed},
                      {"steps", o.steps},  {"seconds", o.seconds},
                      {"batch", o.batch},  {"set", o.sets},
                      {"data", o.data},    {"threads", at::get_num_threads()}};
  if (o.out.empty()) io::make_directory("runs");
  if (!io::make_directory(directory) && !is_directory(directory))
    throw std::runtime_error(directory + ": is there, and not a directory");
  const std::vector<Outcome> before = found_before(directory, settings);

  Comparison c;
  c.trained = !o.speed;
  c.unit = kind.unit.empty() ? "nats" : kind.unit;
  c.rate = images ? "images/s" : "steps/s";
  c.title = "Systems on " + (o.what.size() == 1 ? o.what[0] : kind.name);
  c.command = "aft compare" + joined(o.what) + (o.speed ? " --speed" : "");
  c.how = images ? "Inference, images of the preset's size."
          : o.speed
              ? "Steps of training: batch, forward, backward, clipping, AdamW."
              : "Training; the loss is that of validation, the best one.";
  c.how += " Each system in a process of its own, " +
           std::to_string(at::get_num_threads()) + " threads.";
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  Progress progress(systems.size());
  for (const System& s : systems) {
    Outcome out;
    const auto known =
        std::find_if(before.begin(), before.end(),
                     [&](const Outcome& x) { return x.name == s.name; });
    if (known != before.end()) out = *known;
    c.systems.push_back(out);
    Outcome& now = c.systems.back();
    if (known != before.end() && now.error.empty() && now.rate > 0) {
      progress.next(s.name + ": known");
      continue;
    }
    now.name = s.name;
    now.aft = mixer_of(s).rfind("aft", 0) == 0;
    now.paper_test = figure(s.paper, {"test"});
    now.paper_rate =
        figure(s.paper, {"iterations_per_second", "images_per_second"});
    now.paper_gb = figure(s.paper, {"gb_per_gpu", "gb"});
    progress.next(s.name);
    bool done = true;
    now.parameters = parameters_of(s.config, now.error);
    if (!now.error.empty()) {
      // What cannot be made cannot be measured.
    } else if (o.speed) {
      time(s, o, now);
      done = interrupted == 0;
    } else {
      now.directory = directory + "/" + s.name;
      int64_t steps =
          o.steps > 0 ? o.steps : s.config["train"]["steps"].get<int64_t>();
      const std::string begun = now.directory + "/config.json";
      if (o.seconds > 0 && exists(begun)) {
        // As many as when it began: another measurement would be another run.
        steps = train_config(tasks::load_config(now.directory)).steps;
      } else if (o.seconds > 0) {
        const Measured m = measure_training(s.config.dump(), o.repeat);
        now.error = m.error;
        if (m.ms > 0)
          steps = std::max<int64_t>(
              1, std::llround(1e3 * static_cast<double>(o.seconds) / m.ms));
      }
      if (now.error.empty()) done = train(s, steps, now);
    }
    if (!done) {
      c.systems.pop_back();
      std::cout << directory << ": stopped at " << s.name << " with "
                << c.systems.size() << " of " << systems.size()
                << " systems done; the same command goes on\n";
      return;
    }
    write_all(directory, settings, systems, c);
  }
  write_all(directory, settings, systems, c);
  if (o.json) {
    Json j = Json::array();
    for (const Outcome& s : c.systems) j.push_back(base::to_json(s));
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::cout << as_table(c) << "\n"
            << c.how << "\nThe picture is " << directory
            << "/compare.svg, the page " << directory << "/report.html\n";
}

}  // namespace

void add_compare(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "compare",
      "Train or time several systems on one task, beside the paper's figures");
  command
      ->add_option("systems", o->what,
                   "Presets, or a word for a list of them (below)")
      ->required();
  command->add_flag("--speed", o->speed,
                    "Only with a clock: steps of training on built-in data; "
                    "with classes, images of inference");
  command
      ->add_option("--steps", o->steps,
                   "Train each for N steps; default: the preset's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command
      ->add_option("--seconds", o->seconds,
                   "Train each for as many steps as take N seconds")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->type_name("N");
  command
      ->add_option("--batch", o->batch,
                   "Examples of a step; default: the preset's, 32 images of "
                   "inference")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
  command
      ->add_option("--repeat", o->repeat,
                   "Steps with a clock, after two without; default: 3")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  command
      ->add_option("--data", o->data,
                   "What to train on; default: the presets', or built-in data")
      ->type_name("PATH");
  command
      ->add_option("--out", o->out,
                   "Directory of the comparison; default: runs/compare-...")
      ->type_name("DIR");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->add_flag("--json", o->json, "A JSON array instead of a table");
  command->footer(
      "Lists of systems:\n" + lists_of_systems() +
      "\n"
      "In the directory: compare.json, compare.svg, report.html, and the run "
      "of each system. Interrupted, the same\n"
      "command goes on.\n"
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
