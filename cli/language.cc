#include "cli/language.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "aft/tasks/presets.h"

namespace aft::cli {

bool is_directory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

tasks::LanguageConfig preset_config(const std::string& what) {
  const bool file =
      what.find('/') != std::string::npos ||
      (what.size() > 5 && what.compare(what.size() - 5, 5, ".json") == 0);
  const tasks::Preset preset =
      file ? tasks::parse_preset(what, models::read_json_file(what))
           : tasks::preset(what);
  tasks::LanguageConfig config;
  try {
    models::from_json(preset.config, config);
  } catch (const models::ConfigError& e) {
    throw models::ConfigError(what + ": " + e.what());
  }
  return config;
}

void apply_sets(tasks::LanguageConfig& config,
                const std::vector<std::string>& sets) {
  const std::vector<std::string> known = models::paths(config);
  for (const std::string& set : sets) {
    try {
      models::from_json(models::assignment(set, known), config);
    } catch (const models::ConfigError& e) {
      throw models::ConfigError("--set: " + std::string(e.what()));
    }
  }
  if (config.task != "language")
    throw models::ConfigError("task must be language, got '" + config.task +
                              "'");
}

tasks::LanguageConfig choose_config(const std::string& what,
                                    const std::vector<std::string>& sets) {
  tasks::LanguageConfig config =
      is_directory(what) ? tasks::load_config(what) : preset_config(what);
  apply_sets(config, sets);
  return config;
}

void add_sets(CLI::App& command, std::vector<std::string>& sets) {
  command
      .add_option("--set", sets,
                  "Change a key of the configuration, for example --set "
                  "model.window=64; as often as you like")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

bool reads_all(const std::string& mixer) {
  return mixer == "attention" || mixer == "aft-full";
}

std::string count(double n) {
  const char* unit[] = {"", " k", " M", " G"};
  int i = 0;
  while (n >= 1000 && i < 3) n /= 1000, ++i;
  char text[32];
  snprintf(text, sizeof(text), i == 0 ? "%.0f%s" : "%.3g%s", n, unit[i]);
  return text;
}

std::string duration(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  char text[32];
  if (s < 60) {
    snprintf(text, sizeof(text), "%llds", static_cast<long long>(s));
  } else if (s < 3600) {
    snprintf(text, sizeof(text), "%lldm%02llds", static_cast<long long>(s / 60),
             static_cast<long long>(s % 60));
  } else {
    snprintf(text, sizeof(text), "%lldh%02lldm",
             static_cast<long long>(s / 3600),
             static_cast<long long>(s / 60 % 60));
  }
  return text;
}

double resident() {
  std::ifstream file("/proc/self/statm");
  double all = 0, held = 0;
  file >> all >> held;
  return file ? held * static_cast<double>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace aft::cli
