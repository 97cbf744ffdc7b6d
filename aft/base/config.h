// Configuration structs that list their fields once:
//
//   struct Size {
//     int64_t width = 256;
//     template <class Self, class F>
//     static void fields(Self& s, const F& f) { f("width", s.width, "size"); }
//   };
//
// The list provides conversion to and from JSON, `--set a.b=value`, and error
// messages that name the key, the expected value and the value found. An
// unknown key is an error. A field that was renamed may list its old key too,
// here "size": it is still read, but never written or shown.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace aft::base {

using Json = nlohmann::ordered_json;

struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the up to three entries of `known` closest to `word` by edit
/// distance, as "a, b or c".
std::string nearest(const std::string& word,
                    const std::vector<std::string>& known);
/// Formats a number for a message: 0.5, 1e+30.
std::string shown(double x);
/// Describes a JSON value for a message: its type and the start of its text.
std::string kind_of(const Json& value);

namespace detail {

struct Ignore {
  template <class X>
  void operator()(const char*, X&, const char* = nullptr) const {}
};
template <class C, class = void>
struct has_fields : std::false_type {};
template <class C>
struct has_fields<
    C, std::void_t<decltype(C::fields(std::declval<C&>(), Ignore()))>>
    : std::true_type {};

[[noreturn]] void wrong_value(const std::string& where, const char* expected,
                              const Json& value);
[[noreturn]] void unknown_key(const std::string& where, const std::string& key,
                              const std::vector<std::string>& known);

inline void get(const Json& j, const std::string& where, bool& x) {
  if (!j.is_boolean()) wrong_value(where, "true or false", j);
  x = j.get<bool>();
}
inline void get(const Json& j, const std::string& where, int64_t& x) {
  if (!j.is_number_integer()) wrong_value(where, "an integer", j);
  // get<int64_t>() would wrap larger values to negative ones.
  if (j.is_number_unsigned() && j.get<uint64_t>() > uint64_t{INT64_MAX})
    wrong_value(where, "an integer below 2^63", j);
  x = j.get<int64_t>();
}
inline void get(const Json& j, const std::string& where, double& x) {
  if (!j.is_number()) wrong_value(where, "a number", j);
  x = j.get<double>();
}
inline void get(const Json& j, const std::string& where, std::string& x) {
  if (!j.is_string()) wrong_value(where, "a string", j);
  x = j.get<std::string>();
}
inline void get(const Json& j, const std::string& where,
                std::vector<std::string>& x) {
  const auto text = [](const Json& each) { return each.is_string(); };
  if (!j.is_array() || !std::all_of(j.begin(), j.end(), text))
    wrong_value(where, "a list of strings [\"...\"]", j);
  x = j.get<std::vector<std::string>>();
}
/// Accepts any object, for callers that interpret its contents themselves.
inline void get(const Json& j, const std::string& where, Json& x) {
  if (!j.is_object()) wrong_value(where, "an object {...}", j);
  x = j;
}

}  // namespace detail

template <class C>
Json to_json(const C& c) {
  Json j = Json::object();
  C::fields(c, [&](const char* name, const auto& x, const char* = nullptr) {
    if constexpr (detail::has_fields<std::decay_t<decltype(x)>>::value) {
      j[name] = to_json(x);
    } else {
      j[name] = x;
    }
  });
  return j;
}

/// Pairs of an old path and the current one, such as "train.rate" and
/// "train.learning_rate".
using Renames = std::vector<std::pair<std::string, std::string>>;

/// The renamed fields of a configuration, including those of structs in it.
template <class C>
Renames renames(const C& c) {
  Renames all;
  C::fields(c, [&](const std::string& name, const auto& x,
                   const char* old = nullptr) {
    if (old) all.emplace_back(old, name);
    if constexpr (detail::has_fields<std::decay_t<decltype(x)>>::value)
      for (const auto& [before, now] : renames(x))
        all.emplace_back(name + "." + before, name + "." + now);
  });
  return all;
}

/// Replaces old keys in j by the current ones. `where` is the path to j. Throws
/// ConfigError if j has both.
void rename_keys(const Renames& renames, Json& j,
                 const std::string& where = "");

/// Sets the fields that `given` names, by their current or old keys, and leaves
/// the others unchanged. `where` is the path to `given`, "" at the top level.
/// Throws ConfigError.
template <class C>
void from_json(const Json& given, C& c, const std::string& where = "") {
  if (!given.is_object())
    detail::wrong_value(where.empty() ? "the configuration" : where,
                        "an object {...}", given);
  Json j = given;
  rename_keys(renames(c), j, where);
  std::vector<std::string> known;
  C::fields(c, [&](const char* name, auto& x, const char* = nullptr) {
    known.push_back(name);
    const auto at = j.find(name);
    if (at == j.end()) return;
    const std::string path = where.empty() ? name : where + "." + name;
    if constexpr (detail::has_fields<std::decay_t<decltype(x)>>::value) {
      from_json(*at, x, path);
    } else {
      detail::get(*at, path, x);
    }
  });
  for (const auto& item : j.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      detail::unknown_key(where, item.key(), known);
  }
}

/// Returns the paths of all values that are not objects, such as "model.width",
/// in order.
std::vector<std::string> paths(const Json& j, const std::string& where = "");

/// Overwrites the values in `into` with those in `change`, recursively. Throws
/// ConfigError if `change` has an object where `into` has another value.
void merge(const Json& change, Json& into, const std::string& where = "");

/// Checks the integers in the "model" section of a configuration. Throws
/// ConfigError if one exceeds the limits of any model: a number of layers that
/// would take forever to construct, or sizes whose products overflow.
void check_sizes(const Json& model);

/// Parses "model.window=64" into an object for from_json, with the current key
/// in place of a renamed one. The key must be one of the `known` paths; the
/// value is JSON, or a bare word, which is taken as a string. Throws
/// ConfigError, which suggests the nearest known paths.
Json assignment(const std::string& text, const std::vector<std::string>& known,
                const Renames& renames = {});

/// Parses JSON. Throws ConfigError for a syntax error (with its line), a
/// duplicate key, more than 32 levels of nesting or more than 1000 keys per
/// object.
Json parse_json(const std::string& text);

}  // namespace aft::base
