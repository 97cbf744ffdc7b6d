// Configurations as plain structs that name their fields once:
//
//   struct Size {
//     int64_t width = 256;
//     template <class Self, class F>
//     static void fields(Self& s, const F& f) { f("width", s.width); }
//   };
//
// From that: JSON both ways, `--set a.b=value`, and errors that name the key,
// what was expected and what came. A key that nobody knows is an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace aft::models {

using Json = nlohmann::ordered_json;

struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Up to three of `known` that are nearest to `word`, as "a, b or c".
std::string nearest(const std::string& word,
                    const std::vector<std::string>& known);
/// A number for messages: 0.5, 1e+30.
std::string shown(double x);
/// "a number" and the like: what a JSON value is, for messages.
std::string kind_of(const Json& value);

namespace detail {

struct Ignore {
  template <class X>
  void operator()(const char*, X&) const {}
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
  if (!j.is_number_integer()) wrong_value(where, "a whole number", j);
  // What is above int64_t would come out negative.
  if (j.is_number_unsigned() && j.get<uint64_t>() > uint64_t{INT64_MAX})
    wrong_value(where, "a whole number below 2^63", j);
  x = j.get<int64_t>();
}
inline void get(const Json& j, const std::string& where, double& x) {
  if (!j.is_number()) wrong_value(where, "a number", j);
  x = j.get<double>();
}
inline void get(const Json& j, const std::string& where, std::string& x) {
  if (!j.is_string()) wrong_value(where, "a text in quotes", j);
  x = j.get<std::string>();
}
inline void get(const Json& j, const std::string& where,
                std::vector<std::string>& x) {
  const auto text = [](const Json& each) { return each.is_string(); };
  if (!j.is_array() || !std::all_of(j.begin(), j.end(), text))
    wrong_value(where, "a list of texts [\"...\"]", j);
  x = j.get<std::vector<std::string>>();
}
/// Whatever it holds: for who knows more than the struct.
inline void get(const Json& j, const std::string& where, Json& x) {
  if (!j.is_object()) wrong_value(where, "an object {...}", j);
  x = j;
}

}  // namespace detail

template <class C>
Json to_json(const C& c) {
  Json j = Json::object();
  C::fields(c, [&](const char* name, const auto& x) {
    if constexpr (detail::has_fields<std::decay_t<decltype(x)>>::value) {
      j[name] = to_json(x);
    } else {
      j[name] = x;
    }
  });
  return j;
}

/// Sets the fields that j names; the others stay. `where` is the path to j, ""
/// at the top. Throws ConfigError.
template <class C>
void from_json(const Json& j, C& c, const std::string& where = "") {
  if (!j.is_object())
    detail::wrong_value(where.empty() ? "the configuration" : where,
                        "an object {...}", j);
  std::vector<std::string> known;
  C::fields(c, [&](const char* name, auto& x) {
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

/// The paths of all values in objects, "model.width", in order.
std::vector<std::string> paths(const Json& j, const std::string& where = "");

/// Puts the values of `change` in the place of those in `into`. Throws
/// ConfigError where one has an object and the other has not.
void merge(const Json& change, Json& into, const std::string& where = "");

/// Throws ConfigError for a whole number in the part "model" of a configuration
/// that is above what any model can have: layers of which making never ends,
/// sizes of which products overflow.
void check_sizes(const Json& model);

/// "model.window=64": a path of `known` and a JSON value (or a bare word, taken
/// as text), as an object to give to from_json. Throws ConfigError, with the
/// nearest known paths.
Json assignment(const std::string& text, const std::vector<std::string>& known);

/// A JSON file. Throws ConfigError with the file's name, and the line for a
/// mistake in the JSON. A key that comes twice in an object is a mistake too.
/// Limits: 16 MB, 32 levels, 1000 keys an object.
Json read_json_file(const std::string& path);

}  // namespace aft::models
