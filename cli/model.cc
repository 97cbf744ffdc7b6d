#include "cli/model.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "aft/io/json_file.h"
#include "aft/tasks/presets.h"
#include "cli/commands.h"
#include "cli/table.h"

namespace aft::cli {

bool is_directory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

base::Json preset_config(const std::string& what) {
  const bool file =
      what.find('/') != std::string::npos ||
      (what.size() > 5 && what.compare(what.size() - 5, 5, ".json") == 0);
  const tasks::Preset preset =
      file ? tasks::parse_preset(what, io::read_json_file(what))
           : tasks::preset(what);
  try {
    tasks::task_kind(preset.config).complete(preset.config);
  } catch (const base::ConfigError& e) {
    throw base::ConfigError(what + ": " + e.what());
  }
  return preset.config;
}

base::Json apply_sets(base::Json config, const std::vector<std::string>& sets) {
  const tasks::TaskKind& kind = tasks::task_kind(config);
  // What follows from other keys follows anew.
  for (const std::string& key : kind.derived)
    if (config.contains("model")) config["model"].erase(key);
  std::vector<std::string> known = base::paths(kind.complete(config));
  // The options of other mixers, one of which may be chosen.
  if (!has_network(config))
    for (const std::string& key : nn::mixer_keys())
      if (std::find(known.begin(), known.end(), "model." + key) == known.end())
        known.push_back("model." + key);
  const auto named = [](const base::ConfigError& e) {
    return base::ConfigError("--set: " + std::string(e.what()));
  };
  for (const std::string& set : sets) {
    try {
      const base::Json change = base::assignment(set, known);
      if (tasks::task_kind(change.contains("task") ? change : config).name !=
          kind.name)
        throw base::ConfigError("task is " + kind.name +
                                " here, and cannot become another");
      if (change.contains("model") && change["model"].contains("network") &&
          change["model"]["network"] != config["model"]["network"])
        throw base::ConfigError("model.network is " +
                                config["model"]["network"].dump() +
                                " here, and cannot become another");
      base::merge(change, config);
    } catch (const base::ConfigError& e) {
      throw named(e);
    }
  }
  try {
    return kind.complete(config);
  } catch (const base::ConfigError& e) {
    if (sets.empty()) throw;
    throw named(e);
  }
}

base::Json choose_config(const std::string& what,
                         const std::vector<std::string>& sets) {
  return apply_sets(
      is_directory(what) ? tasks::load_config(what) : preset_config(what),
      sets);
}

models::SequenceModelConfig model_config(const base::Json& config) {
  if (config["task"] == "classification" || has_network(config))
    throw UsageError(
        "expected a model of sequences, with model.length, got " +
        (has_network(config)
             ? "the network " + config["model"]["network"].get<std::string>()
             : "one of classification"));
  return tasks::config_as<models::SequenceModelConfig>(config.at("model"));
}

std::string described(const base::Json& model) {
  if (model.contains("network")) {
    std::string out;
    for (const auto& item : model.items())
      out += item.key() == "network"
                 ? item.value().get<std::string>()
                 : ", " + item.key() + " " + item.value().dump();
    return out;
  }
  const std::string body =
      model["mixer"].get<std::string>() + ", " + model["layers"].dump() +
      " layers of " + model["width"].dump() + ", " +
      (has_one_position(model)
           ? "one position a head (gumbel " + model["gumbel"].dump() + "), "
           : "");
  if (model.contains("length"))
    return body + "length " + model["length"].dump();
  const int64_t patch = model["patch"], rows = model["rows"],
                columns = model["columns"];
  return body + std::to_string(rows * patch) + "x" +
         std::to_string(columns * patch) + " in patches of " +
         std::to_string(patch) + ", " + model["classes"].dump() + " classes";
}

bool has_one_position(const base::Json& model) {
  return model.value("gumbel", 0.0) > 0;
}

std::string described(const nn::Sparsity& s, bool drawn) {
  char text[128];
  snprintf(text, sizeof(text),
           "entropy %.3f of %.3f nats, %.1f %% in the top position", s.entropy,
           s.most, 100 * s.top);
  return drawn ? "one position a head, drawn in training from softmax(w): " +
                     std::string(text)
               : text;
}

bool has_network(const base::Json& config) {
  return config.at("model").contains("network");
}

train::TrainConfig train_config(const base::Json& config) {
  return tasks::config_as<train::TrainConfig>(config.at("train"));
}

void add_sets(CLI::App& command, std::vector<std::string>& sets) {
  command
      .add_option("--set", sets,
                  "Change a key of the configuration, for example --set "
                  "model.window=64; as often as you like")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

CLI::Validator real(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) -> std::string {
        char* end = nullptr;
        const double x = std::strtod(text.c_str(), &end);
        if (!text.empty() && *end == 0 && x >= low && x <= high) return "";
        return "expected a number in [" + number(low) + ", " + number(high) +
               "], got '" + text + "'";
      },
      "");
}

void add_sampling(CLI::App& command, tasks::Sampling& sampling,
                  const std::string& seed) {
  command
      .add_option("--temperature", sampling.temperature,
                  "Below 1: safer; 0: always the likeliest; default: 1")
      ->check(real(0, 1000))
      ->type_name("X");
  command
      .add_option("--top-k", sampling.top_k,
                  "Only the N likeliest values; default: all")
      ->check(CLI::Range(0, 256).description(""))
      ->type_name("N");
  command
      .add_option("--top-p", sampling.top_p,
                  "Only the likeliest values that sum to X; default: 1")
      ->check(real(0, 1))
      ->type_name("X");
  command.add_option("--seed", sampling.seed, seed)->type_name("N");
}

void add_view(CLI::App& command, int64_t& size, double& crop) {
  command
      .add_option("--size", size,
                  "Classes: look at N x N pixels, a multiple of the patch; "
                  "default: the size of training")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}).description(""))
      ->type_name("N");
  command
      .add_option("--crop", crop,
                  "Classes: the share of a picture's side that is looked at; "
                  "1: all of it; default: data.crop, 0.875")
      ->check(real(0.05, 1))
      ->type_name("X");
}

void check_size(const std::string& command, int64_t size,
                const base::Json& model) {
  const int64_t patch = model.value("patch", int64_t{1});
  if (size % patch != 0)
    throw UsageError(command + ": --size must be a multiple of the model's " +
                     "patch, " + std::to_string(patch) + ", got " +
                     std::to_string(size));
}

namespace {

double now() {
  const std::chrono::duration<double> d =
      std::chrono::steady_clock::now().time_since_epoch();
  return d.count();
}

}  // namespace

void ProgressMeter::show(int64_t done, int64_t all) {
  const double time = now();
  const bool terminal = isatty(STDERR_FILENO), first = begun_ == 0;
  if (first) begun_ = shown_ = time, before_ = done;
  if (!first && done < all && time - shown_ < (terminal ? 0.1 : 10)) return;
  if ((first || done >= all) && !terminal) return;
  shown_ = time;
  const double rate =
      static_cast<double>(done - before_) / std::max(time - begun_, 1e-9);
  std::cerr << (terminal ? "\r" : "") << done << "/" << all << " " << unit_;
  if (done > before_)
    std::cerr << "  " << number(rate) << "/s  "
              << duration(static_cast<double>(all - done) / rate) << " left";
  std::cerr << (terminal ? "\033[K" : "\n") << std::flush;
  open_ = terminal;
}

ProgressMeter::~ProgressMeter() {
  if (open_) std::cerr << "\r\033[K" << std::flush;
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
