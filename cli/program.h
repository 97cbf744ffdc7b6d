// What the programs `aft` and `aft-bench` share: exit codes, error messages and
// threads.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace aft::cli {

/// Exit code of a process that ends because a peer in its group has failed
/// (train::PeerError).
inline constexpr int kPeerFailed = 3;

/// The last lines of the help of both programs.
inline constexpr char kExitCodes[] =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 ended because another "
    "process of the group failed,\n130 and 143 interrupted by SIGINT (Ctrl-C) "
    "or SIGTERM, after saving.";

/// A usage error that the parser cannot detect: exit code 2. All other
/// exceptions except train::PeerError are failures: exit code 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Parses the arguments and runs the callback of the chosen command, or prints
/// the requested help. Returns the exit code. Throws UsageError and whatever
/// the command throws.
int run(CLI::App& app, int argc, const char* const* argv);

/// The body of main(): sets the threads and the allocator of the process (the
/// library leaves both alone), calls run(), prints what it throws and returns
/// the exit code.
int run_program(CLI::App& app, int argc, const char* const* argv);

/// Prints "aft: <message>" to stderr, with the name of this program and, in a
/// distributed run, the rank of this process. Returns `code`.
int report_failure(const std::string& message, int code);

/// Adds `--threads N`. The command passes the value to set_threads() before it
/// starts work. 0: the default that run_program() also uses.
void add_threads(CLI::App& command, int& threads);
void set_threads(int threads);

/// Accepts a decimal integer in [low, high].
template <class Integer>
CLI::Validator integer(Integer low, Integer high);
/// Accepts one of `words`.
CLI::Validator one_of(std::vector<std::string> words);
/// Accepts a file name with that ending, such as ".png", in any case.
CLI::Validator ends_in(std::string ending);

/// Adds an option with an integer value in [low, high].
template <class Integer>
CLI::Option* add_count(CLI::App& command, const std::string& name,
                       Integer& value, const std::string& help, int64_t low = 1,
                       int64_t high = int64_t{1} << 40) {
  return command.add_option(name, value, help)
      ->check(integer(low, high))
      ->type_name("N");
}
/// Adds --seed.
CLI::Option* add_seed(CLI::App& command, uint64_t& seed,
                      const std::string& help);

/// Completes a program whose commands have been added: adds `help` and makes
/// empty values errors for all options except --prompt.
void finish(CLI::App& app);

}  // namespace aft::cli
