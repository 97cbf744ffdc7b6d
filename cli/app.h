// The command line of the program: all commands in one App, and what becomes of
// a call. Apart from main.cc, so that it is fuzzed.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace aft::cli {

std::unique_ptr<CLI::App> make_app();

/// Parses a call, which runs the callback of its command, or prints the help
/// that it asks for. Returns the exit code. Throws UsageError, and what the
/// command throws.
int run(CLI::App& app, int argc, const char* const* argv);

}  // namespace aft::cli
