// Which systems a comparison is of.
#include "aft/tasks/presets.h"
#include "cli/commands.h"
#include "cli/commands/compare.h"
#include "cli/model.h"

namespace aft::cli {
namespace {

/// The words for lists of presets.
struct Table {
  const char *name, *prefix;
  const char* part;  ///< of what the preset says of itself, or of its name
  const char* about;
};
constexpr Table kTables[] = {
    {"enwik8", "enwik8-", "table of systems", "the paper's table on enwik8"},
    {"cifar10", "cifar10-", "table of systems", "its table on CIFAR-10"},
    {"imagenet", "imagenet-", "table of systems", "its table on ImageNet"},
    {"text", "text-", "4x128", "small ones on text"},
    {"image", "image-", "16x16", "small ones on pictures"},
    {"classify", "classify-", "small", "small ones on classes of pictures"}};

}  // namespace

std::string plain_name(const std::string& what) {
  return what.substr(what.find_last_of('/') + 1);
}

std::string lists_of_systems() {
  std::string out;
  for (const Table& t : kTables)
    out += std::string("  ") + t.name + ": " + t.about + "\n";
  return out;
}

std::vector<System> systems_of(const std::vector<std::string>& words,
                               const std::vector<std::string>& sets) {
  std::vector<std::string> names;
  for (const std::string& what : words) {
    const Table* table = nullptr;
    for (const Table& t : kTables)
      if (what == t.name) table = &t;
    if (!table) {
      names.push_back(what);
      continue;
    }
    for (const tasks::Preset& p : tasks::presets()) {
      if (p.name.rfind(table->prefix, 0) == 0 &&
          (p.name + p.about).find(table->part) != std::string::npos)
        names.push_back(p.name);
    }
  }
  std::vector<System> out;
  for (const std::string& name : names) {
    System s;
    s.name = plain_name(name);
    s.config = choose_config(name, sets);
    for (const tasks::Preset& p : tasks::presets())
      if (p.name == name) s.paper = p.paper;
    if (!out.empty() && out[0].config["task"] != s.config["task"])
      throw UsageError("compare: " + out[0].name + " is of task " +
                       out[0].config["task"].get<std::string>() + ", and " +
                       name + " of " + s.config["task"].get<std::string>() +
                       "; expected systems of one task");
    for (const System& other : out)
      if (other.name == s.name)
        throw UsageError("compare: " + s.name + " is named twice");
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace aft::cli
