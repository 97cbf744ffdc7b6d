// `aft-bench ops --scaling`: time and memory of forward + backward as functions
// of T.
#include <ATen/Parallel.h>

#include <fstream>
#include <iostream>
#include <map>
#include <optional>

#include "aft/base/counted.h"
#include "aft/io/file.h"
#include "bench/ops.h"
#include "cli/measure/measure.h"
#include "cli/measure/rivals.h"
#include "cli/plot/chart.h"

namespace aft::bench {
namespace {

constexpr int64_t kChannels = 256;
/// Limits of one run: seconds, and the fraction of the free memory.
constexpr double kMostSeconds = 5, kMostMemory = 0.4;

/// A line of the plot.
struct ScalingLine {
  std::string name, side;
  bool quadratic;
  std::function<Case(int64_t T)> at;
};

std::vector<ScalingLine> all_lines() {
  const auto simple = [](int64_t T) { return simple_case(1, T, kChannels); };
  return {
      {"simple", "aft", false, simple},
      {"local32", "aft", false,
       [](int64_t T) { return local_case(1, T, kChannels, 32, 64); }},
      {"conv31", "aft", false,
       [](int64_t T) { return conv1d_case(1, T, kChannels, 8, 31); }},
      {"full", "aft", true,
       [](int64_t T) { return full_case(1, T, kChannels, 64, true); }},
      {"attention", "attention", true, simple},
      {"naive attention", "naive attention", true, simple},
  };
}

double free_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return 1024 * kilobytes;
  }
  return 4e9;
}

struct ScalingPoint {
  double ms = 0;
  std::optional<double> peak_mb;
};

/// Why a line ends before T, or ""; `last` is its point at T / 2, or null.
std::string obstacle(const ScalingLine& line, int64_t T,
                     const ScalingPoint* last) {
  if (!last) return "";
  const double factor = line.quadratic ? 4 : 2,
               seconds = factor * last->ms / 1e3,
               bytes = factor * last->peak_mb.value_or(0) * 1e6;
  const bool slow = seconds > kMostSeconds;
  if (!slow && bytes <= kMostMemory * free_bytes()) return "";
  return line.name + " ends at T = " + std::to_string(T / 2) +
         ": the next would take about " +
         (slow ? number(seconds) + " s"
               : number(bytes / 1e9) + " GB of memory");
}

ScalingPoint measure(const ScalingLine& line, int64_t T,
                     const OpsOptions& options) {
  const Case c = line.at(T);
  const Data data = make_data(c);
  const Side side =
      line.side == "aft" ? aft_side(c, data) : make_rival(line.side, c, data);
  ScalingPoint p;
  p.ms = interleave({[&] { side.run(Pass::kForwardBackward); }},
                    {options.repeat, /*seconds=*/0.5})[0];
  const auto peak = peak_bytes(c, line.side, Pass::kForwardBackward);
  if (peak) p.peak_mb = *peak / 1e6;
  return p;
}

using Points = std::map<std::string, std::map<int64_t, ScalingPoint>>;

std::string to_table(
    const std::vector<ScalingLine>& lines, const std::vector<int64_t>& lengths,
    const Points& points,
    const std::function<std::string(const ScalingPoint&)>& show) {
  std::vector<std::string> header = {"T"};
  for (const ScalingLine& line : lines) header.push_back(line.name);
  std::vector<std::vector<std::string>> rows;
  for (const int64_t T : lengths) {
    rows.push_back({std::to_string(T)});
    for (const ScalingLine& line : lines) {
      const auto& done = points.at(line.name);
      const auto it = done.find(T);
      rows.back().push_back(it == done.end() ? "-" : show(it->second));
    }
  }
  return table(header, rows, 0);
}

std::string to_plot(const std::vector<ScalingLine>& lines, const Points& points,
                    const std::string& shape) {
  Panel time{"Time", "length T", "ms", {}};
  Panel memory{"Peak memory above the inputs", "length T", "MB", {}};
  for (const ScalingLine& line : lines) {
    time.series.push_back({line.name, {}});
    memory.series.push_back({line.name, {}});
    for (const auto& [T, p] : points.at(line.name)) {
      const auto x = static_cast<double>(T);
      if (p.ms > 0) time.series.back().points.emplace_back(x, p.ms);
      if (p.peak_mb && *p.peak_mb > 0)
        memory.series.back().points.emplace_back(x, *p.peak_mb);
    }
  }
  return plot({"cost",
               "Cost of forward + backward as a function of the length",
               shape,
               "",
               {time, memory}});
}

}  // namespace

void bench_scaling(const OpsOptions& options) {
  const std::vector<ScalingLine> lines = options.matching(
      all_lines(), [](const ScalingLine& line) { return line.name; });
  if (!options.plot.empty()) io::prepare_file(options.plot);

  std::vector<int64_t> lengths;
  const int64_t shortest = options.quick ? 512 : 1024,
                longest = options.quick ? 1024 : 65536;
  for (int64_t T = shortest; T <= longest; T *= 2) lengths.push_back(T);

  Points points;
  std::map<std::string, std::string> ended;
  auto json = nlohmann::ordered_json::array();
  {
    Progress progress(lengths.size() * lines.size());
    for (const int64_t T : lengths) {
      for (const ScalingLine& line : lines) {
        auto& done = points[line.name];
        const auto last = done.find(T / 2);
        if (ended.count(line.name) == 0) {
          const std::string why =
              obstacle(line, T, last == done.end() ? nullptr : &last->second);
          if (!why.empty()) ended[line.name] = why;
        }
        const bool skip = ended.count(line.name) > 0;
        progress.next(line.name + " T = " + std::to_string(T) +
                      (skip ? " (skipped)" : ""));
        if (skip) continue;
        const ScalingPoint p = done[T] = measure(line, T, options);
        nlohmann::ordered_json peak;
        if (p.peak_mb) peak = *p.peak_mb;
        json.push_back({{"variant", line.name},
                        {"T", T},
                        {"pass", pass_name(Pass::kForwardBackward)},
                        {"threads", at::get_num_threads()},
                        {"ms", p.ms},
                        {"peak_mb", peak}});
      }
    }
  }
  const std::string shape = "B = 1, d = " + std::to_string(kChannels) +
                            ", causal, float, forward + backward, " +
                            base::counted(at::get_num_threads(), "thread") +
                            "; attention with 8 heads";
  if (options.json) {
    std::cout << json.dump(2) << '\n';
  } else {
    std::cout << shape << "\n\nmilliseconds\n"
              << to_table(lines, lengths, points,
                          [](const ScalingPoint& p) { return number(p.ms); })
              << "\npeak memory above the inputs, MB\n"
              << to_table(lines, lengths, points,
                          [](const ScalingPoint& p) {
                            return p.peak_mb ? number(*p.peak_mb) : "-";
                          })
              << '\n';
    for (const auto& [name, why] : ended) std::cout << why << '\n';
  }
  if (options.plot.empty()) return;
  io::write_file(options.plot, to_plot(lines, points, shape));
  if (!options.json) std::cout << "plot: " << options.plot << '\n';
}

}  // namespace aft::bench
