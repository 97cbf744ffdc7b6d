// Configurations: conversion to and from JSON, --set, and error messages.
#include "aft/base/config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>

#include "aft/io/json_file.h"
#include "tests/scratch.h"

namespace aft::base {
namespace {

struct Inner {
  int64_t window = 32;
  double rate = 0.5;
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("window", s.window), f("rate", s.rate, "speed");
  }
};
struct Outer {
  std::string name = "a";
  bool on = false;
  Inner inner;
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("name", s.name), f("on", s.on), f("inner", s.inner);
  }
};

std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Config, RoundTrip) {
  Outer a;
  a.name = "b", a.on = true, a.inner.window = 7;
  Outer b;
  from_json(to_json(a), b);
  EXPECT_EQ(to_json(a), to_json(b));
  from_json(Json::parse(R"({"inner": {"rate": 1}})"), b);
  EXPECT_EQ(b.inner.rate, 1);
  EXPECT_EQ(b.inner.window, 7);
}

TEST(Config, Assignments) {
  Outer c;
  const auto known = paths(to_json(c));
  EXPECT_EQ(known, (std::vector<std::string>{"name", "on", "inner.window",
                                             "inner.rate"}));
  for (const char* text :
       {"inner.window=64", "name=some words", "on=true", "inner.rate=1e-3"})
    from_json(assignment(text, known), c);
  EXPECT_EQ(c.inner.window, 64);
  EXPECT_EQ(c.name, "some words");
  EXPECT_TRUE(c.on);
  EXPECT_EQ(c.inner.rate, 1e-3);
}

TEST(Config, RenamedKeys) {
  EXPECT_EQ(renames(Outer()), (Renames{{"inner.speed", "inner.rate"}}));
  Outer c;
  from_json(Json::parse(R"({"inner": {"speed": 2}})"), c);
  EXPECT_EQ(c.inner.rate, 2);
  EXPECT_FALSE(to_json(c)["inner"].contains("speed"));
  const auto known = paths(to_json(c));
  EXPECT_EQ(assignment("inner.speed=3", known, renames(Outer())),
            Json::parse(R"({"inner": {"rate": 3}})"));
  // The other keys are kept, for any number and order.
  Json j = Json::parse(R"({"a": 0, "inner": {"speed": [1], "b": 2, "c": 3}})");
  rename_keys(renames(Outer()), j);
  EXPECT_EQ(j,
            Json::parse(R"({"a": 0, "inner": {"b": 2, "c": 3, "rate": [1]}})"));
  // Errors name the current key.
  EXPECT_EQ(failure([&] {
              from_json(Json::parse(R"({"inner": {"speed": "x"}})"), c);
            }),
            "inner.rate must be a number, got string \"x\"");
  EXPECT_EQ(
      failure([&] { assignment("inner.sped=3", known, renames(Outer())); }),
      "unknown key 'inner.sped'");
  EXPECT_EQ(
      failure([&] {
        from_json(Json::parse(R"({"inner": {"speed": 1, "rate": 1}})"), c);
      }),
      "inner.speed is the old name of inner.rate; expected one of them, got "
      "both");
  EXPECT_EQ(failure([&] {
              from_json(Json::parse(R"({"speed": 1, "rate": 1})"), c.inner,
                        "inner");
            }),
            "inner.speed is the old name of inner.rate; expected one of them, "
            "got both");
  for (const char* other : {"[]", "1", "null"})
    EXPECT_EQ(failure([&] {
                from_json(Json{{"inner", Json::parse(other)}}, c);
              }).find("inner must be an object {...}, got "),
              0u);
}

TEST(Config, Merges) {
  Json into = Json::parse(R"({"a": 1, "inner": {"rate": 2, "window": 3}})");
  merge(Json::parse(R"({"inner": {"rate": 5}, "new": {"x": 1}})"), into);
  EXPECT_EQ(into, Json::parse(R"({"a": 1, "inner": {"rate": 5, "window": 3},
                                  "new": {"x": 1}})"));
  EXPECT_EQ(failure([&] { merge(Json::parse(R"({"a": {"x": 1}})"), into); }),
            "a must be an object {...}, got number 1");
}

TEST(Config, Errors) {
  Outer c;
  const auto known = paths(to_json(c));
  EXPECT_EQ(failure([&] { from_json(Json::parse(R"({"nam": 1})"), c); }),
            "unknown key 'nam'; the nearest known ones are name");
  EXPECT_EQ(failure([&] {
              from_json(Json::parse(R"({"inner": {"window": 1.5}})"), c);
            }),
            "inner.window must be an integer, got number 1.5");
  EXPECT_EQ(failure([&] { from_json(Json::parse("[1]"), c); }),
            "the configuration must be an object {...}, got array [1]");
  EXPECT_NE(failure([&] {
              assignment("windw=3", known);
            }).find("the nearest known ones are inner.window"),
            std::string::npos);
  EXPECT_NE(
      failure([&] { assignment("window", known); }).find("expected key=value"),
      std::string::npos);
}

TEST(Config, Files) {
  EXPECT_NE(failure([] {
              io::read_json_file("/nowhere/x.json");
            }).find("/nowhere/x.json: cannot be opened"),
            std::string::npos);
  const std::string path = scratch() + "/config_test.json";
  std::ofstream(path) << "{\"a\": ";
  EXPECT_NE(
      failure([&] { io::read_json_file(path); }).find(path + ": not JSON"),
      std::string::npos);
  std::remove(path.c_str());
}

/// The error message for a file with this text.
std::string of_file(const std::string& text) {
  const std::string path = scratch() + "/config_hostile.json";
  std::ofstream(path, std::ios::binary) << text;
  std::string out = failure([&] { io::read_json_file(path); });
  std::remove(path.c_str());
  if (out == "no error") return out;
  EXPECT_EQ(out.compare(0, path.size() + 2, path + ": "), 0) << out;
  return out.substr(path.size() + 2);
}

TEST(Config, HostileFiles) {
  std::string objects, keys = "{";
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  for (int i = 0; i < 100000; ++i) keys += '"' + std::to_string(i) + "\":1,";
  EXPECT_EQ(of_file(std::string(100000, '[')), "nested deeper than 32");
  EXPECT_EQ(of_file(std::string(100000, '[') + std::string(100000, ']')),
            "nested deeper than 32");
  EXPECT_EQ(of_file(objects), "nested deeper than 32");
  EXPECT_EQ(of_file(keys + "\"end\":1}"),
            "an object must have at most 1000 keys, got more");
  EXPECT_EQ(of_file(R"({"a": 1, "b": {"a": 2}, "a": 3})"),
            "the key 'a' must be unique, got it twice");
  EXPECT_EQ(of_file(R"([{"a": 1}, {"a": 1}])"), "no error");
  EXPECT_EQ(of_file("{\"a\": 1e999}"),
            "not JSON: number overflow parsing '1e999'");
  EXPECT_NE(of_file("{\"\xff\": 1}").find("\\xff"), std::string::npos);
  EXPECT_EQ(of_file(std::string((16 << 20) + 1, ' ')),
            "must have at most 16777216 bytes, got 16777217");
  EXPECT_NE(failure([] {
              io::read_json_file("/dev/zero");
            }).find("/dev/zero: must be a regular file, got a special file"),
            std::string::npos);
  EXPECT_NE(failure([] { io::read_json_file("/"); }).find("got a directory"),
            std::string::npos);
}

TEST(Config, HostileValues) {
  Outer c;
  const auto known = paths(to_json(c));
  EXPECT_EQ(failure([&] {
              from_json(
                  Json::parse(R"({"inner": {"window": 9223372036854775808}})"),
                  c);
            }),
            "inner.window must be an integer below 2^63, got number "
            "9223372036854775808");
  EXPECT_EQ(failure([&] {
              from_json(Json::parse(R"({"inner": {"window": 1e20}})"), c);
            }),
            "inner.window must be an integer below 2^63, got number 1e+20");
  EXPECT_NE(failure([&] {
              assignment("inner.wind=1", known);
            }).find("the nearest known ones are inner.window"),
            std::string::npos)
      << "the beginning of a name is near";
  EXPECT_EQ(failure([&] { from_json(Json::parse(R"({"\u001b[2J": 1})"), c); }),
            "unknown key '\\x1b[2J'");
  EXPECT_EQ(failure([&] { from_json(Json::parse(R"({"on": "\u001b"})"), c); }),
            "on must be true or false, got string \"\\u001b\"");
  check_sizes(Json::parse(R"({"layers": 10000, "width": 2147483648,
                              "mixer": "x", "features": -1})"));
  EXPECT_EQ(failure([] {
              check_sizes(Json{{"layers", 10001}});
            }),
            "model.layers must be at most 10000, got 10001");
  EXPECT_EQ(failure([] {
              check_sizes(Json{{"window", INT64_MAX}});
            }),
            "model.window must be at most 2147483648, got " +
                std::to_string(INT64_MAX));
  const std::string deep(100000, '[');
  EXPECT_EQ(failure([&] {
              assignment("on=" + deep + std::string(100000, ']'), known);
            }),
            "on: nested deeper than 32");
  EXPECT_EQ(failure([&] { assignment("name=\xff", known); }),
            "name must be UTF-8, got '\\xff'");
  // The search for the nearest key is fast even for a key of 10 MB.
  EXPECT_NE(failure([&] {
              from_json(Json{{std::string(10 << 20, 'x'), 1}}, c);
            }).find("unknown key 'xxx"),
            std::string::npos);
}

}  // namespace
}  // namespace aft::base
