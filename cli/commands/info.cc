// `aft info` and `aft presets`: parameters, state and memory of a model; the
// list of presets.
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>

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

void list(bool json) {
  if (json) {
    base::Json all = base::Json::array();
    for (const auto& p : tasks::presets())
      all.push_back({{"name", p.name},
                     {"about", p.about},
                     {"table", p.tables},
                     {"paper", p.paper},
                     {"config", p.config}});
    std::cout << all.dump(2) << '\n';
    return;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& p : tasks::presets()) {
    const auto figure = [&](const char* key) -> std::string {
      if (!p.paper.is_object() || !p.paper.contains(key)) return "-";
      std::string text = p.paper[key].dump();  // the paper prints 2.80, not 2.8
      while (text.size() < text.find('.') + 3) text += '0';
      return text;
    };
    const tasks::TaskKind& kind = tasks::task_kind(p.config);
    rows.push_back({p.name, p.about, kind.unit.empty() ? "top-1" : kind.unit,
                    figure("train"), figure("test")});
  }
  std::cout << table({"preset", "what", "unit", "paper: train", "test"}, rows,
                     3);
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

  auto json = std::make_shared<bool>(false);
  CLI::App* presets = app.add_subcommand(
      "presets", "List the presets, with the paper's results");
  presets->add_flag("--json", *json, "Print a JSON array");
  presets->footer("Example:\n  aft presets");
  presets->callback([json] { list(*json); });
}

}  // namespace aft::cli
