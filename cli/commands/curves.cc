// `aft curves`: the training curves of one run or of several.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include "aft/base/counted.h"
#include "aft/io/file.h"
#include "aft/io/run_directory.h"
#include "aft/train/metrics.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/plot/chart.h"
#include "cli/plot/training_curve.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

using train::Metrics;

/// The points (x, y) of the lines that have both: x above 0, and y.
template <class X, class Y>
Series series(const std::string& name, const std::vector<Metrics>& lines,
              const X& x, const Y& y) {
  Series out{name, {}};
  for (const Metrics& m : lines)
    if (const std::optional<double> value = y(m); x(m) > 0 && value)
      out.points.emplace_back(x(m), *value);
  return out;
}

double step(const Metrics& m) { return static_cast<double>(m.step); }
double minutes(const Metrics& m) { return m.seconds / 60; }
std::optional<double> top1(const Metrics& m) {
  for (const auto& [name, share] : m.values)
    if (name == "top1") return 100 * share;
  return std::nullopt;
}

std::vector<Metrics> read(const std::string& directory) {
  if (!io::exists(directory))
    throw io::Error(directory + ": does not exist; expected a run directory");
  return train::read_metrics(io::RunDirectory(directory).metrics());
}

/// Throws UsageError if the runs have different tasks, whose losses cannot be
/// compared. Runs without a configuration are not checked.
void check_tasks(const std::vector<std::string>& directories) {
  std::string first, task;
  for (const std::string& d : directories) {
    if (!io::RunDirectory(d).has_config()) continue;
    const std::string other = tasks::load_config(d)["task"];
    if (first.empty()) first = d, task = other;
    if (other != task)
      throw UsageError("expected runs of one task, got " + first + " of task " +
                       task + " and " + d + " of task " + other);
  }
}

/// The last parts of the paths or, if two of those are equal, the paths.
std::vector<std::string> names_of(const std::vector<std::string>& directories) {
  std::vector<std::string> out;
  for (const std::string& d : directories) {
    const size_t end = d.find_last_not_of('/');
    const std::string path = d.substr(0, end + 1);
    out.push_back(
        end == std::string::npos ? d : path.substr(path.find_last_of('/') + 1));
  }
  const std::set<std::string> distinct(out.begin(), out.end());
  return distinct.size() == out.size() ? out : directories;
}

/// The unit of the loss in bits; "" for classifiers, whose loss is in nats.
/// Runs without a configuration are judged by their metrics.
std::string unit_of(const std::string& directory,
                    const std::vector<Metrics>& lines) {
  if (io::RunDirectory(directory).has_config())
    return tasks::task_kind(tasks::load_config(directory)).unit;
  const bool classes =
      std::any_of(lines.begin(), lines.end(),
                  [](const Metrics& m) { return top1(m).has_value(); });
  return classes ? "" : "bits";
}

}  // namespace

Chart run_chart(const std::string& directory) {
  const std::vector<Metrics> lines = read(directory);
  const std::string unit = unit_of(directory, lines);
  const bool classes = unit.empty();
  const double scale = classes ? 1 : kBits;
  const Series training =
      series("training", lines, step,
             [&](const Metrics& m) { return std::optional(m.loss * scale); });
  const auto validated = [&](const Metrics& m) {
    return m.validation ? std::optional(*m.validation * scale) : std::nullopt;
  };
  const Series validation = series("validation", lines, step, validated);
  Chart chart{"curve", "Training of " + directory, "", "", {}};
  if (training.points.empty()) return chart;
  chart.caption = classes ? "Loss in nats and, on validation data, top-1 "
                            "accuracy in % by training step."
                          : "Loss in " + unit + " by training step.";
  if (validation.points.empty()) {
    chart.caption += " Not validated yet.";
  } else {
    const auto best = *std::min_element(
        validation.points.begin(), validation.points.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    chart.caption += " Lowest validation loss: " + number(best.second) +
                     " at step " + std::to_string(std::llround(best.first)) +
                     ".";
  }
  chart.panels = {{classes ? "loss" : "",
                   "step",
                   classes ? "nats" : unit,
                   {training, validation},
                   true}};
  if (classes)
    chart.panels.push_back(
        {"top-1 accuracy",
         "step",
         "%",
         {{"training", {}}, series("validation", lines, step, top1)},
         true});
  return chart;
}

void write_curve(const std::string& directory) {
  const Chart chart = run_chart(directory);
  if (!chart.panels.empty())
    io::write_file(io::RunDirectory(directory).curve(), plot(chart));
}

Chart runs_chart(const std::vector<std::string>& directories) {
  check_tasks(directories);
  std::vector<std::vector<Metrics>> runs;
  for (const std::string& d : directories) runs.push_back(read(d));
  const std::string bits =
      directories.empty() ? "" : unit_of(directories[0], runs[0]);
  const bool classes = bits.empty();
  const auto value = [&](const Metrics& m) {
    return classes        ? top1(m)
           : m.validation ? std::optional(kBits * *m.validation)
                          : std::nullopt;
  };
  const std::string unit = classes ? "%" : bits;
  Panel steps{"at equal steps", "step", unit, {}, true},
      time{"at equal time", "minutes", unit, {}, true};
  bool timed = true;
  const std::vector<std::string> names = names_of(directories);
  for (size_t i = 0; i < runs.size(); ++i) {
    steps.series.push_back(series(names[i], runs[i], step, value));
    time.series.push_back(series(names[i], runs[i], minutes, value));
    if (steps.series.back().points.empty())
      throw std::runtime_error(io::RunDirectory(directories[i]).metrics() +
                               ": has no validation yet");
    timed = timed && !time.series.back().points.empty();
  }
  std::vector<Panel> panels = {steps};
  if (timed) panels.push_back(time);
  return {"curves", "Validation", "",
          std::string(classes ? "Top-1 accuracy in % on validation data, where "
                                "higher is better, "
                              : "Validation loss in " + bits +
                                    ", where lower is better, ") +
              (timed ? "by training step and by training time."
                     : "by training step."),
          panels};
}

void add_curves(CLI::App& app) {
  struct Options {
    std::vector<std::string> runs;
    std::string out = "curves.svg";
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "curves", "Plot the validation curves of several runs in one chart");
  command->add_option("runs", o->runs, "Run directories, at most 16")
      ->required();
  add_text(*command, "--out", o->out, "FILE",
           "SVG file, a name that ends in .svg; default: curves.svg")
      ->check(ends_in(".svg"));
  command->footer("Example:\n  aft curves runs/* --out curves.svg");
  command->callback([o] {
    if (o->runs.size() > kMostCurves)
      throw UsageError("curves: expected at most 16 runs, got " +
                       std::to_string(o->runs.size()));
    const Chart chart = runs_chart(o->runs);
    prepare_output("--out", o->out);
    io::write_file(o->out, plot(chart));
    std::cout << o->out << ": the validation curves of "
              << base::counted(o->runs.size(), "run") << '\n';
  });
}

}  // namespace aft::cli
