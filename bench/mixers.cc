// `aft bench mixers`: how time and memory of every mixer grow with the length
// and the width, beside the paper's first table.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "aft/base/config.h"
#include "aft/io/file.h"
#include "aft/nn/mixer.h"
#include "bench/peak.h"
#include "bench/products.h"
#include "bench/time.h"
#include "cli/commands.h"
#include "cli/plot/chart.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

constexpr int64_t kWidth = 256, kLength = 1024;
/// As many for every d, so that a head grows with d, as the paper counts it.
constexpr int64_t kHeads = 4;
/// A series ends where its next point would take longer.
constexpr double kMostMs = 8000;

struct Options {
  std::vector<std::string> kinds;
  std::string plot;
  bool json = false, quick = false;
  int repeat = 3, threads = 0;
};

/// What the paper's table says: time and space.
struct Claim {
  const char *kind, *time, *space;
};
constexpr Claim kClaims[] = {
    {"attention", "T^2 d", "T^2 + T d"},
    {"reformer", "T log T d", "T log T + T d"},
    {"linear-attention", "T d^2", "T d + d^2"},
    {"performer", "T d^2 log d", "T d log d + d^2 log d"},
    {"aft-simple", "T d", "T d"},
    {"aft-full", "T^2 d", "T d"},
    {"aft-local", "T s d", "T d"},
    {"aft-conv", "T s d", "T d"}};

int64_t side_of(int64_t T) {
  return static_cast<int64_t>(std::sqrt(static_cast<double>(T)));
}

nn::MixerOptions options_of(const std::string& kind, int64_t T, int64_t d) {
  nn::MixerOptions o;
  const auto& causal = nn::mixer_kinds(true);
  o.kind = kind, o.dim = d, o.max_len = T;
  o.causal = std::find(causal.begin(), causal.end(), kind) != causal.end();
  o.values = {{"heads", kHeads}, {"rank", 64}};
  o.values["window"] = kind == "sparse"          ? side_of(T)
                       : kind == "reformer"      ? 64
                       : kind == "image-local1d" ? 256
                                                 : 32;
  o.rows = o.columns = side_of(T);
  if (kind == "image-local2d") o.columns = 96;
  return o;
}

struct Point {
  int64_t T = 0, d = 0;
  double ms = 0;    // of forward + backward, its linear layers aside
  double all = 0;   // with them
  double peak = 0;  // bytes above the inputs
};

Point measure(const std::string& kind, int64_t T, int64_t d, int repeat,
              std::string& error) {
  Point p{T, d};
  const std::vector<double> numbers = measure_mixer(kind, T, d, repeat, error);
  if (numbers.size() == 3) {
    p.peak = numbers[0], p.all = numbers[1];
    // Never less than a hundredth: a difference of two times may be noise.
    p.ms = std::max(numbers[1] - numbers[2], 0.01 * numbers[1]);
  }
  return p;
}

/// The exponent of y ~ x^a through the last three points.
double exponent(const std::vector<Point>& points, int64_t Point::*x,
                double Point::*y) {
  const size_t n = std::min<size_t>(3, points.size());
  if (n < 2) return NAN;
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = points.size() - n; i < points.size(); ++i) {
    const double u = std::log(static_cast<double>(points[i].*x)),
                 v = std::log(points[i].*y);
    sx += u, sy += v, sxx += u * u, sxy += u * v;
  }
  const double m = static_cast<double>(n);
  return (m * sxy - sx * sy) / (m * sxx - sx * sx);
}

std::string power(const char* base, double a) {
  char text[32];
  snprintf(text, sizeof(text), "%s^%.2f", base, a);
  return std::isfinite(a) ? text : "-";
}

struct Line {
  std::string kind;
  std::vector<Point> lengths, widths;
  std::string error;
};

std::vector<std::string> all_kinds() {
  std::vector<std::string> all = nn::mixer_kinds(true);
  for (const std::string& kind : nn::mixer_kinds(false))
    if (std::find(all.begin(), all.end(), kind) == all.end())
      all.push_back(kind);
  return all;
}

void run(const Options& o) {
  const std::vector<std::string> all = all_kinds(),
                                 kinds = o.kinds.empty() ? all : o.kinds;
  for (const std::string& kind : kinds)
    if (std::find(all.begin(), all.end(), kind) == all.end())
      throw UsageError("bench mixers: there is no mixer '" + kind +
                       "'; nearest: " + base::nearest(kind, all));
  std::vector<int64_t> lengths, widths;
  for (int64_t T = o.quick ? 64 : 256; T <= (o.quick ? 256 : 8192); T *= 2)
    lengths.push_back(T);
  for (int64_t d = o.quick ? 64 : 128; d <= (o.quick ? 128 : 1024); d *= 2)
    widths.push_back(d);
  std::vector<Line> lines;
  {
    Progress progress(kinds.size() * (lengths.size() + widths.size()));
    for (const std::string& kind : kinds) {
      Line line{kind, {}, {}, ""};
      const auto add = [&](std::vector<Point>& to, int64_t T, int64_t d) {
        const bool over = !to.empty() && 4 * to.back().all > kMostMs;
        progress.next(kind + " T = " + std::to_string(T) + " d = " +
                      std::to_string(d) + (over ? " (left out)" : ""));
        if (over || !line.error.empty()) return;
        const Point p = measure(kind, T, d, o.repeat, line.error);
        if (line.error.empty()) to.push_back(p);
      };
      for (const int64_t T : lengths)
        add(line.lengths, T, o.quick ? 64 : kWidth);
      for (const int64_t d : widths)
        add(line.widths, o.quick ? 128 : kLength, d);
      lines.push_back(std::move(line));
    }
  }
  auto json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> cells;
  Panel time{"Time beside the linear layers", "length T", "ms", {}, false},
      memory{"Peak memory above the input", "length T", "MB", {}, false};
  for (const Line& l : lines) {
    const Claim* lock = nullptr;
    for (const Claim& c : kClaims)
      if (l.kind == c.kind) lock = &c;
    const double by_T = exponent(l.lengths, &Point::T, &Point::ms),
                 by_d = exponent(l.widths, &Point::d, &Point::ms),
                 space = exponent(l.lengths, &Point::T, &Point::peak);
    nlohmann::ordered_json row = {{"mixer", l.kind},
                                  {"time_by_T", by_T},
                                  {"time_by_d", by_d},
                                  {"memory_by_T", space},
                                  {"points", nlohmann::ordered_json::array()}};
    Series ms{l.kind, {}}, mb{l.kind, {}};
    for (const auto* points : {&l.lengths, &l.widths}) {
      for (const Point& p : *points)
        row["points"].push_back({{"T", p.T},
                                 {"d", p.d},
                                 {"ms", p.all},
                                 {"ms_beside_linear", p.ms},
                                 {"peak_mb", p.peak / 1e6}});
    }
    for (const Point& p : l.lengths) {
      const double T = static_cast<double>(p.T);
      ms.points.emplace_back(T, p.ms), mb.points.emplace_back(T, p.peak / 1e6);
    }
    time.series.push_back(ms), memory.series.push_back(mb);
    json.push_back(std::move(row));
    const Point last = l.lengths.empty() ? Point{} : l.lengths.back();
    cells.push_back({l.kind, power("T", by_T), power("d", by_d),
                     lock ? lock->time : "-", power("T", space),
                     lock ? lock->space : "-", std::to_string(last.T),
                     number(last.all), number(last.peak / 1e6)});
  }
  if (!o.plot.empty())
    io::write_file(
        o.plot, plot("Cost of the mixers against the length",
                     "forward + backward, B = 1, d = " + std::to_string(kWidth),
                     {time, memory}));
  if (o.json) {
    std::cout << json.dump(2) << '\n';
    return;
  }
  std::cout << table({"mixer", "time", "", "paper", "memory", "paper", "at T",
                      "ms", "peak_mb"},
                     cells, 1)
            << "\nforward + backward, B = 1, float, " << at::get_num_threads()
            << " threads; exponents through the last three points, of the time "
               "that a mixer's linear layers\ndo not take; "
            << kHeads << " heads; s is 32\n";
  for (const Line& l : lines)
    if (!l.error.empty()) std::cout << l.kind << ": " << l.error << "\n";
}

}  // namespace

void mix_once(const std::string& kind, int64_t T, int64_t d, int repeat) {
  const nn::MixerOptions o = options_of(kind, T, d);
  const int64_t positions = kind == "lambda" ? o.rows * o.columns : T;
  const std::shared_ptr<nn::Mixer> mixer = nn::make_mixer(o);
  const auto pass = [&](const at::Tensor& x, const at::Tensor& dy) {
    at::Tensor leaf = x.detach().requires_grad_(true);
    const at::Tensor y = o.causal
                             ? mixer->forward(leaf)
                             : mixer->forward_grid(leaf, {o.rows, o.columns});
    y.backward(dy);
  };
  const at::Tensor x = at::randn({1, positions, d}), dy = at::randn_like(x);
  pass(x, dy);  // threads, gradients of the weights, and what is kept
  const double peak = raise_of_peak([&] { pass(x, dy); });
  Products products(*mixer, positions);
  const std::vector<double> ms =
      interleave({[&] { pass(x, dy); }, [&] { products.run(); }}, {repeat, 0});
  printf("%.0f %.6f %.6f\n", peak, ms[0], ms[1]);
}

void add_bench_mixers(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "mixers", "How time and memory of every mixer grow with T and d");
  command->add_option("mixers", o->kinds, "Default: all");
  command->add_option("--plot", o->plot, "A picture (SVG) against T")
      ->type_name("FILE");
  command->add_option("--repeat", o->repeat, "Repetitions; default: 3")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  add_threads(*command, o->threads);
  command->add_flag("--quick", o->quick, "Small sizes: does it all run?");
  command->add_flag("--json", o->json, "One JSON array instead of a table");
  command->footer(
      "Each point in a process of its own. A series ends where its next point "
      "would take more than eight seconds.\n"
      "\n"
      "Examples:\n"
      "  aft bench mixers\n"
      "  aft bench mixers attention performer aft-simple --plot cost.svg");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
