#include "cli/model.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "aft/base/counted.h"
#include "aft/base/escape.h"
#include "aft/io/run_directory.h"
#include "aft/nn/mixer.h"
#include "aft/tasks/presets.h"
#include "cli/commands.h"
#include "cli/table.h"

namespace aft::cli {

bool is_directory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

void prepare_output(const std::string& option, const std::string& path) {
  if (io::RunDirectory::owns(path))
    throw UsageError(option + ": " + path +
                     " is a file of a run directory, which would be lost; "
                     "choose another name");
  io::prepare_file(path);
}

namespace {

/// Sets keys of `given`. `config` is `given` with all defaults.
base::Json with_sets(base::Json given, const base::Json& config,
                     const std::vector<std::string>& sets) {
  if (sets.empty()) return config;
  const tasks::TaskKind& kind = tasks::task_kind(config);
  // Keys that follow from others are derived again.
  for (const std::string& key : kind.derived)
    if (given.contains("model")) given["model"].erase(key);
  std::vector<std::string> known = base::paths(config);
  // The options of other mixers, one of which may be chosen.
  if (!has_network(config))
    for (const std::string& key : nn::mixer_keys())
      if (std::find(known.begin(), known.end(), "model." + key) == known.end())
        known.push_back("model." + key);
  try {
    for (const std::string& set : sets) {
      const base::Json change = [&] {
        try {
          return base::assignment(set, known, tasks::renamed_keys());
        } catch (const base::ConfigError& e) {
          throw UsageError("--set: " + std::string(e.what()));
        }
      }();
      if (tasks::task_kind(change.contains("task") ? change : config).name !=
          kind.name)
        throw base::ConfigError("task is " + kind.name +
                                " and cannot be changed");
      if (change.contains("model") && change["model"].contains("network") &&
          change["model"]["network"] != config["model"]["network"])
        throw base::ConfigError("model.network is " +
                                config["model"]["network"].dump() +
                                " and cannot be changed");
      base::merge(change, given);
    }
    return kind.complete(given);
  } catch (const base::ConfigError& e) {
    throw base::ConfigError("--set: " + std::string(e.what()));
  }
}

}  // namespace

base::Json preset_config(const std::string& what,
                         const std::vector<std::string>& sets) {
  const tasks::Preset preset = tasks::load_preset(what);
  base::Json config;
  try {
    config = tasks::task_kind(preset.config).complete(preset.config);
  } catch (const base::ConfigError& e) {
    throw base::ConfigError(what + ": " + e.what());
  }
  return with_sets(preset.config, config, sets);
}

base::Json directory_config(const std::string& directory,
                            const std::vector<std::string>& sets) {
  const base::Json config = tasks::load_config(directory);
  return with_sets(config, config, sets);
}

base::Json apply_sets(const base::Json& given,
                      const std::vector<std::string>& sets) {
  return with_sets(given, tasks::task_kind(given).complete(given), sets);
}

base::Json choose_config(const std::string& what,
                         const std::vector<std::string>& sets) {
  return is_directory(what) ? directory_config(what, sets)
                            : preset_config(what, sets);
}

models::SequenceModelConfig model_config(const base::Json& config) {
  if (config["task"] == "classification" || has_network(config))
    throw UsageError(
        "expected a sequence model, with model.length, got " +
        (has_network(config)
             ? "the network " + config["model"]["network"].get<std::string>()
             : "a classifier"));
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
      model["mixer"].get<std::string>() + ", " +
      base::counted(model["layers"].get<int64_t>(), "layer") + " of " +
      model["width"].dump() + ", " +
      (has_one_position(model)
           ? "one position per head (gumbel " + model["gumbel"].dump() + "), "
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
  return drawn ? "one position per head, sampled from softmax(w) in "
                 "training: " +
                     std::string(text)
               : text;
}

void report_weights(const std::string& directory) {
  const tasks::Weights weights = tasks::weights_of(directory);
  if (weights.step < 0) return;  // imported
  std::cerr << directory << ": weights of step " << weights.step << ", "
            << (!weights.best        ? "not validated yet"
                : weights.checkpoint ? "the best by validation, where training "
                                       "was stopped"
                                     : "the best by validation")
            << '\n';
}

std::string read_text_input() {
  const std::string text = io::read_standard_input(size_t{1} << 30);
  if (text.empty()) throw io::Error("the standard input: is empty");
  return text;
}

data::Text open_text(const std::string& path, const std::string& mode,
                     const std::string& symbols) {
  if (path != "-") return data::Text::open(path, mode, symbols);
  try {
    return data::Text::from(read_text_input(), mode, symbols);
  } catch (const data::DataError& e) {
    throw data::DataError("the standard input: " + std::string(e.what()));
  }
}

bool has_network(const base::Json& config) {
  return config.at("model").contains("network");
}

train::TrainConfig train_config(const base::Json& config) {
  return tasks::config_as<train::TrainConfig>(config.at("train"));
}

CLI::Option* add_text(CLI::App& command, const std::string& name,
                      std::string& value, const std::string& type,
                      const std::string& help) {
  return command.add_option(name, value, help)->type_name(type);
}

CLI::Option* add_texts(CLI::App& command, const std::string& name,
                       std::vector<std::string>& values,
                       const std::string& type, const std::string& help) {
  return command.add_option(name, values, help)
      ->type_name(type)
      ->allow_extra_args(false);
}

void add_batch(CLI::App& command, int64_t& batch, const std::string& what) {
  add_count(command, "--batch", batch,
            what + " per batch; default: " + std::to_string(batch), 1, 1 << 20);
}

void add_model(CLI::App& command, std::string& model) {
  command.add_option("model", model, "Model directory")->required();
}

void add_split(CLI::App& command, std::string& data, std::string& split,
               const std::string& what, const std::string& splits) {
  add_text(command, "--data", data, "PATH",
           what + "; default: the data that the model was trained on");
  add_text(command, "--split", split, "NAME", splits)
      ->check(one_of({"train", "valid", "test", "all"}));
}

void add_sets(CLI::App& command, std::vector<std::string>& sets) {
  add_texts(command, "--set", sets, "KEY=VALUE",
            "Change a key of the configuration, for example --set "
            "model.window=64; may be repeated");
}

CLI::Validator real(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) -> std::string {
        char* end = nullptr;
        const double x = std::strtod(text.c_str(), &end);
        if (!text.empty() && *end == 0 && x >= low && x <= high) return "";
        // Plain numbers: the limits are round.
        const auto plain = [](double x) {
          std::ostringstream out;
          out.precision(10);
          out << x;
          return out.str();
        };
        return "expected a number in [" + plain(low) + ", " + plain(high) +
               "], got '" + base::printable(text) + "'";
      },
      "");
}

CLI::Option* add_real(CLI::App& command, const std::string& name, double& value,
                      const std::string& help, double low, double high) {
  return command.add_option(name, value, help)
      ->check(real(low, high))
      ->type_name("X");
}

void add_sampling(CLI::App& command, tasks::Sampling& sampling,
                  const std::string& seed) {
  add_real(command, "--temperature", sampling.temperature,
           "Sampling temperature; 0: always the most likely value; default: 1",
           0, 1000);
  add_count(command, "--top-k", sampling.top_k,
            "Sample from the N most likely values; 0 or default: all", 0, 256);
  add_real(command, "--top-p", sampling.top_p,
           "Sample from the most likely values with total probability X; 0: "
           "always the most likely one; default: 1",
           0, 1);
  add_seed(command, sampling.seed, seed);
}

void add_view(CLI::App& command, int64_t& size, double& crop) {
  add_count(command, "--size", size,
            "Classification: scale images to N x N pixels, a multiple of the "
            "patch size; default: as in training",
            1, 4096);
  add_real(command, "--crop", crop,
           "Classification: the fraction of each image side that is kept; "
           "default: data.crop, 0.875",
           0.05, 1);
}

void check_size(const std::string& command, int64_t size,
                const base::Json& model) {
  const int64_t patch = model.value("patch", int64_t{1});
  if (size % patch != 0)
    throw UsageError(command +
                     ": --size must be a multiple of the model's patch size, " +
                     std::to_string(patch) + ", got " + std::to_string(size));
}

namespace {

double now() {
  const std::chrono::duration<double> d =
      std::chrono::steady_clock::now().time_since_epoch();
  return d.count();
}

}  // namespace

void ProgressMeter::show(int64_t done, int64_t all) {
  const size_t columns = terminal_columns();
  const double time = now();
  const bool first = begun_ == 0;
  if (first) begun_ = shown_ = time, before_ = done;
  if (!first && done < all && time - shown_ < (columns > 0 ? 0.1 : 10)) return;
  if ((first || done >= all) && columns == 0) return;
  shown_ = time;
  std::vector<Field> fields{
      {std::to_string(done) + "/" + std::to_string(all) + " " + unit_, 3}};
  if (done > before_) {
    const double rate =
        static_cast<double>(done - before_) / std::max(time - begun_, 1e-9);
    fields.push_back({number(rate) + "/s", 1});
    fields.push_back(
        {duration(static_cast<double>(all - done) / rate) + " left", 2});
  }
  const std::string line = fitted(std::move(fields), columns);
  if (columns > 0) {
    overwrite_line(line, columns);
  } else {
    std::cerr << line + "\n";
  }
  open_ = columns > 0;
}

ProgressMeter::~ProgressMeter() {
  if (open_) overwrite_line("", 1);
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
