#include "aft/tasks/initialise.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "aft/base/counted.h"
#include "aft/models/classifier.h"
#include "aft/models/weights.h"
#include "aft/tasks/class_names.h"
#include "aft/tasks/vit_weights.h"

namespace aft::tasks {
namespace {

bool has_ending(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() &&
         text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

bool is_bias(const std::string& name) {
  return has_ending(name, ".mixer.u") || has_ending(name, ".mixer.v") ||
         has_ending(name, ".mixer.w");
}

/// Throws io::Error unless the model in `path` has the task, the symbols and
/// the sizes of `to`.
void check_fits(const std::string& path, const Json& from, const Json& to) {
  const auto fail = [&](const std::string& expected, const std::string& got) {
    throw io::Error(path + ": its weights do not fit this model; expected " +
                    expected + ", got " + got);
  };
  if (from["task"] != to["task"])
    fail("task " + to["task"].dump(), from["task"].dump());
  for (const char* key : {"mode", "symbols"})
    if (to["data"].contains(key) && from["data"][key] != to["data"][key])
      fail("the same meaning of symbols, data." + std::string(key) + " " +
               to["data"][key].dump(),
           from["data"][key].dump());
  const Json &a = from["model"], &b = to["model"];
  std::string expected, got;
  const auto differs = [&](const std::string& key, const Json& x,
                           const Json& y) {
    if (x == y) return;
    expected += (expected.empty() ? "model." : ", model.") + key + " " +
                (y.is_null() ? "unset" : y.dump());
    got += (got.empty() ? "" : ", ") + (x.is_null() ? "unset" : x.dump());
  };
  for (const char* key : {"network", "layers", "width", "mlp", "vocabulary"})
    differs(key, a.value(key, Json()), b.value(key, Json()));
  if (!expected.empty()) fail(expected, got);
}

}  // namespace

torch::Tensor matching_tensor(
    const std::map<std::string, torch::Tensor>& tensors,
    const nn::MixerConfig& from, const nn::MixerConfig& to,
    const std::string& name) {
  const auto find = [&](const std::string& n) {
    const auto at = tensors.find(n);
    return at == tensors.end() ? torch::Tensor() : at->second;
  };
  const std::string value = ".mixer.value.";
  const size_t at = name.find(value);
  if (at != std::string::npos && from.traits().attention) {
    const torch::Tensor qkv = find(name.substr(0, at) + ".mixer.qkv." +
                                   name.substr(at + value.size()));
    return qkv.defined() ? qkv.chunk(3)[2] : qkv;
  }
  // w has a different meaning with and without the reparameterisation.
  if (is_bias(name) && from.traits().relative_biases &&
      (to.name != from.name ||
       from.get<bool>("naive") != to.get<bool>("naive")))
    return {};
  return find(name);
}

void copy_tensor(const torch::Tensor& from, const std::string& name,
                 torch::Tensor to, const std::vector<int64_t>& rows,
                 Transfer& out) {
  const size_t first = rows.empty() ? 0 : 1;
  if (!from.defined() || from.dim() != to.dim() ||
      from.sizes().slice(first) != to.sizes().slice(first))
    return out.fresh.push_back(name);
  if (rows.empty()) to.copy_(from);
  size_t copied = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) continue;
    to[static_cast<int64_t>(i)].copy_(from[rows[i]]);
    ++copied;
  }
  if (rows.empty() || copied > 0) out.copied.push_back(name);
  if (copied < rows.size()) out.fresh.push_back(name);
}

Transfer initialise(torch::nn::Module& model, Json& config,
                    const std::string& path) {
  auto* classifier = model.as<models::ClassifierImpl>();
  std::error_code none;
  if (!std::filesystem::is_directory(path, none)) {
    if (classifier) return initialise(*classifier, path);
    throw io::Error(path + ": expected the directory of a model");
  }
  const Json other = load_config(path);
  if (!classifier || other["task"] != config["task"])
    check_fits(path, other, config);
  const std::vector<int64_t> whole;
  std::vector<int64_t> rows;  // of a classification head
  if (config["task"] == "classification") rows = adopt_classes(config, other);
  if (classifier) return initialise(*classifier, path, rows);
  const std::shared_ptr<torch::nn::Module> source = make_model(other, path);
  load_weights(path, *source);
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& [name, x] : models::tensors_of(*source)) tensors[name] = x;
  const bool network = config["model"].contains("network");
  models::SequenceModelConfig from, to;
  if (!network) {
    from = config_as<models::SequenceModelConfig>(other["model"]);
    to = config_as<models::SequenceModelConfig>(config["model"]);
  }
  at::NoGradGuard no_grad;
  Transfer out;
  for (auto& [name, x] : models::tensors_of(model)) {
    torch::Tensor found =
        network ? tensors[name]
                : matching_tensor(tensors, from.mixer, to.mixer, name);
    torch::Tensor target = x;
    // Row t belongs to position t, and so does column t of a dense w.
    const int64_t by_position =
        network                                               ? 0
        : name == "positions"                                 ? 1
        : !is_bias(name) || to.mixer.traits().relative_biases ? 0
        : has_ending(name, "w")                               ? 2
                                                              : 1;
    for (int64_t i = 0;
         found.defined() && found.dim() == x.dim() && i < by_position; ++i) {
      const int64_t n = std::min(found.size(i), x.size(i));
      found = found.narrow(i, 0, n), target = target.narrow(i, 0, n);
    }
    const bool head = name.compare(0, 3, "fc.") == 0;
    copy_tensor(found, name, target, head ? rows : whole, out);
  }
  if (out.copied.empty())
    throw io::Error(path + ": no tensor of its weights fits this model");
  return out;
}

std::string summary(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (std::string name : names) {
    for (const std::string end : {".weight", ".bias"})
      if (has_ending(name, end)) name.resize(name.size() - end.size());
    if (name.compare(0, 7, "blocks_") == 0)
      name = "blocks" + name.substr(name.find('.'));
    if (std::find(parts.begin(), parts.end(), name) == parts.end())
      parts.push_back(name);
  }
  std::string out = base::counted(names.size(), "tensor");
  for (size_t i = 0; i < parts.size(); ++i)
    out += (i == 0 ? ": " : ", ") + parts[i];
  return out;
}

}  // namespace aft::tasks
