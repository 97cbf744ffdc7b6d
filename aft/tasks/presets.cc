#include "aft/tasks/presets.h"

#include <algorithm>

#include "aft/tasks/embedded.h"

namespace aft::tasks {
namespace {

constexpr std::string_view kFolder = "presets/", kEnding = ".json";

}  // namespace

Preset parse_preset(const std::string& where, const base::Json& j) {
  Preset p;
  p.name = where;
  if (!j.is_object())
    throw base::ConfigError(where + ": expected an object {...}, got " +
                            base::kind_of(j));
  if (!j.contains("config")) {
    p.config = j;
    return p;
  }
  for (const auto& item : j.items()) {
    if (item.key() == "about" && item.value().is_string()) {
      p.about = item.value().get<std::string>();
    } else if (item.key() == "paper") {
      p.paper = item.value();
    } else if (item.key() == "config") {
      p.config = item.value();
    } else {
      throw base::ConfigError(where + ": unknown key '" + item.key() +
                              "'; a preset has about, paper and config");
    }
  }
  return p;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> out;
    for (const auto& file : embedded::all()) {
      const std::string name(file.name.substr(
          kFolder.size(), file.name.size() - kFolder.size() - kEnding.size()));
      out.push_back(parse_preset(name, base::Json::parse(file.content)));
    }
    std::sort(out.begin(), out.end(),
              [](const Preset& a, const Preset& b) { return a.name < b.name; });
    return out;
  }();
  return all;
}

const Preset& preset(const std::string& name) {
  std::vector<std::string> known;
  for (const Preset& p : presets()) {
    if (p.name == name) return p;
    known.push_back(p.name);
  }
  throw base::ConfigError("there is no preset '" + name +
                          "'; the nearest are " + base::nearest(name, known));
}

}  // namespace aft::tasks
