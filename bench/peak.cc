#include "bench/peak.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "bench/rivals.h"
#include "bench/time.h"
#include "cli/commands.h"
#include "cli/subprocess.h"

namespace aft::cli {
namespace {

/// A line of /proc/self/status in bytes, for example "VmHWM:".
double status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == key && file >> kilobytes) return 1024 * kilobytes;
  }
  throw std::runtime_error("peak-of: expected " + key +
                           " in /proc/self/status, found none");
}

Side make_side(const std::string& name, const Case& c, const Data& data) {
  return name == "aft" ? aft_side(c, data) : make_rival(name, c, data);
}

/// Threads, libraries and their own buffers, which belong to no call.
void warm_up(Case c, const std::string& side, Pass pass) {
  c.B = 1, c.T = c.grid.size() == 2 ? 16 : 32;
  if (c.grid.size() == 1) c.grid = {c.T};
  if (c.grid.size() == 2) c.grid = {4, 4};
  make_side(side, c, make_data(c)).run(pass);
  const at::Tensor x = at::ones({512, 512});
  at::mm(x, x);
}

}  // namespace

double raise_of_peak(const std::function<void()>& call) {
  malloc_trim(0);
  // Sets the high-water mark to what is resident now. Where that is forbidden
  // the mark of the set-up stays, which can only make the result larger.
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
  const double before = status("VmRSS:");
  call();
  return status("VmHWM:") - before;
}

namespace {

/// `aft peak-of <arguments>`, which prints numbers, in a process of its own.
std::vector<double> numbers_of(std::vector<std::string> arguments,
                               std::string& error) {
  arguments.insert(arguments.begin(), "peak-of");
  arguments.push_back("--threads");
  arguments.push_back(std::to_string(at::get_num_threads()));
  const SubprocessResult child =
      run_aft(std::move(arguments), /*keep_stderr=*/true);
  std::istringstream in(child.out);
  std::vector<double> out;
  for (double x = 0; in >> x;) out.push_back(x);
  if (child.code == 0 && out.size() >= 1) return out;
  error = child.code == 128 + SIGKILL
              ? "killed, as happens where there is not enough memory"
          : child.error.empty()
              ? "ended with code " + std::to_string(child.code)
              : child.error;
  return {};
}

Measured measured(const std::vector<std::string>& arguments) {
  Measured out;
  const std::vector<double> numbers = numbers_of(arguments, out.error);
  if (numbers.size() == 2) out.peak = numbers[0], out.ms = numbers[1];
  return out;
}

/// Two calls, and `repeat` more with a clock; then the peak and the median.
void print_measured(const std::function<void()>& call, int repeat) {
  call();
  double ms = 0;
  if (repeat > 0)
    ms = interleave({call}, {repeat, 0})[0];
  else
    call();
  printf("%.0f %.6f\n", status("VmHWM:"), ms);
}

}  // namespace

std::optional<double> peak_bytes(const Case& c, const std::string& side,
                                 Pass pass) {
  std::string error;
  const std::vector<double> numbers = numbers_of(
      {"ops", nlohmann::json(c).dump(), side, pass_name(pass)}, error);
  if (numbers.empty()) return std::nullopt;
  return numbers[0];
}

std::vector<double> measure_mixer(const std::string& kind, int64_t T, int64_t d,
                                  int repeat, std::string& error) {
  return numbers_of({"mixer", kind, std::to_string(repeat), std::to_string(T),
                     std::to_string(d)},
                    error);
}

Measured measure_training(const std::string& config, int repeat) {
  return measured({"training", config, std::to_string(repeat)});
}

Measured measure_inference(const std::string& config, int64_t batch,
                           int64_t size, int repeat,
                           const std::string& weights) {
  std::vector<std::string> arguments{
      "inference", config, std::to_string(repeat), std::to_string(batch),
      std::to_string(size)};
  if (!weights.empty()) arguments.push_back("--weights=" + weights);
  return measured(arguments);
}

void add_peak(CLI::App& app) {
  struct Options {
    std::string what, side, pass, weights;
    int64_t batch = 0, size = 0;
    int repeat = 0, threads = 0;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("peak-of")->group("");
  CLI::App* ops = command->add_subcommand("ops");
  ops->add_option("case", o->what)->required();
  ops->add_option("side", o->side)->required();
  ops->add_option("pass", o->pass)->required();
  add_threads(*ops, o->threads);
  ops->callback([o] {
    set_threads(o->threads);
    const Pass pass =
        o->pass == "forward" ? Pass::kForward : Pass::kForwardBackward;
    const Case c = nlohmann::json::parse(o->what).get<Case>();
    warm_up(c, o->side, pass);
    const Data data = make_data(c);
    const Side side = make_side(o->side, c, data);
    std::vector<at::Tensor> results;
    printf("%.0f\n", raise_of_peak([&] { results = side.run(pass); }));
  });
  const auto add = [&](const char* name) {
    CLI::App* sub = command->add_subcommand(name);
    sub->add_option("config", o->what)->required();
    sub->add_option("repeat", o->repeat)->required();
    add_threads(*sub, o->threads);
    return sub;
  };
  CLI::App* inference = add("inference");
  inference->add_option("batch", o->batch)->required();
  inference->add_option("size", o->size)->required();
  inference->add_option("--weights", o->weights);
  inference->callback([o] {
    set_threads(o->threads);
    print_measured(inference_batches(o->what, o->batch, o->size, o->weights),
                   o->repeat);
  });
  CLI::App* mixer = add("mixer");
  mixer->add_option("T", o->batch)->required();
  mixer->add_option("d", o->size)->required();
  mixer->callback([o] {
    set_threads(o->threads);
    mix_once(o->what, o->batch, o->size, o->repeat);
  });
  add("training")->callback([o] {
    set_threads(o->threads);
    print_measured(training_steps(o->what), o->repeat);
  });
}

}  // namespace aft::cli
