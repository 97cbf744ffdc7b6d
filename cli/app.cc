#include "cli/app.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "aft/base/escape.h"
#include "aft/train/distributed/launch_environment.h"
#include "cli/commands.h"

namespace aft::cli {
namespace {

/// OMP_NUM_THREADS where it is a number, else all cores, or this process's
/// share of them where a launcher says how many there are here and has not
/// bound it to some. Debian's LibTorch alone would start with one.
int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int n = std::atoi(text);  // of "4,2" the first is the outermost level
    if (n > 0) return n;
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  int processes = 1;
  if (cores == sysconf(_SC_NPROCESSORS_ONLN)) {
    try {
      processes = train::launch_environment().local_size;
    } catch (const train::LaunchError&) {  // for who trains to report
    }
  }
  return std::max(1, cores / processes);
}

/// Where to read on, after a wrong call: the help of the command as far as it
/// was understood.
std::string hint(const CLI::App& app) {
  std::string command = "aft";
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands()[0];
    command += " " + at->get_name();
  }
  return "; see `" + command + " --help`";
}

}  // namespace

std::unique_ptr<CLI::App> make_app() {
  auto made = std::make_unique<CLI::App>(
      "The Attention Free Transformer: y_t = sigmoid(q_t) * "
      "sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)");
  CLI::App& app = *made;
  app.name("aft");
  app.set_version_flag("--version", "aft " AFT_VERSION);
  app.require_subcommand(0, 1);  // checked below, with a better message
  app.footer(
      "Examples:\n"
      "  aft presets                 what can be trained\n"
      "  aft train text-aft-local-4x128 --data book.txt --out book\n"
      "  aft generate book --prompt 'Once upon'\n"
      "  aft train image-aft-local-4x128 --data holiday/ --out holiday-model\n"
      "  aft sample holiday-model    new pictures\n"
      "  aft train classify-aft-conv-4x96 --data flowers/ --out flowers-model\n"
      "  aft classify flowers-model picture.jpg\n"
      "  aft plot flowers-model      what it has learned, as pictures\n"
      "  aft launch -n 2 -- train text-aft-local-4x128   two processes\n"
      "  aft demo                    the four operators in a few seconds\n"
      "  aft bench ops               speed against naive code and attention\n"
      "  aft bench ops --help        all options of one command\n"
      "\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage.");
  add_train(app);
  add_data(app);
  add_eval(app);
  add_generate(app);
  add_sample(app);
  add_complete(app);
  add_classify(app);
  add_import(app);
  add_export(app);
  add_compare(app);
  add_plot(app);
  add_curves(app);
  add_launch(app);
  add_info(app);
  add_demo(app);
  CLI::App* bench = app.add_subcommand("bench", "Measure speed and memory");
  bench->require_subcommand(0, 1);
  bench->footer(
      "Examples:\n"
      "  aft bench ops --filter local\n"
      "  aft bench train\n"
      "  aft bench generate\n"
      "  aft bench classify\n"
      "  aft bench distributed\n"
      "  aft bench steady");
  add_bench_ops(*bench);
  add_bench_train(*bench);
  add_bench_generate(*bench);
  add_bench_classify(*bench);
  add_bench_mixers(*bench);
  add_bench_distributed(*bench);
  add_bench_steady(*bench);
  add_peak(app);
  add_exchange(app);
  add_steady_of(app);
  return made;
}

int run(CLI::App& app, int argc, const char* const* argv) {
  const auto flush = [] {
    std::cout.flush();
    if (!std::cout)
      throw std::runtime_error("cannot write to the standard output");
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0)
      throw UsageError(std::string(e.what()) + hint(app));
    app.exit(e);  // --help, --version
    flush();
    return 0;
  }
  if (app.get_subcommands().empty()) {
    throw UsageError("expected a command, got none" + hint(app));
  }
  const CLI::App* bench = app.get_subcommand("bench");
  if (bench->parsed() && bench->get_subcommands().empty()) {
    throw UsageError("bench: expected what to measure, got nothing" +
                     hint(app));
  }
  flush();
  return 0;
}

int report_failure(const std::string& message, int code) {
  std::string rank;  // of several processes, which one it is
  try {
    const train::LaunchEnvironment environment = train::launch_environment();
    if (environment.size > 1)
      rank = "[" + std::to_string(environment.rank) + "] ";
  } catch (const train::LaunchError&) {
  }
  std::cerr << "aft: " + rank + base::terminal_safe(message) + "\n";
  return code;
}

void set_threads(int threads) {
  at::set_num_threads(threads > 0 ? threads : default_threads());
}

void add_threads(CLI::App& command, int& threads) {
  command
      .add_option("--threads", threads,
                  "Threads; default: OMP_NUM_THREADS, else all cores, or this "
                  "process's share of them where a launcher says so")
      ->check(CLI::Range(1, 4096).description(""))
      ->type_name("N");
}

}  // namespace aft::cli
