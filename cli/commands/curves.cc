#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aft/io/file.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/plot/chart.h"
#include "cli/plot/training_curve.h"

namespace aft::cli {
namespace {

/// What metrics.jsonl says of `key`, `scale` times, against `against`.
Series read(const std::string& directory, const char* key, double scale,
            const char* against, double unit = 1) {
  Series out{key, {}};
  constexpr size_t kMost = size_t{1} << 30;  // millions of lines
  const std::string path = directory + "/metrics.jsonl";
  std::istringstream in(exists(path) ? io::read_file(path, kMost) : "");
  std::string line;
  while (std::getline(in, line)) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains(key) || !j.contains(against)) continue;
    if (!j[key].is_number() || !j[against].is_number()) continue;
    const double y = j[key].get<double>() * scale;
    const double x = j[against].get<double>() / unit;
    if (y > 0 && std::isfinite(y) && x > 0 && std::isfinite(x))
      out.points.emplace_back(x, y);
  }
  return out;
}

}  // namespace

Chart run_chart(const std::string& directory) {
  Series right = read(directory, "top1", 100, "step");
  const bool classes = !right.points.empty();
  const double scale = classes ? 1 : kBits;
  Series training = read(directory, "loss", scale, "step"),
         validation = read(directory, "validation", scale, "step");
  Chart chart{"curve",
              directory,
              classes ? "loss and top-1 against the step"
                      : "bits per symbol against the step",
              "",
              {}};
  if (training.points.empty()) return chart;
  training.name = "training";
  chart.panels = {{classes ? "loss" : "",
                   "step",
                   classes ? "nats" : "bits",
                   {training, validation},
                   true}};
  if (classes) {
    right.name = "validation";
    chart.panels.push_back({"top-1", "step", "%", {right}, true});
  }
  return chart;
}

std::string svg(const Chart& chart) {
  return plot(chart.title, chart.subtitle, chart.panels);
}

void write_curve(const std::string& directory) {
  const Chart chart = run_chart(directory);
  if (!chart.panels.empty())
    io::write_file(directory + "/curve.svg", svg(chart));
}

Chart runs_chart(const std::vector<std::string>& directories) {
  const bool classes = std::all_of(
      directories.begin(), directories.end(),
      [](const auto& d) { return !read(d, "top1", 1, "step").points.empty(); });
  const char *key = classes ? "top1" : "validation",
             *unit = classes ? "%" : "bits";
  const double scale = classes ? 100 : kBits;
  Panel steps{"at equal steps", "step", unit, {}, true},
      time{"at equal time", "minutes", unit, {}, true};
  for (const std::string& d : directories) {
    Series a = read(d, key, scale, "step"),
           b = read(d, key, scale, "seconds", 60);
    if (a.points.empty())
      throw std::runtime_error(d + "/metrics.jsonl: has no validation yet");
    const std::string name = d.substr(d.find_last_of('/') + 1);
    a.name = b.name = name.empty() ? d : name;
    steps.series.push_back(std::move(a)), time.series.push_back(std::move(b));
  }
  std::vector<Panel> panels = {steps};
  bool timed = true;
  for (const Series& s : time.series) timed = timed && !s.points.empty();
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
      "curves", "Draw the validation curves of several runs in one picture");
  command->add_option("runs", o->runs, "Directories of runs, at most 16")
      ->required();
  command->add_option("--out", o->out, "The picture (SVG); default: curves.svg")
      ->type_name("FILE");
  command->footer("Example:\n  aft curves runs/* --out curves.svg");
  command->callback([o] {
    if (o->runs.size() > kMostCurves)
      throw UsageError("curves: expected at most 16 runs, got " +
                       std::to_string(o->runs.size()));
    io::write_file(o->out, svg(runs_chart(o->runs)));
  });
}

}  // namespace aft::cli
