#include "cli/measure/measure.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "cli/measure/rivals.h"
#include "cli/measure/timing.h"
#include "cli/measure/workloads.h"
#include "cli/program.h"
#include "cli/subprocess.h"

namespace aft::cli {
namespace {

/// A value of /proc/self/status in bytes; key: for example "VmHWM:".
double status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == key && file >> kilobytes) return 1024 * kilobytes;
  }
  throw std::runtime_error("measure: expected " + key +
                           " in /proc/self/status, found none");
}

Side make_side(const std::string& name, const Case& c, const Data& data) {
  return name == "aft" ? aft_side(c, data) : make_rival(name, c, data);
}

/// Creates the threads and buffers of libraries, which belong to no call.
void warm_up(Case c, const std::string& side, Pass pass) {
  c.B = 1, c.T = c.grid.size() == 2 ? 16 : 32;
  if (c.grid.size() == 1) c.grid = {c.T};
  if (c.grid.size() == 2) c.grid = {4, 4};
  make_side(side, c, make_data(c)).run(pass);
  const at::Tensor x = at::ones({512, 512});
  at::mm(x, x);
}

/// Calls twice, then `repeat` more times with a clock, and prints the peak, the
/// median time and `units`.
void print_measured(const std::function<void()>& call, int repeat,
                    int64_t units) {
  call();
  double ms = 0;
  if (repeat > 0)
    ms = interleave({call}, {repeat, 0})[0];
  else
    call();
  printf("%.0f %.6f %lld\n", status("VmHWM:"), ms,
         static_cast<long long>(units));
}

Measured measured(std::vector<std::string> arguments,
                  const std::string& weights) {
  if (!weights.empty()) arguments.push_back("--weights=" + weights);
  Measured out;
  const std::vector<double> numbers = run_measurement(arguments, out.error);
  if (numbers.size() == 3)
    out.peak = numbers[0], out.ms = numbers[1], out.units = numbers[2];
  return out;
}

}  // namespace

double peak_increase(const std::function<void()>& call) {
  malloc_trim(0);
  // Resets the high-water mark to what is resident now. Where that is forbidden
  // the old mark remains, which can only make the result larger.
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
  const double before = status("VmRSS:");
  call();
  return status("VmHWM:") - before;
}

std::vector<double> run_measurement(std::vector<std::string> arguments,
                                    std::string& error) {
  arguments.insert(arguments.begin(), "measure");
  arguments.insert(arguments.end(),
                   {"--threads", std::to_string(at::get_num_threads())});
  const SubprocessResult child =
      run_aft(std::move(arguments), /*keep_stderr=*/true);
  std::istringstream in(child.out);
  std::vector<double> out;
  for (double x = 0; in >> x;) out.push_back(x);
  if (child.code == 0 && !out.empty()) return out;
  error = child.code == 128 + SIGKILL
              ? "killed, probably because memory ran out"
          : child.error.empty()
              ? "ended with exit code " + std::to_string(child.code)
              // Without the program name.
              : child.error.substr(child.error.rfind("aft: ", 0) == 0 ? 5 : 0);
  return {};
}

std::optional<double> peak_bytes(const Case& c, const std::string& side,
                                 Pass pass) {
  std::string error;
  const std::vector<double> numbers = run_measurement(
      {"ops", nlohmann::json(c).dump(), side, pass_name(pass)}, error);
  if (numbers.empty()) return std::nullopt;
  return numbers[0];
}

std::string batch_hint(const std::string& error, int64_t batch) {
  return batch > 0 && error.find("train.batch_size") != std::string::npos
             ? " (--batch sets train.batch_size)"
             : "";
}

Measured measure_training(const std::string& config, int repeat) {
  return measured({"training", config, std::to_string(repeat)}, "");
}

Measured measure_inference(const std::string& config, int64_t batch,
                           int64_t size, int repeat,
                           const std::string& weights) {
  return measured({"inference", config, std::to_string(repeat),
                   std::to_string(batch), std::to_string(size)},
                  weights);
}

Measured measure_generation(const std::string& config, int repeat,
                            const std::string& weights) {
  return measured({"generation", config, std::to_string(repeat)}, weights);
}

CLI::App* add_measure(CLI::App& app) {
  struct Options {
    std::string what, side, pass, weights;
    int64_t batch = 0, size = 0;
    int repeat = 0, threads = 0;
    base::Json config() const { return base::Json::parse(what); }
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("measure")->group("");
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
    printf("%.0f\n", peak_increase([&] { results = side.run(pass); }));
  });
  const auto add = [&](const char* name, std::function<void()> work) {
    CLI::App* sub = command->add_subcommand(name);
    sub->add_option("config", o->what)->required();
    sub->add_option("repeat", o->repeat)->required();
    sub->add_option("--weights", o->weights);
    add_threads(*sub, o->threads);
    sub->callback([o, work] {
      set_threads(o->threads);
      work();
    });
    return sub;
  };
  add("training", [o] {
    TimedTraining run(o->config());
    print_measured([&] { run.run(); }, o->repeat, run.tokens());
  });
  add("generation", [o] {
    TimedGeneration run(o->config(), o->weights);
    print_measured([&] { run.run(); }, o->repeat, run.symbols());
  });
  CLI::App* inference = add("inference", [o] {
    TimedClassifier run(o->config(), o->weights, o->batch, o->size);
    print_measured([&] { run.run(); }, o->repeat, o->batch);
  });
  inference->add_option("batch", o->batch)->required();
  inference->add_option("size", o->size)->required();
  return command;
}

}  // namespace aft::cli
