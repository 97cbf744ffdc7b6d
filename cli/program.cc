#include "cli/program.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <new>
#include <thread>

#include "aft/base/escape.h"
#include "aft/tasks/memory_limit.h"
#include "aft/train/distributed/launch_environment.h"
#include "aft/train/distributed/rendezvous.h"
#include "cli/interrupt.h"

namespace aft::cli {
namespace {

std::string program_name = "aft";

/// OMP_NUM_THREADS if it is a number. Otherwise all cores, or this process's
/// share of them if a launcher started several processes on this machine
/// without binding them to cores. Debian's LibTorch alone would start with one.
int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int n =
        std::atoi(text);  // in "4,2", the first is the outermost level
    if (n > 0) return n;
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  int processes = 1;
  if (cores == sysconf(_SC_NPROCESSORS_ONLN)) {
    try {
      processes = train::launch_environment().local_size;
    } catch (const train::LaunchError&) {  // the command reports it
    }
  }
  return std::max(1, cores / processes);
}

/// Keeps freed memory in the process. Otherwise the kernel maps and clears
/// every new activation page by page (a linear layer: 87 instead of 148
/// GFLOP/s). M_MMAP_THRESHOLD alone is limited to 32 MB.
void keep_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 16 << 20);
}

/// The end of a usage error: a reference to the help of the innermost command
/// that was recognised.
std::string hint(const CLI::App& app) {
  std::string command = app.get_name();
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands()[0];
    command += " " + at->get_name();
  }
  return "; see `" + command + " --help`";
}

}  // namespace

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
  if (app.get_subcommands().empty())
    throw UsageError("expected a command, got none" + hint(app));
  flush();
  return 0;
}

int run_program(CLI::App& app, int argc, const char* const* argv) {
  program_name = app.get_name();
  try {
    keep_memory();
    tasks::install_memory_limit();
    set_threads(0);
    return run(app, argc, argv);
  } catch (const UsageError& e) {
    return report_failure(e.what(), 2);
  } catch (const train::PeerError& e) {
    return report_failure(e.what(), kPeerFailed);
  } catch (const Interrupted&) {
    std::cout.flush();
    return Interrupted::exit_code();
  } catch (const std::bad_alloc&) {
    return report_failure("not enough memory", 1);
  } catch (const std::exception& e) {
    return report_failure(train::reason(e), 1);
  }
}

int report_failure(const std::string& message, int code) {
  std::string rank;
  try {
    const train::LaunchEnvironment environment = train::launch_environment();
    if (environment.size > 1)
      rank = "[" + std::to_string(environment.rank) + "] ";
  } catch (const train::LaunchError&) {
  }
  std::cerr << program_name + ": " + rank + base::terminal_safe(message) + "\n";
  return code;
}

void set_threads(int threads) {
  at::set_num_threads(threads > 0 ? threads : default_threads());
}

void add_threads(CLI::App& command, int& threads) {
  add_count(
      command, "--threads", threads,
      "Threads; default: OMP_NUM_THREADS, or all cores, or this process's "
      "share of them if a launcher started it",
      1, 4096);
}

}  // namespace aft::cli
