// `aft-bench mixers`: time and memory of every mixer as functions of length and
// width, next to the paper's first table.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "aft/base/config.h"
#include "aft/base/counted.h"
#include "aft/io/file.h"
#include "aft/nn/mixer.h"
#include "bench/bench.h"
#include "bench/matrix_products.h"
#include "cli/measure/measure.h"
#include "cli/plot/chart.h"

namespace aft::bench {
namespace {

constexpr int64_t kWidth = 256, kLength = 1024;
/// The same for every d: as in the paper's table, the width per head grows with
/// d.
constexpr int64_t kHeads = 4;
/// A series ends before a point that would take longer.
constexpr double kMostMs = 8000;

/// Time and space in the paper's table.
struct PaperCost {
  const char *kind, *time, *space;
};
constexpr PaperCost kPaperCosts[] = {
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

struct MixerPoint {
  int64_t T = 0, d = 0;
  double ms = 0;    // forward + backward without the linear layers
  double all = 0;   // forward + backward
  double peak = 0;  // bytes above the inputs
};

MixerPoint measure(const std::string& kind, int64_t T, int64_t d, int repeat,
                   std::string& error) {
  MixerPoint p{T, d};
  const std::vector<double> numbers =
      run_measurement({"mixer", kind, std::to_string(repeat), std::to_string(T),
                       std::to_string(d)},
                      error);
  if (numbers.size() == 3) {
    p.peak = numbers[0], p.all = numbers[1];
    // At least a hundredth: the difference of two times may be noise.
    p.ms = std::max(numbers[1] - numbers[2], 0.01 * numbers[1]);
  }
  return p;
}

/// The exponent a of y ~ x^a through the last three points.
double exponent(const std::vector<MixerPoint>& points, int64_t MixerPoint::*x,
                double MixerPoint::*y) {
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

struct MixerCost {
  std::string kind;
  std::vector<MixerPoint> lengths, widths;
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
                                 kinds = o.presets.empty() ? all : o.presets;
  for (const std::string& kind : kinds)
    if (std::find(all.begin(), all.end(), kind) == all.end())
      throw UsageError("mixers: there is no mixer '" + kind +
                       "'; expected one of " + c10::Join(", ", all));
  if (!o.plot.empty()) io::prepare_file(o.plot);
  std::vector<int64_t> lengths, widths;
  for (int64_t T = o.quick ? 64 : 256; T <= (o.quick ? 256 : 8192); T *= 2)
    lengths.push_back(T);
  for (int64_t d = o.quick ? 64 : 128; d <= (o.quick ? 128 : 1024); d *= 2)
    widths.push_back(d);
  const int repeat = o.repeat > 0 ? o.repeat : 3;
  std::vector<MixerCost> costs;
  {
    Progress progress(kinds.size() * (lengths.size() + widths.size()));
    for (const std::string& kind : kinds) {
      MixerCost cost{kind, {}, {}, ""};
      const auto add = [&](std::vector<MixerPoint>& to, int64_t T, int64_t d) {
        const bool slow = !to.empty() && 4 * to.back().all > kMostMs;
        progress.next(kind + " T = " + std::to_string(T) +
                      " d = " + std::to_string(d) + (slow ? " (skipped)" : ""));
        if (slow || !cost.error.empty()) return;
        const MixerPoint p = measure(kind, T, d, repeat, cost.error);
        if (cost.error.empty()) to.push_back(p);
      };
      for (const int64_t T : lengths)
        add(cost.lengths, T, o.quick ? 64 : kWidth);
      for (const int64_t d : widths)
        add(cost.widths, o.quick ? 128 : kLength, d);
      costs.push_back(std::move(cost));
    }
  }
  Results results({"mixer", "time", "", "paper", "memory", "paper", "at T",
                   "ms", "peak_mb"},
                  1);
  Panel time{"Time without the linear layers", "length T", "ms", {}, false},
      memory{"Peak memory above the input", "length T", "MB", {}, false};
  for (const MixerCost& c : costs) {
    const PaperCost* paper = nullptr;
    for (const PaperCost& p : kPaperCosts)
      if (c.kind == p.kind) paper = &p;
    const double by_T = exponent(c.lengths, &MixerPoint::T, &MixerPoint::ms),
                 by_d = exponent(c.widths, &MixerPoint::d, &MixerPoint::ms),
                 space = exponent(c.lengths, &MixerPoint::T, &MixerPoint::peak);
    auto points = nlohmann::ordered_json::array();
    for (const auto* series : {&c.lengths, &c.widths})
      for (const MixerPoint& p : *series)
        points.push_back({{"T", p.T},
                          {"d", p.d},
                          {"ms", p.all},
                          {"ms_beside_linear", p.ms},
                          {"peak_mb", p.peak / 1e6}});
    Series ms{c.kind, {}}, mb{c.kind, {}};
    for (const MixerPoint& p : c.lengths) {
      const double T = static_cast<double>(p.T);
      ms.points.emplace_back(T, p.ms), mb.points.emplace_back(T, p.peak / 1e6);
    }
    time.series.push_back(ms), memory.series.push_back(mb);
    const MixerPoint last = c.lengths.empty() ? MixerPoint{} : c.lengths.back();
    results.add(
        {{"mixer", c.kind},
         {"time_by_T", by_T},
         {"time_by_d", by_d},
         {"memory_by_T", space},
         {"points", points}},
        {c.kind, power("T", by_T), power("d", by_d), paper ? paper->time : "-",
         power("T", space), paper ? paper->space : "-", std::to_string(last.T),
         number(last.all), number(last.peak / 1e6)});
  }
  if (!o.plot.empty())
    io::write_file(
        o.plot,
        plot({"cost",
              "Cost of the mixers as a function of the length",
              "forward + backward, B = 1, d = " + std::to_string(kWidth),
              "",
              {time, memory}}));
  results.print(o.json, "\nforward + backward, B = 1, float, " +
                            base::counted(at::get_num_threads(), "thread") +
                            "; exponents through the last three points, of the "
                            "time without a mixer's\nlinear layers; " +
                            std::to_string(kHeads) + " heads; s is 32\n");
  if (o.json) return;
  for (const MixerCost& c : costs)
    if (!c.error.empty()) std::cout << c.kind << ": " << c.error << "\n";
}

/// The work of `measure mixer`: prints the peak in bytes above the input, the
/// milliseconds, and the milliseconds of the linear layers alone.
void print_cost(const std::string& kind, int64_t T, int64_t d, int repeat) {
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
  pass(x, dy);  // creates threads, gradients of the weights and caches
  const double peak = peak_increase([&] { pass(x, dy); });
  MatrixProducts products(*mixer, positions);
  const std::vector<double> ms =
      interleave({[&] { pass(x, dy); }, [&] { products.run(); }}, {repeat, 0});
  printf("%.0f %.6f %.6f\n", peak, ms[0], ms[1]);
}

}  // namespace

void add_measure_mixer(CLI::App& measure) {
  struct Arguments {
    std::string kind;
    int64_t T = 0, d = 0;
    int repeat = 0, threads = 0;
  };
  auto o = std::make_shared<Arguments>();
  CLI::App* command = measure.add_subcommand("mixer");
  command->add_option("kind", o->kind)->required();
  command->add_option("repeat", o->repeat)->required();
  command->add_option("T", o->T)->required();
  command->add_option("d", o->d)->required();
  add_threads(*command, o->threads);
  command->callback([o] {
    set_threads(o->threads);
    print_cost(o->kind, o->T, o->d, o->repeat);
  });
}

void add_mixers(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "mixers", "Time and memory of every mixer as functions of T and d");
  command->add_option("mixers", o->presets, "Default: all");
  command
      ->add_option("--plot", o->plot,
                   "Write a plot of time and memory against T, an SVG file")
      ->check(cli::ends_in(".svg"))
      ->type_name("FILE");
  add_common(*command, *o, "3", "Small sizes");
  command->footer(
      "Each point is measured in a separate process. A series ends before a "
      "point that would take more than eight seconds.\n"
      "\n"
      "Examples:\n"
      "  aft-bench mixers\n"
      "  aft-bench mixers attention performer aft-simple --plot cost.svg");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::bench
