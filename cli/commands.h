// The subcommands of the program. Each function adds one subcommand, with its
// options and its callback, to the command line. main.cc catches exceptions.
#pragma once

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>

namespace aft::cli {

/// Exit code of a process that ends because a peer in its group has failed
/// (train::PeerError).
inline constexpr int kPeerFailed = 3;

/// A usage error that the parser cannot detect: exit code 2. All other
/// exceptions except train::PeerError are failures: exit code 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Prints "aft: <message>" to stderr, in a distributed run with the rank of
/// this process. Returns `code`.
int report_failure(const std::string& message, int code);

/// Adds `--threads N`. The command passes the value to set_threads() before it
/// starts work. 0: the default that main.cc also uses.
void add_threads(CLI::App& command, int& threads);
void set_threads(int threads);

void add_train(CLI::App& app);
void add_data(CLI::App& app);
void add_compare(CLI::App& app);
void add_curves(CLI::App& app);
void add_launch(CLI::App& app);
void add_plot(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_sample(CLI::App& app);
void add_complete(CLI::App& app);
void add_classify(CLI::App& app);
void add_import(CLI::App& app);
void add_export(CLI::App& app);
/// `info` and `presets`.
void add_info(CLI::App& app);
void add_bench_ops(CLI::App& bench);
void add_bench_train(CLI::App& bench);
void add_bench_generate(CLI::App& bench);
void add_bench_classify(CLI::App& bench);
void add_bench_mixers(CLI::App& bench);
void add_bench_distributed(CLI::App& bench);
void add_bench_steady(CLI::App& bench);
void add_demo(CLI::App& app);
/// Hidden: one measurement of memory in a subprocess (bench/peak.h).
void add_peak(CLI::App& app);
/// Hidden: one process of `bench distributed`.
void add_exchange(CLI::App& app);
/// Hidden: one process of `bench steady`.
void add_steady_of(CLI::App& app);

}  // namespace aft::cli
