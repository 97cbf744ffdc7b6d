#include "cli/program.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <new>
#include <thread>

#include "aft/base/escape.h"
#include "aft/tasks/memory_limit.h"
#include "aft/tasks/presets.h"
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
std::string hint(const CLI::App& app, const std::string& start = "; see `") {
  std::string command = app.get_name();
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty() &&
         !at->get_subcommands()[0]->get_group().empty()) {
    at = at->get_subcommands()[0];
    command += " " + at->get_name();
  }
  return start + command + " --help`";
}

/// The names of the commands that the help shows.
std::vector<std::string> commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (!command->get_group().empty()) names.push_back(command->get_name());
  return names;
}

[[noreturn]] void unknown_command(const CLI::App& app,
                                  const std::string& name) {
  const std::string near = base::nearest(name, commands(app));
  throw UsageError(
      "there is no command '" + base::printable(name) +
      (near.empty() ? "'; see `" : "'; did you mean " + near + "? See `") +
      app.get_name() + " --help`");
}

/// The innermost command that was recognised.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty())
    command = command->get_subcommands()[0];
  return *command;
}

/// The message about arguments that the command does not have.
std::string unexpected(const CLI::App& app) {
  const std::vector<std::string> extra = app.remaining(/*recurse=*/true);
  if (extra.empty()) return "an argument was not expected" + hint(app);
  const std::string given = extra[0].substr(0, extra[0].find('='));
  if (given.rfind('-', 0) != 0)
    return "unexpected argument '" + base::printable(extra[0]) + "'" +
           hint(app);
  std::vector<std::string> known;
  for (const CLI::Option* option : innermost(app).get_options())
    for (const std::string& name : option->get_lnames())
      known.push_back("--" + name);
  const std::string near = base::nearest(given, known);
  return "unknown option " + base::printable(given) +
         (near.empty() ? hint(app)
                       : "; did you mean " + near + "?" + hint(app, " See `"));
}

/// The message about a missing argument, which the synopsis names.
std::string missing(const CLI::App& app, const std::string& otherwise) {
  std::string names;
  for (const CLI::Option* option : innermost(app).get_options())
    if (option->get_required() && option->count() == 0)
      names += (names.empty() ? "" : " ") + option->get_name() +
               (option->get_items_expected_max() > 1 ? "..." : "");
  return names.empty() ? otherwise : "missing argument: " + names;
}

void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() > 0 &&
        option->get_name() != "--prompt")
      option->check(CLI::Validator(
          [](const std::string& value) {
            return value.empty() ? "the value is empty" : "";
          },
          ""));
  for (CLI::App* command : app.get_subcommands(nullptr))
    refuse_empty_values(*command);
}

void add_help(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "help", "Show the help of a command, as `COMMAND --help` does");
  command->group("");  // not shown: --help, which the hints name, is
  command->add_option("command", *name, "A command; default: all");
  command->callback([&app, name] {
    const std::vector<std::string> known = commands(app);
    if (!name->empty() &&
        std::find(known.begin(), known.end(), *name) == known.end())
      unknown_command(app, *name);
    const CLI::App* shown = name->empty() ? &app : app.get_subcommand(*name);
    // Not shown->help(): that of the program is about the command in use.
    std::cout << app.get_formatter()->make_help(
        shown, name->empty() ? app.get_name() : app.get_name() + " " + *name,
        CLI::AppFormatMode::Normal);
  });
}

}  // namespace

template <class Integer>
CLI::Validator integer(Integer low, Integer high) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        Integer value;
        const char *begin = text.data(), *end = begin + text.size();
        const auto [at, error] = std::from_chars(begin, end, value);
        if (error != std::errc() || at != end || value < low || value > high)
          return "expected an integer in [" + std::to_string(low) + ", " +
                 std::to_string(high) + "], got '" + base::printable(text) +
                 "'";
        text = std::to_string(value);  // CLI11 would read 010 as 8
        return "";
      },
      "");
}
template CLI::Validator integer(int64_t, int64_t);
template CLI::Validator integer(uint64_t, uint64_t);

CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](const std::string& text) -> std::string {
        std::string all;
        for (const std::string& word : words) {
          if (text == word) return "";
          all += (all.empty() ? "" : ", ") + word;
        }
        return "expected one of " + all + ", got '" + base::printable(text) +
               "'";
      },
      "");
}

CLI::Validator ends_in(std::string ending) {
  return CLI::Validator(
      [ending = std::move(ending)](const std::string& text) -> std::string {
        const auto same = [](char a, char b) { return std::tolower(a) == b; };
        if (text.size() > ending.size() &&
            std::equal(text.end() - static_cast<std::ptrdiff_t>(ending.size()),
                       text.end(), ending.begin(), same))
          return "";
        return "must end in " + ending + ", got '" + base::printable(text) +
               "'";
      },
      "");
}

CLI::Option* add_seed(CLI::App& command, uint64_t& seed,
                      const std::string& help) {
  return command
      .add_option("--seed", seed, help)
      // The range of train.seed.
      ->check(integer(uint64_t{0}, uint64_t{INT64_MAX}))
      ->type_name("N");
}

void finish(CLI::App& app) {
  add_help(app);
  refuse_empty_values(app);
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
    if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-')
      unknown_command(app, argv[1]);
    if (dynamic_cast<const CLI::ExtrasError*>(&e))
      throw UsageError(unexpected(app));
    if (dynamic_cast<const CLI::RequiredError*>(&e))
      throw UsageError(missing(app, e.what()) + hint(app));
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
    signal(SIGXFSZ, SIG_IGN);  // a file that is too large is then an error
    tasks::install_memory_limit();
    set_threads(0);
    return run(app, argc, argv);
  } catch (const UsageError& e) {
    return report_failure(e.what(), 2);
  } catch (const tasks::UnknownPreset& e) {
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
