#include "cli/bench_peak.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>

#include "cli/bench_rivals.h"
#include "cli/commands.h"

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

double raise_of_peak(const Case& c, const std::string& side, Pass pass) {
  warm_up(c, side, pass);
  const Data data = make_data(c);
  const Side what = make_side(side, c, data);
  malloc_trim(0);
  // Sets the high-water mark to what is resident now. Where that is forbidden
  // the mark of the set-up stays, which can only make the result larger.
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
  const double before = status("VmRSS:");
  const std::vector<at::Tensor> results = what.run(pass);
  return status("VmHWM:") - before;
}

}  // namespace

namespace {

/// What `aft <arguments>` prints, a number, in a process of its own.
std::optional<double> number_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "aft");
  arguments.push_back("--threads");
  arguments.push_back(std::to_string(at::get_num_threads()));
  std::vector<char*> raw;
  for (std::string& a : arguments) raw.push_back(a.data());
  raw.push_back(nullptr);
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return std::nullopt;
  // Between fork and exec only calls that are safe beside other threads.
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
    execv("/proc/self/exe", raw.data());
    _exit(127);
  }
  close(pipe_ends[1]);
  std::string answer;
  char buffer[256];
  ssize_t n = 0;
  while (child > 0 && (n = read(pipe_ends[0], buffer, sizeof(buffer))) > 0) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(pipe_ends[0]);
  int code = 1;
  if (child <= 0 || waitpid(child, &code, 0) != child || code != 0) {
    return std::nullopt;
  }
  double bytes = 0;
  if (sscanf(answer.c_str(), "%lf", &bytes) != 1) return std::nullopt;
  return bytes;
}

}  // namespace

std::optional<double> peak_bytes(const Case& c, const std::string& side,
                                 Pass pass) {
  return number_of(
      {"peak-of", "ops", nlohmann::json(c).dump(), side, pass_name(pass)});
}

std::optional<double> training_peak(const std::string& config) {
  return number_of({"peak-of", "training", config});
}

std::optional<double> inference_peak(const std::string& config, int64_t batch,
                                     int64_t size) {
  return number_of({"peak-of", "inference", config, std::to_string(batch),
                    std::to_string(size)});
}

void add_peak(CLI::App& app) {
  struct Options {
    std::string what, side, pass;
    int64_t batch = 0, size = 0;
    int threads = 0;
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
    printf("%.0f\n", raise_of_peak(c, o->side, pass));
  });
  CLI::App* inference = command->add_subcommand("inference");
  inference->add_option("config", o->what)->required();
  inference->add_option("batch", o->batch)->required();
  inference->add_option("size", o->size)->required();
  add_threads(*inference, o->threads);
  inference->callback([o] {
    set_threads(o->threads);
    classify_once(o->what, o->batch, o->size);
    printf("%.0f\n", status("VmHWM:"));
  });
  CLI::App* training = command->add_subcommand("training");
  training->add_option("config", o->what)->required();
  add_threads(*training, o->threads);
  training->callback([o] {
    set_threads(o->threads);
    train_two_steps(o->what);
    printf("%.0f\n", status("VmHWM:"));
  });
}

}  // namespace aft::cli
