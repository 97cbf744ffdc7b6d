#include "aft/tasks/presets.h"

#include <algorithm>

#include "aft/base/escape.h"
#include "aft/io/json_file.h"
#include "aft/tasks/embedded.h"
#include "aft/tasks/task.h"

namespace aft::tasks {
namespace {

bool ends_with(std::string_view text, std::string_view ending) {
  return text.size() >= ending.size() &&
         text.substr(text.size() - ending.size()) == ending;
}

bool is_path(const std::string& what) {
  return what.find('/') != std::string::npos || ends_with(what, ".json");
}

constexpr std::string_view kDirectory = "presets/", kBase = "base/",
                           kEnding = ".json";

/// An embedded file: a preset, or a base of others in presets/base/.
struct Embedded {
  std::string name;
  bool base;
  std::string_view text;
};

const std::vector<Embedded>& embedded_files() {
  static const std::vector<Embedded> all = [] {
    std::vector<Embedded> out;
    for (const embedded::File& file : embedded::all()) {
      std::string_view name = file.name.substr(kDirectory.size());
      name.remove_suffix(kEnding.size());
      const bool base = name.substr(0, kBase.size()) == kBase;
      if (base) name.remove_prefix(kBase.size());
      out.push_back({std::string(name), base, file.content});
    }
    return out;
  }();
  return all;
}

[[noreturn]] void unknown_preset(const std::string& name) {
  std::vector<std::string> known;
  for (const Embedded& file : embedded_files())
    if (!file.base) known.push_back(file.name);
  const std::string near = base::nearest(name, known);
  throw UnknownPreset(
      "there is no preset '" + base::printable(name) + "'; " +
      (near.empty() ? "`aft presets` lists all" : "the nearest are " + near));
}

Json read(const std::string& what) {
  if (is_path(what)) return io::read_json_file(what);
  for (const Embedded& file : embedded_files())
    if (file.name == what) return Json::parse(file.text);
  unknown_preset(what);
}

/// `users`: the presets whose base this is, directly or not.
Preset load(const std::string& what, std::vector<std::string> users) {
  const std::string id = is_path(what) ? absolute(what) : what;
  if (std::find(users.begin(), users.end(), id) != users.end())
    throw base::ConfigError(what + " is its own base");
  users.push_back(id);
  Json j = read(what);
  const auto check = [&](bool good, const std::string& key,
                         const char* expected) {
    if (!good)
      throw base::ConfigError(what + ": " + key + " must be " + expected +
                              ", got " + base::kind_of(j[key]));
  };
  if (!j.is_object())
    throw base::ConfigError(what + ": expected an object {...}, got " +
                            base::kind_of(j));
  std::string parent;
  if (j.contains("base")) {
    check(j["base"].is_string(), "base", "the name of a preset or a file");
    parent = j["base"];
  }
  if (!j.contains("config")) {  // a plain configuration
    j.erase("base");
    j = Json{{"config", std::move(j)}};
  }
  Preset p;
  p.name = what;
  for (const auto& [key, value] : j.items()) {
    if (key == "about") {
      check(value.is_string(), key, "a string");
      p.about = value;
    } else if (key == "table") {
      base::detail::get(value.is_string() ? Json::array({value}) : value,
                        what + ": table", p.tables);
    } else if (key == "paper") {
      p.paper = value;
    } else if (key == "config") {
      check(value.is_object(), key, "an object {...}");
      p.config = value;
    } else if (key != "base") {
      throw base::ConfigError(what + ": unknown key '" + base::printable(key) +
                              "'; a preset has base, about, table, paper and "
                              "config");
    }
  }
  try {
    base::rename_keys(renamed_keys(), p.config);
    if (!parent.empty()) {
      if (is_path(parent) && parent[0] != '/')
        parent = what.substr(0, what.rfind('/') + 1) + parent;
      Json config = load(parent, users).config;
      base::merge(p.config, config);
      p.config = std::move(config);
    }
  } catch (const base::ConfigError& e) {
    throw base::ConfigError(what + ": " + e.what());
  }
  return p;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> out;
    for (const Embedded& file : embedded_files())
      if (!file.base) out.push_back(load(file.name, {}));
    std::sort(out.begin(), out.end(),
              [](const Preset& a, const Preset& b) { return a.name < b.name; });
    return out;
  }();
  return all;
}

const Preset& preset(const std::string& name) {
  for (const Preset& p : presets())
    if (p.name == name) return p;
  unknown_preset(name);
}

Preset load_preset(const std::string& what) {
  return is_path(what) ? load(what, {}) : preset(what);
}

}  // namespace aft::tasks
