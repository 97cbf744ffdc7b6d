#include "aft/models/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace aft::models {
namespace {

/// Insertions, deletions and replacements from a to b.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = corner + (a[i - 1] != b[j - 1]);
      corner = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& word,
                    const std::vector<std::string>& known) {
  std::vector<std::pair<size_t, std::string>> by_distance;
  for (const std::string& k : known) {
    // The last part counts as well: "windw" is near to "model.window".
    const size_t dot = k.rfind('.');
    size_t d = distance(word, k);
    if (dot != std::string::npos)
      d = std::min(d, 1 + distance(word, k.substr(dot + 1)));
    by_distance.emplace_back(d, k);
  }
  std::stable_sort(
      by_distance.begin(), by_distance.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out;
  const size_t n = std::min<size_t>(3, by_distance.size());
  for (size_t i = 0; i < n; ++i)
    out += (i == 0 ? "" : i + 1 == n ? " or " : ", ") + by_distance[i].second;
  return out;
}

std::string shown(double x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

std::string kind_of(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return std::string(value.type_name()) + " " + text;
}

namespace detail {

void wrong_value(const std::string& where, const char* expected,
                 const Json& value) {
  throw ConfigError(where + " must be " + expected + ", got " + kind_of(value));
}

void unknown_key(const std::string& where, const std::string& key,
                 const std::vector<std::string>& known) {
  throw ConfigError("unknown key '" +
                    (where.empty() ? key : where + "." + key) +
                    "'; the nearest known ones are " + nearest(key, known));
}

}  // namespace detail

std::vector<std::string> paths(const Json& j, const std::string& where) {
  std::vector<std::string> out;
  for (const auto& item : j.items()) {
    const std::string path =
        where.empty() ? item.key() : where + "." + item.key();
    if (!item.value().is_object()) {
      out.push_back(path);
      continue;
    }
    for (const std::string& inner : paths(item.value(), path))
      out.push_back(inner);
  }
  return out;
}

void merge(const Json& change, Json& into, const std::string& where) {
  for (const auto& item : change.items()) {
    const std::string path =
        where.empty() ? item.key() : where + "." + item.key();
    Json& to = into[item.key()];
    if (!item.value().is_object()) {
      to = item.value();
      continue;
    }
    if (to.is_null()) to = Json::object();
    if (!to.is_object()) detail::wrong_value(path, "an object {...}", to);
    merge(item.value(), to, path);
  }
}

Json assignment(const std::string& text,
                const std::vector<std::string>& known) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError("expected key=value, for example model.window=64, got '" +
                      text + "'");
  }
  const std::string path = text.substr(0, equals),
                    value = text.substr(equals + 1);
  if (std::find(known.begin(), known.end(), path) == known.end()) {
    throw ConfigError("unknown key '" + path +
                      "'; the nearest known ones are " + nearest(path, known));
  }
  Json j = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (j.is_discarded()) j = value;
  for (size_t end = path.size(); end != std::string::npos;) {
    const size_t dot = path.rfind('.', end - 1);
    const size_t from = dot == std::string::npos ? 0 : dot + 1;
    j = Json{{path.substr(from, end - from), j}};
    end = dot;
  }
  return j;
}

Json read_json_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw ConfigError(path + ": cannot be opened: " + std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw ConfigError(path + ": cannot be read");
  constexpr int kDepth = 32;
  bool deep = false;
  const auto guard = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kDepth) deep = true;
    return !deep;
  };
  try {
    Json j = Json::parse(text.str(), guard);
    if (deep)
      throw ConfigError(path + ": nested deeper than " +
                        std::to_string(kDepth));
    return j;
  } catch (const Json::parse_error& e) {
    throw ConfigError(path + ": not JSON: " + e.what());
  }
}

}  // namespace aft::models
