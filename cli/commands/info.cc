// `aft info` and `aft presets`: parameters, state and memory of a model; the
// list of presets.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "aft/nn/mixer.h"
#include "aft/tasks/memory_estimate.h"
#include "aft/tasks/memory_limit.h"
#include "aft/tasks/presets.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::string what;
  std::vector<std::string> sets;
  bool json = false;
};

/// The part of a model that a parameter belongs to: embedding, positions,
/// mixers, mlps, norms, head.
std::string part_of(const std::string& name) {
  if (name.find("mixer") != std::string::npos) return "mixers";
  if (name.find(".fc") != std::string::npos) return "mlps";
  if (name.find("norm") != std::string::npos) return "norms";
  return name.substr(0, name.find('.'));
}

/// The state of one stream of a sequence model after model.length positions.
double state_bytes(torch::nn::Module& module) {
  const auto* model = module.as<models::SequenceModelImpl>();
  if (!model) return 0;
  double bytes = 0;
  const models::SequenceModelState state =
      tasks::within_memory([&] { return model->start(1); });
  for (const ops::Stream& s : state.layers) {
    bytes += static_cast<double>(s.bytes());
    if (!s.grows()) continue;
    for (const torch::Tensor& ring : {s.ring_k, s.ring_v})
      bytes += static_cast<double>(model->config.length * ring.size(2)) *
               static_cast<double>(ring.element_size());
  }
  return bytes;
}

void info(const Options& o) {
  const base::Json whole = choose_config(o.what, o.sets),
                   &config = whole["model"];
  const train::TrainConfig recipe = train_config(whole);
  const auto model = tasks::make_model(
      whole, is_directory(o.what) && o.sets.empty() ? o.what : "");
  std::map<std::string, int64_t> parts;
  int64_t all = 0, layer = 0, mixer = 0;  // mixer: of one layer
  for (const auto& p : model->named_parameters()) {
    parts[part_of(p.key())] += p.value().numel();
    all += p.value().numel();
    if (p.key().compare(0, 9, "blocks_0.") == 0) layer += p.value().numel();
    if (p.key().compare(0, 15, "blocks_0.mixer.") == 0)
      mixer += p.value().numel();
  }
  const bool network = has_network(whole);
  const double bytes = state_bytes(*model),
               memory = tasks::training_bytes(whole, static_cast<double>(all));
  if (o.json) {
    base::Json j{{"name", o.what}, {"parameters", all}};
    if (!network)
      j["parameters_per_layer"] = layer, j["parameters_per_mixer"] = mixer;
    if (bytes > 0) j["state_bytes"] = bytes;
    if (memory > 0) j["training_bytes"] = memory;
    for (const auto& [name, n] : parts) j["parts"][name] = n;
    j["config"] = whole;
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::cout << o.what << ": " << described(config) << "\n\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, n] : parts) rows.push_back({name, std::to_string(n)});
  rows.push_back({"all", std::to_string(all)});
  if (!network) {
    rows.push_back({"one layer", std::to_string(layer)});
    rows.push_back({"its mixer", std::to_string(mixer)});
  }
  std::cout << table({"part", "parameters"}, rows, 1) << "\n";
  if (bytes > 0)
    std::cout << "state per stream: " << count(bytes) << "B"
              << (nn::mixer_traits(config["mixer"]).grows
                      ? " at the model's length"
                      : ", at any length")
              << "\n";
  if (memory > 0)
    std::cout << "training memory: about " << count(memory) << "B at batch "
              << recipe.batch_size << "\n";
}

struct ListOptions {
  std::vector<std::string> words;
  bool json = false;
};

std::string lower(std::string text) {
  for (char& c : text)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// The presets whose name, task or description contains all words.
std::vector<tasks::Preset> matching(const std::vector<std::string>& words) {
  std::vector<tasks::Preset> out;
  for (const tasks::Preset& p : tasks::presets()) {
    const std::string text =
        lower(p.name + "\n" + tasks::task_kind(p.config).name + "\n" + p.about);
    if (std::all_of(words.begin(), words.end(), [&](const std::string& word) {
          return text.find(lower(word)) != std::string::npos;
        }))
      out.push_back(p);
  }
  return out;
}

/// Whether the preset is for a data set of the paper. The others, for any data,
/// are small.
bool for_a_known_data_set(const tasks::Preset& preset) {
  return !preset.config.value("/data/path"_json_pointer, "").empty();
}

/// Prints a table of at most 100 columns if `presets` is not empty.
void print_presets(const std::string& title,
                   const std::vector<tasks::Preset>& presets) {
  if (presets.empty()) return;
  const auto figure = [](const tasks::Preset& p, const char* key) {
    if (!p.paper.is_object() || !p.paper.contains(key)) return std::string("-");
    std::string text = p.paper[key].dump();  // the paper prints 2.80, not 2.8
    while (text.size() < text.find('.') + 3) text += '0';
    return text;
  };
  const bool paper = for_a_known_data_set(presets[0]);
  std::vector<std::string> header = {"preset", "what"};
  if (paper) header.insert(header.end(), {"paper: train", "test"});
  size_t name = 0;
  for (const auto& p : presets) name = std::max(name, p.name.size());
  const size_t width = 100 - name - (paper ? 24 : 2);  // of the second column
  std::vector<std::vector<std::string>> rows;
  for (const auto& p : presets) {
    std::vector<std::string> lines = {""};
    std::istringstream words(p.about);
    for (std::string word; words >> word; lines.back() += word) {
      if (lines.back().empty()) continue;
      if (lines.back().size() + 1 + word.size() > width)
        lines.emplace_back();
      else
        lines.back() += ' ';
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      rows.push_back({i == 0 ? p.name : "", lines[i]});
      if (paper && i == 0)
        rows.back().insert(rows.back().end(),
                           {figure(p, "train"), figure(p, "test")});
      else if (paper)
        rows.back().resize(4);
    }
  }
  std::cout << title << "\n\n" << table(header, rows, 2) << "\n";
}

void list(const ListOptions& o) {
  const std::vector<tasks::Preset> found = matching(o.words);
  if (o.json) {
    base::Json all = base::Json::array();
    for (const auto& p : found)
      all.push_back({{"name", p.name},
                     {"about", p.about},
                     {"table", p.tables},
                     {"paper", p.paper},
                     {"config", p.config}});
    std::cout << all.dump(2) << '\n';
    return;
  }
  if (found.empty())
    throw std::runtime_error(
        "presets: no name, task or description has all these words; "
        "`aft presets` lists all presets");
  for (const tasks::TaskKind& kind : tasks::task_kinds()) {
    std::vector<tasks::Preset> small, large;
    for (const auto& p : found)
      if (tasks::task_kind(p.config).name == kind.name)
        (for_a_known_data_set(p) ? large : small).push_back(p);
    print_presets("Task " + kind.name, small);
    print_presets("Task " + kind.name + ", the paper's models; " +
                      (kind.unit.empty() ? "training loss and top-1 accuracy"
                                         : "figures in " + kind.unit),
                  large);
  }
}

}  // namespace

void add_info(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "info", "Show parameters, state and memory of a preset or a model");
  command
      ->add_option("what", o->what,
                   "A preset, a JSON file or a model directory")
      ->required();
  add_sets(*command, o->sets);
  command->add_flag("--json", o->json, "Print a JSON object");
  command->footer(
      "Examples:\n"
      "  aft info enwik8-aft-local-24x256\n"
      "  aft info text-aft-conv-6x256 --set model.window=64 --json");
  command->callback([o] { info(*o); });

  auto l = std::make_shared<ListOptions>();
  CLI::App* presets = app.add_subcommand(
      "presets",
      "List the presets by task, small ones first, with the paper's results");
  presets->add_option("words", l->words,
                      "Only presets whose name, task or description contains "
                      "all these words");
  presets->add_flag("--json", l->json, "Print a JSON array");
  presets->footer(
      "Examples:\n"
      "  aft presets\n"
      "  aft presets text\n"
      "  aft presets imagenet conv");
  presets->callback([l] { list(*l); });
}

}  // namespace aft::cli
