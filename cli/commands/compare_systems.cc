// Resolves the arguments of `aft compare` to systems.
#include <algorithm>

#include "aft/tasks/presets.h"
#include "cli/commands.h"
#include "cli/commands/compare.h"
#include "cli/model.h"

namespace aft::cli {
namespace {

/// The names that stand for the presets with that "table".
struct Table {
  const char *name, *about;
};
constexpr Table kTables[] = {
    {"enwik8", "the paper's table on enwik8"},
    {"enwik8-window", "window sizes of AFT-local on enwik8"},
    {"enwik8-length", "sequence lengths on enwik8"},
    {"cifar10", "the paper's table on CIFAR-10"},
    {"cifar10-factorisation", "factorised and full biases on CIFAR-10"},
    {"imagenet", "the paper's table on ImageNet"},
    {"imagenet-kernel", "kernel sizes of AFT-conv on ImageNet"},
    {"imagenet-query", "AFT-conv with and without the query"},
    {"imagenet-factorisation", "factorised and full biases on ImageNet"},
    {"imagenet-reparameterisation", "AFT-conv with w learned directly"},
    {"imagenet-transfer", "fine-tuning at 384 pixels"},
    {"text", "small models of text"},
    {"image", "small models of images"},
    {"classify", "small classifiers"}};

bool has(const std::vector<std::string>& tables, const std::string& table) {
  return std::find(tables.begin(), tables.end(), table) != tables.end();
}

}  // namespace

std::string base_name(const std::string& what) {
  return what.substr(what.find_last_of('/') + 1);
}

std::string tables_of_systems() {
  std::string out;
  for (const Table& t : kTables)
    out += std::string("  ") + t.name + ": " + t.about + "\n";
  return out;
}

std::vector<ComparedSystem> compared_systems(
    const std::vector<std::string>& words,
    const std::vector<std::string>& sets) {
  std::vector<std::string> names;
  for (const std::string& word : words) {
    const size_t before = names.size();
    for (const tasks::Preset& p : tasks::presets())
      if (has(p.tables, word)) names.push_back(p.name);
    if (names.size() == before) names.push_back(word);
  }
  std::vector<ComparedSystem> out;
  for (const std::string& name : names) {
    ComparedSystem s;
    s.name = base_name(name);
    s.config = choose_config(name, sets);
    if (!is_directory(name)) s.paper = tasks::load_preset(name).paper;
    if (!out.empty() && out[0].config["task"] != s.config["task"])
      throw UsageError("compare: " + out[0].name + " is of task " +
                       out[0].config["task"].get<std::string>() + ", and " +
                       name + " of " + s.config["task"].get<std::string>() +
                       "; expected systems of one task");
    for (const ComparedSystem& other : out)
      if (other.name == s.name)
        throw UsageError("compare: " + s.name + " is named twice");
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace aft::cli
