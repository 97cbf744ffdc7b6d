// The subcommands of `aft`. Each function adds one subcommand, with its options
// and its callback, to the command line.
#pragma once

#include "cli/program.h"

namespace aft::cli {

void add_train(CLI::App& app);
/// Parses `train ...` without running it. Throws UsageError as the command
/// would. Prints the help if the arguments ask for it.
void check_train(const std::vector<std::string>& arguments);
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
void add_bench(CLI::App& app);
void add_demo(CLI::App& app);

}  // namespace aft::cli
