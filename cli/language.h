// What the commands on language models share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "aft/tasks/language.h"

namespace aft::cli {

/// The configuration of a preset or a JSON file like one. Throws ConfigError.
tasks::LanguageConfig preset_config(const std::string& what);
/// `--set` assignments on top of it. Throws ConfigError.
void apply_sets(tasks::LanguageConfig& config,
                const std::vector<std::string>& sets);
/// The configuration that `what` names: the directory of a model, a preset, or
/// a JSON file; with `--set` assignments applied. Throws ConfigError.
tasks::LanguageConfig choose_config(const std::string& what,
                                    const std::vector<std::string>& sets);
bool is_directory(const std::string& path);
bool exists(const std::string& path);

/// `--set key=value`, as often as one likes.
void add_sets(CLI::App& command, std::vector<std::string>& sets);

/// Whether a mixer reads all that came before for each byte, so that its state
/// and the price of a byte grow with the context.
bool reads_all(const std::string& mixer);

/// 1234567 as "1.23 M".
std::string count(double n);
/// Seconds as 12s, 3m05s, 2h10m.
std::string duration(double seconds);
/// Resident memory of this process in bytes; 0 where it is not known.
double resident();

/// Nats to bits.
inline constexpr double kBits = 1.4426950408889634;

}  // namespace aft::cli
