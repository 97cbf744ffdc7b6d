// The command line of the program: builds the CLI::App with all commands and
// runs it. Separate from main.cc so that it can be fuzzed.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace aft::cli {

std::unique_ptr<CLI::App> make_app();

/// Parses the arguments and runs the callback of the chosen command, or prints
/// the requested help. Returns the exit code. Throws UsageError and whatever
/// the command throws.
int run(CLI::App& app, int argc, const char* const* argv);

}  // namespace aft::cli
