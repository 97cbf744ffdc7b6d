#include "aft/base/config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "aft/base/escape.h"

namespace aft::base {
namespace {

/// The edit distance between a and b: insertions, deletions and replacements.
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

/// The end of a message about an unknown key.
std::string suggestion(const std::string& key,
                       const std::vector<std::string>& known) {
  const std::string near = nearest(key, known);
  return near.empty() ? "" : "; the nearest known ones are " + near;
}

std::string cut(const std::string& text, size_t limit) {
  return text.size() > limit ? text.substr(0, limit - 3) + "..." : text;
}

// Larger than any valid configuration. Deeper nesting could overflow the stack
// of functions that recurse over JSON. More keys would take quadratic time,
// because ordered_json looks them up linearly.
constexpr int kDepth = 32;
constexpr size_t kKeys = 1000;

/// Throws ConfigError if the text exceeds a limit, Json::exception if it is not
/// JSON.
Json parse(const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of the enclosing objects
  const auto guard = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDepth)
      throw ConfigError("nested deeper than " + std::to_string(kDepth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event != Json::parse_event_t::key) return true;
    const std::string& key = value.get_ref<const std::string&>();
    if (!keys.back().insert(key).second)
      throw ConfigError("the key '" + printable(key) +
                        "' must be unique, got it twice");
    if (keys.back().size() > kKeys)
      throw ConfigError("an object must have at most " + std::to_string(kKeys) +
                        " keys, got more");
    return true;
  };
  return Json::parse(text, guard);
}

/// The message of nlohmann-json without the exception number.
std::string reason(const Json::exception& e) {
  const std::string what = e.what();
  const size_t number = what.find("] ");
  return printable(number == std::string::npos ? what : what.substr(number + 2),
                   300);
}

}  // namespace

std::string nearest(const std::string& given,
                    const std::vector<std::string>& known) {
  // Bounds the cost: a key in a file may have many megabytes.
  const std::string word = given.substr(0, 100);
  std::vector<std::pair<size_t, std::string>> by_distance;
  for (const std::string& k : known) {
    // Also compare the last component: "windw" is close to "model.window".
    const size_t dot = k.rfind('.');
    size_t d = distance(word, k);
    if (dot != std::string::npos)
      d = std::min(d, 1 + distance(word, k.substr(dot + 1)));
    if (word.size() >= 3 && k.compare(0, word.size(), word) == 0)
      d = std::min<size_t>(d, 2);  // its beginning
    by_distance.emplace_back(d, k);
  }
  std::stable_sort(
      by_distance.begin(), by_distance.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out;
  // Words that are further away have little in common.
  const size_t limit = std::max<size_t>(2, word.size() / 3);
  size_t n = 0;
  while (n < std::min<size_t>(3, by_distance.size()) &&
         by_distance[n].first <= limit)
    ++n;
  for (size_t i = 0; i < n; ++i)
    out += (i == 0       ? ""
            : i + 1 == n ? " or "
                         : ", ") +
           printable(by_distance[i].second);
  return out;
}

std::string shown(double x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

std::string kind_of(const Json& value) {
  // ASCII only, for the same reason as in printable(), and so that it can be
  // truncated at any byte.
  return std::string(value.type_name()) + " " +
         cut(value.dump(-1, ' ', true, Json::error_handler_t::replace), 40);
}

namespace detail {

void wrong_value(const std::string& where, const char* expected,
                 const Json& value) {
  // The parser makes integers beyond 2^64 floating-point.
  const bool large =
      value.is_number_float() && !(std::abs(value.get<double>()) < 0x1p63);
  const bool integer = std::string(expected) == "an integer";
  throw ConfigError(printable(where) + " must be " + expected +
                    (large && integer ? " below 2^63" : "") + ", got " +
                    kind_of(value));
}

void unknown_key(const std::string& where, const std::string& key,
                 const std::vector<std::string>& known) {
  throw ConfigError("unknown key '" +
                    printable(where.empty() ? key : where + "." + key) + "'" +
                    suggestion(key, known));
}

}  // namespace detail

void rename_keys(const Renames& renames, Json& j, const std::string& where) {
  const std::string prefix = where.empty() ? "" : where + ".";
  const auto pointer = [](std::string path) {
    std::replace(path.begin(), path.end(), '.', '/');
    return Json::json_pointer("/" + path);
  };
  for (const auto& [old, name] : renames) {
    const Json::json_pointer from = pointer(old), to = pointer(name);
    if (!j.contains(from)) continue;
    if (j.contains(to))
      throw ConfigError(prefix + old + " is the old name of " + prefix + name +
                        "; expected one of them, got both");
    Json value = j[from];  // a copy: j[to] may move what is in j
    j[to] = std::move(value);
    j[from.parent_pointer()].erase(from.back());
  }
}

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

void check_sizes(const Json& model) {
  constexpr int64_t kMostLayers = 10000, kMost = int64_t{1} << 31;
  for (const auto& item : model.items()) {
    if (!item.value().is_number_integer()) continue;
    const std::string& key = item.key();
    const bool layers = key == "layers" || key == "blocks" || key == "resnets";
    const int64_t most = layers ? kMostLayers : kMost, least = -kMost,
                  value = item.value().get<int64_t>();
    const auto refuse = [&](const char* limit, int64_t of) {
      throw ConfigError("model." + printable(key) + " must be " + limit +
                        std::to_string(of) + ", got " + std::to_string(value));
    };
    if (value > most) refuse("at most ", most);
    if (value < least) refuse("at least ", least);
  }
}

Json assignment(const std::string& text, const std::vector<std::string>& known,
                const Renames& renames) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError("expected key=value, for example model.window=64, got '" +
                      printable(text) + "'");
  }
  std::string path = text.substr(0, equals);
  const std::string value = text.substr(equals + 1);
  for (const auto& [old, name] : renames)
    if (path == old) path = name;
  if (std::find(known.begin(), known.end(), path) == known.end()) {
    throw ConfigError("unknown key '" + printable(path) + "'" +
                      suggestion(path, known));
  }
  Json j;
  try {
    j = parse(value);
  } catch (const Json::exception&) {
    j = value;
    try {
      j.dump();  // fails if not UTF-8, which JSON requires
    } catch (const Json::exception&) {
      throw ConfigError(printable(path) + " must be UTF-8, got '" +
                        printable(value) + "'");
    }
  } catch (const ConfigError& e) {
    throw ConfigError(printable(path) + ": " + e.what());
  }
  for (size_t end = path.size(); end != std::string::npos;) {
    const size_t dot = path.rfind('.', end - 1);
    const size_t from = dot == std::string::npos ? 0 : dot + 1;
    j = Json{{path.substr(from, end - from), j}};
    end = dot;
  }
  return j;
}

Json parse_json(const std::string& text) {
  try {
    return parse(text);
  } catch (const Json::exception& e) {
    throw ConfigError("not JSON: " + reason(e));
  }
}

}  // namespace aft::base
