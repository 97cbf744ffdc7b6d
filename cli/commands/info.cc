// `aft info` and `aft presets`: what a model is before and after training.
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>

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

/// Parameters by part: embedding, positions, mixer, mlp, norms, head.
std::string part_of(const std::string& name) {
  if (name.find("mixer") != std::string::npos) return "mixers";
  if (name.find(".fc") != std::string::npos) return "mlps";
  if (name.find("norm") != std::string::npos) return "norms";
  return name.substr(0, name.find('.'));
}

/// What decides how much memory the training of a chain of mixers takes.
struct Shape {
  std::string mixer;
  int64_t layers, width, length, mlp, heads;
  int64_t outputs;  // numbers a token that the head says
};

Shape shape(const base::Json& m) {
  const bool sequence = m.contains("length");
  return {m["mixer"],
          m["layers"],
          m["width"],
          sequence ? m["length"].get<int64_t>()
                   : m["rows"].get<int64_t>() * m["columns"].get<int64_t>(),
          m["mlp"],
          m["heads"],
          sequence ? m["vocabulary"].get<int64_t>() : 0};
}

/// Bytes that a training process needs, about: the program, weights, gradients
/// and two moments, and for each token what the layers keep for backward.
/// Fitted to what `aft-bench train` measures; within 30 % of that. 0: not
/// known, of networks and mixers other than AFT and attention.
double training_bytes(const base::Json& model, const train::TrainConfig& t,
                      double parameters) {
  const std::string kind = model.value("mixer", "");
  if (kind != "attention" && kind.rfind("aft-", 0) != 0) return 0;
  const Shape m = shape(model);
  const double tokens =
                   static_cast<double>(t.batch) * static_cast<double>(m.length),
               d = static_cast<double>(m.width),
               mlp = static_cast<double>(m.mlp),
               layers = static_cast<double>(m.layers);
  // Inputs of both norms, their results, q, k, v, r, den, y, the inside of the
  // MLP; what backward holds of one layer while it is there.
  double kept = d * (12 + mlp);
  if (m.mixer == "attention") {
    kept = d * (10 + mlp) +
           2.5 * static_cast<double>(m.heads) * static_cast<double>(m.length);
  }
  const double passing = kept + 5.0 * static_cast<double>(m.outputs);
  return 2e8 + 4 * (4 * parameters +
                    tokens * (layers * (t.recompute ? d : kept) + passing));
}

/// What one stream of a model of sequences holds after model.length positions.
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
               memory =
                   training_bytes(config, recipe, static_cast<double>(all));
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
    std::cout << "state of a stream: " << count(bytes) << "B"
              << (nn::keeps_all(config["mixer"]) ? " at the model's length"
                                                 : ", however long")
              << "\n";
  if (memory > 0)
    std::cout << "training memory: about " << count(memory) << "B at batch "
              << recipe.batch << "\n";
}

void list(bool json) {
  if (json) {
    base::Json all = base::Json::array();
    for (const auto& p : tasks::presets())
      all.push_back({{"name", p.name},
                     {"about", p.about},
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
      "info", "What a preset or a model is: parameters, state, memory");
  command->add_option("what", o->what, "A preset, a JSON file or a directory")
      ->required();
  add_sets(*command, o->sets);
  command->add_flag("--json", o->json, "A JSON object instead of a table");
  command->footer(
      "Examples:\n"
      "  aft info enwik8-aft-local-24x256\n"
      "  aft info text-aft-conv-6x256 --set model.window=64 --json");
  command->callback([o] { info(*o); });

  auto json = std::make_shared<bool>(false);
  CLI::App* presets = app.add_subcommand(
      "presets", "List the presets, with the paper's figures");
  presets->add_flag("--json", *json, "A JSON array instead of a table");
  presets->footer("Example:\n  aft presets");
  presets->callback([json] { list(*json); });
}

}  // namespace aft::cli
