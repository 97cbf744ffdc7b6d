// `aft curves`: the training curves of one run or of several.
#include <algorithm>
#include <memory>

#include "aft/io/file.h"
#include "aft/io/run_directory.h"
#include "aft/train/metrics.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/plot/chart.h"
#include "cli/plot/training_curve.h"

namespace aft::cli {
namespace {

using train::Metrics;

/// The points (x, y) of the lines that have both: values above 0.
template <class X, class Y>
Series series(const std::string& name, const std::vector<Metrics>& lines,
              const X& x, const Y& y) {
  Series out{name, {}};
  for (const Metrics& m : lines)
    if (x(m) > 0 && y(m) > 0) out.points.emplace_back(x(m), y(m));
  return out;
}

double step(const Metrics& m) { return static_cast<double>(m.step); }
double minutes(const Metrics& m) { return m.seconds / 60; }
double top1(const Metrics& m) { return 100 * m.value("top1"); }

std::vector<Metrics> read(const std::string& directory) {
  return train::read_metrics(io::RunDirectory(directory).metrics());
}

bool has_top1(const std::vector<Metrics>& lines) {
  return std::any_of(lines.begin(), lines.end(),
                     [](const Metrics& m) { return top1(m) > 0; });
}

}  // namespace

Chart run_chart(const std::string& directory) {
  const std::vector<Metrics> lines = read(directory);
  const bool classes = has_top1(lines);
  const double scale = classes ? 1 : kBits;
  const Series training =
      series("training", lines, step,
             [&](const Metrics& m) { return m.loss * scale; });
  const Series validation = series(
      "validation", lines, step,
      [&](const Metrics& m) { return m.validation.value_or(0) * scale; });
  Chart chart{"curve",
              directory,
              classes ? "loss and top-1 against the step"
                      : "bits per symbol against the step",
              "",
              {}};
  if (training.points.empty()) return chart;
  chart.panels = {{classes ? "loss" : "",
                   "step",
                   classes ? "nats" : "bits",
                   {training, validation},
                   true}};
  if (classes)
    chart.panels.push_back({"top-1",
                            "step",
                            "%",
                            {series("validation", lines, step, top1)},
                            true});
  return chart;
}

std::string svg(const Chart& chart) {
  return plot(chart.title, chart.subtitle, chart.panels);
}

void write_curve(const std::string& directory) {
  const Chart chart = run_chart(directory);
  if (!chart.panels.empty())
    io::write_file(io::RunDirectory(directory).curve(), svg(chart));
}

Chart runs_chart(const std::vector<std::string>& directories) {
  std::vector<std::vector<Metrics>> runs;
  for (const std::string& d : directories) runs.push_back(read(d));
  const bool classes = std::all_of(runs.begin(), runs.end(), has_top1);
  const auto value = [&](const Metrics& m) {
    return classes ? top1(m) : kBits * m.validation.value_or(0);
  };
  const char* unit = classes ? "%" : "bits";
  Panel steps{"at equal steps", "step", unit, {}, true},
      time{"at equal time", "minutes", unit, {}, true};
  bool timed = true;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string& d = directories[i];
    const std::string last = d.substr(d.find_last_of('/') + 1),
                      name = last.empty() ? d : last;
    steps.series.push_back(series(name, runs[i], step, value));
    time.series.push_back(series(name, runs[i], minutes, value));
    if (steps.series.back().points.empty())
      throw std::runtime_error(io::RunDirectory(d).metrics() +
                               ": has no validation yet");
    timed = timed && !time.series.back().points.empty();
  }
  std::vector<Panel> panels = {steps};
  if (timed) panels.push_back(time);
  return {"curves", "Validation",
          classes ? "top-1 accuracy" : "bits per symbol", "", panels};
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
  add_text(*command, "--out", o->out, "FILE", "SVG file; default: curves.svg");
  command->footer("Example:\n  aft curves runs/* --out curves.svg");
  command->callback([o] {
    if (o->runs.size() > kMostCurves)
      throw UsageError("curves: expected at most 16 runs, got " +
                       std::to_string(o->runs.size()));
    io::write_file(o->out, svg(runs_chart(o->runs)));
  });
}

}  // namespace aft::cli
