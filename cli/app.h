// The command line of `aft`. Separate from main.cc so that it can be fuzzed.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace aft::cli {

/// Creates the command line with all commands; run() or run_program()
/// (cli/program.h) executes it.
std::unique_ptr<CLI::App> make_app();

}  // namespace aft::cli
