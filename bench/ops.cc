// `aft bench ops`: the command line, and the table of speeds.
#include "bench/ops.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "bench/cases.h"
#include "bench/machine.h"
#include "bench/peak.h"
#include "bench/rivals.h"
#include "cli/commands.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

/// A rival, and the ratio that we want to reach at least; 0: none is set.
struct Rival {
  const char* name;
  double forward, forward_backward;
  double target(Pass pass) const {
    return pass == Pass::kForward ? forward : forward_backward;
  }
};

struct Contest {
  Case c;
  std::vector<Rival> rivals;

  /// one_tap is for inference: its backward pass is conv's.
  std::vector<Pass> passes() const {
    if (c.variant == "one_tap") return {Pass::kForward};
    return {Pass::kForward, Pass::kForwardBackward};
  }
};

/// The paper's shapes: enwik8 (T 1024, d 512, rank 256), CIFAR-10 (T 3072,
/// d 256, rank 64), ImageNet (14 x 14 patches and a class token, d 384).
std::vector<Contest> contests(bool quick) {
  // gemm: within 1.3 of the bare matrix products; simple: of pooling alone.
  constexpr double kGemm = 1 / 1.3, kSimple = 1 / 1.3;
  if (quick) {
    return {
        {simple_case(2, 256, 64), {{"naive", 0, 0}, {"attention", 0, 0}}},
        {local_case(2, 256, 64, 32, 32),
         {{"naive", 0, 0}, {"attention", 0, 0}}},
        {full_case(2, 256, 64, 32, true),
         {{"naive", 0, 0}, {"attention", 0, 0}, {"gemm", 0, 0}}},
        {full_case(4, 67, 64, 32, false), {{"naive", 0, 0}, {"gemm", 0, 0}}},
        {conv2d_case(2, 7, 64, 64, 5), {{"naive", 0, 0}}},
        {conv2d_case(2, 7, 64, 16, 5), {{"naive", 0, 0}}},
        {one_tap2d_case(2, 7, 64, 64, 5), {{"simple", 0, 0}}},
        {one_tap2d_case(2, 7, 64, 16, 5), {{"simple", 0, 0}}},
    };
  }
  return {
      {simple_case(8, 1024, 512), {{"naive", 5, 5}, {"attention", 25, 25}}},
      {local_case(8, 1024, 512, 32, 256),
       {{"naive", 10, 8}, {"attention", 15, 15}}},
      {local_case(2, 3072, 256, 256, 64), {{"naive", 5, 4}}},
      {full_case(8, 1024, 512, 256, true),
       {{"naive", 2, 2}, {"attention", 3, 2.5}, {"gemm", kGemm, kGemm}}},
      {full_case(32, 197, 384, 128, false),
       {{"naive", 1.2, 1.3}, {"gemm", kGemm, kGemm}}},
      {conv2d_case(32, 14, 384, 384, 11), {{"naive", 10, 8}}},
      {conv2d_case(32, 14, 384, 16, 11), {{"naive", 10, 8}}},
      {one_tap2d_case(32, 14, 384, 384, 11), {{"simple", kSimple, 0}}},
      {one_tap2d_case(32, 14, 192, 32, 11), {{"simple", kSimple, 0}}},
  };
}

struct Row {
  std::string name;
  Pass pass;
  int threads;
  double aft_ms;
  std::string rival;
  double rival_ms, ratio, target, bound_ms, bound_ratio;
  std::optional<double> peak_mb;
};

Row measure(const Case& c, const Data& data, const Rival& rival, Pass pass,
            const Machine& machine, const Repeat& repeat) {
  const Side ours = aft_side(c, data), theirs = make_rival(rival.name, c, data);
  if (theirs.name == "naive") check_same(ours, theirs, pass);
  const std::vector<double> ms =
      interleave({[&] { ours.run(pass); }, [&] { theirs.run(pass); }}, repeat);
  const double bound = bound_ms(machine, work(c, pass));
  return {c.name(),   pass,          at::get_num_threads(), ms[0],
          rival.name, ms[1],         ms[1] / ms[0],         rival.target(pass),
          bound,      ms[0] / bound, std::nullopt};
}

nlohmann::ordered_json to_json(const std::vector<Row>& rows) {
  const auto rounded = [](double x) { return std::round(1e4 * x) / 1e4; };
  auto out = nlohmann::ordered_json::array();
  for (const Row& r : rows) {
    nlohmann::ordered_json peak;  // null where it could not be measured
    if (r.peak_mb) peak = rounded(*r.peak_mb);
    out.push_back({{"case", r.name},
                   {"pass", pass_name(r.pass)},
                   {"threads", r.threads},
                   {"aft_ms", rounded(r.aft_ms)},
                   {"rival", r.rival},
                   {"rival_ms", rounded(r.rival_ms)},
                   {"ratio", rounded(r.ratio)},
                   {"bound_ms", rounded(r.bound_ms)},
                   {"bound_ratio", rounded(r.bound_ratio)},
                   {"peak_mb", peak}});
  }
  return out;
}

std::string to_table(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells;
  for (const Row& r : rows) {
    std::string target = "-";
    if (r.target > 0) {
      char text[32];
      snprintf(text, sizeof(text), ">= %.2g %-6s", r.target,
               r.ratio >= r.target ? "met" : "MISSED");
      target = text;
    }
    cells.push_back({r.name, pass_name(r.pass), r.rival,
                     std::to_string(r.threads), number(r.aft_ms),
                     number(r.rival_ms), number(r.ratio), target,
                     number(r.bound_ms), number(r.bound_ratio),
                     r.peak_mb ? number(*r.peak_mb) : "-"});
  }
  return table({"case", "pass", "rival", "threads", "aft_ms", "rival_ms",
                "ratio", "target", "bound_ms", "bound_ratio", "peak_mb"},
               cells, 3);
}

}  // namespace

Repeat BenchOptions::repetitions() const {
  Repeat r;
  r.fixed = repeat > 0 ? repeat : quick ? 3 : 0;
  return r;
}

bool BenchOptions::matches(const std::string& name) const {
  return name.find(filter) != std::string::npos;
}

void BenchOptions::nothing_matches(const std::string& names) const {
  throw UsageError("bench ops: --filter must be part of one of " + names +
                   ", got '" + filter + "'");
}

void bench_speed(const BenchOptions& options) {
  std::vector<Contest> chosen;
  size_t total = 0;
  std::string names;
  for (Contest& contest : contests(options.quick)) {
    names += (names.empty() ? "" : ", ") + contest.c.name();
    if (!options.matches(contest.c.name())) continue;
    total += contest.passes().size() * contest.rivals.size();
    chosen.push_back(std::move(contest));
  }
  if (chosen.empty()) options.nothing_matches(names);

  Progress progress(total + 1);
  progress.next("what this machine can do");
  const Machine machine = measure_machine(options.quick);
  std::vector<Row> rows;
  for (const Contest& contest : chosen) {
    const Data data = make_data(contest.c);
    for (const Pass pass : contest.passes()) {
      const auto peak = peak_bytes(contest.c, "aft", pass);
      for (const Rival& rival : contest.rivals) {
        progress.next(contest.c.name() + " " + pass_name(pass) + " against " +
                      rival.name);
        rows.push_back(measure(contest.c, data, rival, pass, machine,
                               options.repetitions()));
        if (peak) rows.back().peak_mb = *peak / 1e6;
      }
    }
  }
  if (options.json) {
    std::cout << to_json(rows).dump(2) << '\n';
    return;
  }
  std::cout << describe(machine) << "\n\n"
            << to_table(rows)
            << "\nratio = rival_ms / aft_ms, bound_ratio = aft_ms / bound_ms; "
               "`aft bench ops --help` explains the rest\n";
}

void add_bench_ops(CLI::App& bench) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* command = bench.add_subcommand(
      "ops",
      "The operators against naive code, attention, bare matrix products and "
      "the machine's bound");
  command->add_flag("--json", o->json, "One JSON array instead of a table");
  command
      ->add_option("--filter", o->filter,
                   "Only cases with TEXT in their name, for example local")
      ->type_name("TEXT");
  command
      ->add_option("--repeat", o->repeat,
                   "Repetitions; default: 5 to 11, as time allows")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  add_threads(*command, o->threads);
  command->add_flag("--quick", o->quick,
                    "Small shapes, 3 repetitions: does it all run?");
  auto* memory = command->add_flag(
      "--memory", o->memory,
      "Instead: peak memory at T = 32768, d = 64, in tensors of [T, d]; fails "
      "above 40");
  auto* scaling = command->add_flag(
      "--scaling", o->scaling,
      "Instead: time and memory against T, 1k to 64k, attention included");
  scaling->excludes(memory);
  command
      ->add_option("--plot", o->plot,
                   "Write what --scaling measures as a plot (SVG)")
      ->needs(scaling)
      ->type_name("FILE");
  command->footer(
      "Every time is the median of repetitions in which aft and the rival take "
      "turns; float, inputs from N(0, 1).\n"
      "Rivals: naive, the same maths in plain ATen calls; attention, 8 heads "
      "on the same q, k, v; gemm, the bare\n"
      "matrix products of full; simple, aft::simple beside one_tap, which is "
      "for inference alone. ratio = rival_ms / aft_ms.\n"
      "Bound: bound_ms = max(bytes / copy bandwidth, flops / multiply-add "
      "peak, exps / exp rate), all measured in\n"
      "the same run; bytes: q, k, v, y once (backward: q, k, v, dy, dq, dk, dv "
      "too); flops: 4 for each pair (t, j)\n"
      "in the window and each channel (backward: 8 more); exps: one for each "
      "number in k and q (backward: again).\n"
      "bound_ratio = aft_ms / bound_ms.\n"
      "peak_mb: by how much one call raises the peak of resident memory, "
      "measured in a process of its own.\n"
      "\n"
      "Examples:\n"
      "  aft bench ops\n"
      "  aft bench ops --filter local --json\n"
      "  aft bench ops --memory\n"
      "  aft bench ops --scaling --plot scaling.svg");
  command->callback([o] {
    set_threads(o->threads);
    if (o->memory) return bench_memory(*o);
    if (o->scaling) return bench_scaling(*o);
    bench_speed(*o);
  });
}

}  // namespace aft::cli
