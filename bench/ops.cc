// `aft-bench ops`: the command line, and the table of speeds.
#include "bench/ops.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cmath>

#include "bench/machine.h"
#include "cli/measure/measure.h"
#include "cli/measure/rivals.h"

namespace aft::bench {
namespace {

/// A rival and the smallest ratio that aft should reach; 0: no target.
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
  Rival bound = {"", 0, 0};  // the largest ratios to it

  /// one_tap is for inference: its backward pass is conv's.
  std::vector<Pass> passes() const {
    if (c.variant == "one_tap") return {Pass::kForward};
    return {Pass::kForward, Pass::kForwardBackward};
  }
};

/// The paper's shapes: enwik8 (T 1024, d 512, rank 256), CIFAR-10 (T 3072,
/// d 256, rank 64), ImageNet (14 x 14 patches and a class token, d 384).
std::vector<Contest> contests(bool quick) {
  // gemm: at most 1.3 times the bare matrix products; simple: 1.3 times pooling
  // alone.
  constexpr double kGemm = 1 / 1.3, kSimple = 1 / 1.3;
  const std::vector<Rival> attentions = {{"naive", 0, 0},
                                         {"attention", 0, 0},
                                         {"naive attention", 0, 0}},
                           convolutions = {{"naive", 2, 4},
                                           {"naive channels-last", 2, 4}};
  if (quick) {
    return {
        {simple_case(2, 256, 64), attentions},
        {local_case(2, 256, 64, 32, 32), attentions},
        {full_case(2, 256, 64, 32, true),
         {{"naive", 0, 0},
          {"attention", 0, 0},
          {"naive attention", 0, 0},
          {"gemm", 0, 0}}},
        {full_case(4, 67, 64, 32, false), {{"naive", 0, 0}, {"gemm", 0, 0}}},
        {conv2d_case(2, 7, 64, 64, 5), {{"naive", 0, 0}}},
        {conv2d_case(2, 7, 64, 16, 5),
         {{"naive", 0, 0}, {"naive channels-last", 0, 0}}},
        {one_tap2d_case(2, 7, 64, 64, 5), {{"simple", 0, 0}}},
        {one_tap2d_case(2, 7, 64, 16, 5), {{"simple", 0, 0}}},
    };
  }
  return {
      {simple_case(8, 1024, 512),
       {{"naive", 5, 5}, {"attention", 0, 0}, {"naive attention", 25, 25}},
       {"", 1.3, 1.6}},
      {local_case(8, 1024, 512, 32, 256),
       {{"naive", 15, 15}, {"attention", 0, 0}, {"naive attention", 15, 15}},
       {"", 2.2, 2.8}},
      {local_case(2, 3072, 256, 256, 64), {{"naive", 5, 4}}, {"", 1.5, 1.8}},
      {full_case(8, 1024, 512, 256, true),
       {{"naive", 2, 2},
        {"attention", 0, 0},
        {"naive attention", 3, 2.5},
        {"gemm", kGemm, kGemm}},
       {"", 1.2, 1.35}},
      {full_case(32, 197, 384, 128, false),
       {{"naive", 1.2, 1.3}, {"gemm", kGemm, kGemm}}},
      {conv2d_case(32, 14, 384, 384, 11), convolutions, {"", 2, 2.5}},
      {conv2d_case(32, 14, 384, 16, 11), convolutions, {"", 2, 2.5}},
      {one_tap2d_case(32, 14, 384, 384, 11), {{"simple", kSimple, 0}}},
      {one_tap2d_case(32, 14, 192, 32, 11), {{"simple", kSimple, 0}}},
  };
}

double rounded(double x) { return std::round(1e4 * x) / 1e4; }

void measure(const Contest& contest, const Data& data, const Rival& rival,
             Pass pass, const std::optional<double>& peak,
             const Machine& machine, const Repeat& repeat, Results& results) {
  const Case& c = contest.c;
  const Side ours = aft_side(c, data), theirs = make_rival(rival.name, c, data);
  if (theirs.name.compare(0, 5, "naive") == 0 &&
      theirs.name != "naive attention")
    check_same(ours, theirs, pass);
  const std::vector<double> ms =
      interleave({[&] { ours.run(pass); }, [&] { theirs.run(pass); }}, repeat);
  const double bound = bound_ms(machine, work(c, pass)),
               sum = sum_ms(machine, work(c, pass)), ratio = ms[1] / ms[0],
               target = rival.target(pass);
  nlohmann::ordered_json peak_mb;  // null: not measured
  if (peak) peak_mb = rounded(*peak / 1e6);
  results.add(
      {{"case", c.name()},
       {"pass", pass_name(pass)},
       {"threads", at::get_num_threads()},
       {"aft_ms", rounded(ms[0])},
       {"rival", rival.name},
       {"rival_ms", rounded(ms[1])},
       {"ratio", rounded(ratio)},
       {"bound_ms", rounded(bound)},
       {"bound_ratio", rounded(ms[0] / bound)},
       {"sum_ratio", rounded(ms[0] / sum)},
       {"peak_mb", peak_mb},
       {"isa", isa_name()},
       {"torch", TORCH_VERSION}},
      {c.name(), pass_name(pass), rival.name,
       std::to_string(at::get_num_threads()), number(ms[0]), number(ms[1]),
       number(ratio), target > 0 ? target_text(ratio, target, false) : "-",
       number(bound), verdict(ms[0] / bound, contest.bound.target(pass), true),
       number(ms[0] / sum), peak ? number(*peak / 1e6) : "-"});
}

}  // namespace

void bench_speed(const OpsOptions& options) {
  const std::vector<Contest> chosen =
      options.matching(contests(options.quick),
                       [](const Contest& contest) { return contest.c.name(); });
  size_t total = 1;
  for (const Contest& contest : chosen)
    total += contest.passes().size() * contest.rivals.size();
  Results results(
      {"case", "pass", "rival", "threads", "aft_ms", "rival_ms", "ratio",
       "target", "bound_ms", "bound_ratio", "sum_ratio", "peak_mb"},
      3);
  Machine machine;
  {
    Progress progress(total);
    progress.next("the rates of this machine");
    machine = measure_machine(options.quick);
    for (const Contest& contest : chosen) {
      const Data data = make_data(contest.c);
      for (const Pass pass : contest.passes()) {
        const auto peak = peak_bytes(contest.c, "aft", pass);
        for (const Rival& rival : contest.rivals) {
          progress.next(contest.c.name() + " " + pass_name(pass) + " against " +
                        rival.name);
          measure(contest, data, rival, pass, peak, machine,
                  options.repetitions(0, 3), results);
        }
      }
    }
  }
  results.print(options.json,
                "\nratio = rival_ms / aft_ms, bound_ratio = aft_ms / bound_ms; "
                "`aft-bench ops --help` explains the rest\n",
                describe(machine) + "\n\n");
}

void add_ops(CLI::App& app) {
  auto o = std::make_shared<OpsOptions>();
  CLI::App* command = app.add_subcommand(
      "ops",
      "The operators, relative to naive code, attention, bare matrix products "
      "and the machine's bound");
  command
      ->add_option("--filter", o->filter,
                   "Only cases with TEXT in their name, for example local")
      ->type_name("TEXT");
  command
      ->add_option("--isa", o->isa,
                   "avx2: neither aft nor its rivals use wider instructions; "
                   "default: all that the processor has")
      ->check(CLI::IsMember({"avx2"}))
      ->type_name("ISA");
  add_common(*command, *o, "5 to 11, as time allows",
             "Small shapes, 3 repetitions");
  auto* memory = command->add_flag(
      "--memory", o->memory,
      "Instead: peak memory at T = 32768, d = 64, in tensors of [T, d]; fails "
      "above 40");
  auto* scaling = command->add_flag(
      "--scaling", o->scaling,
      "Instead: time and memory as functions of T, 1k to 64k, including "
      "attention");
  scaling->excludes(memory);
  command
      ->add_option("--plot", o->plot,
                   "Write the results of --scaling as a plot, an SVG file")
      ->needs(scaling)
      ->check(cli::ends_in(".svg"))
      ->type_name("FILE");
  command->footer(
      "Times are medians of repetitions in which aft and the rival alternate; "
      "float, inputs from N(0, 1).\n"
      "Rivals: naive, the same formula in plain ATen calls; naive "
      "channels-last, the same in [B, H, W, C]; attention, 8\n"
      "heads on the same q, k, v in tiles, as in the\n"
      "mixer attention; naive attention, the same as matmul, mask, softmax, "
      "matmul; gemm, only the matrix products of full;\n"
      "simple, aft::simple next to one_tap, which is for inference only. "
      "ratio = rival_ms / aft_ms.\n"
      "Bound: bound_ms = max(bytes / copy bandwidth, flops / multiply-add "
      "peak, exps / exp rate), all measured in\n"
      "the same run; bytes: q, k, v, y once (backward: also q, k, v, dy, dq, "
      "dk, dv); flops: 4 for each pair (t, j)\n"
      "in the window and each channel (backward: 8 more); exps: one for each "
      "element of k and q (backward: again).\n"
      "bound_ratio = aft_ms / bound_ms. The bound assumes that the three "
      "overlap completely; sum_ratio divides by their\n"
      "sum instead.\n"
      "peak_mb: increase of the peak resident memory by one call, measured in "
      "a separate process.\n"
      "\n"
      "Examples:\n"
      "  aft-bench ops\n"
      "  aft-bench ops --filter local --json\n"
      "  aft-bench ops --isa avx2\n"
      "  aft-bench ops --memory\n"
      "  aft-bench ops --scaling --plot scaling.svg");
  command->callback([o] {
    if (!o->isa.empty()) limit_to_avx2();
    set_threads(o->threads);
    if (o->memory) return bench_memory(*o);
    if (o->scaling) return bench_scaling(*o);
    bench_speed(*o);
  });
}

}  // namespace aft::bench
