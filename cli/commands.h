// The subcommands of the program: one function each, which adds its options to
// the command line and runs as its callback. Exceptions end in main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>

namespace aft::cli {

/// Exit code of a process that ends because another of its group has failed
/// (train::PeerError).
inline constexpr int kPeerFailed = 3;

/// A wrong call, for what the parser cannot see: exit code 2. Every other
/// exception is a failure: exit code 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// "aft: <message>" on stderr, of several processes with the rank of this one.
/// Returns `code`.
int report_failure(const std::string& message, int code);

/// `--threads N`, in force before the callback of `command` does its work; 0:
/// as main.cc chose at the start.
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
/// Hidden: one measurement of memory in a process of its own (bench_peak.h).
void add_peak(CLI::App& app);
/// Hidden: one process of bench distributed.
void add_exchange(CLI::App& app);
/// Hidden: a process of bench steady.
void add_steady_of(CLI::App& app);

}  // namespace aft::cli
