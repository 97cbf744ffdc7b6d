// Fuzzes config.json (the bytes up to the first 0) and `--set` (the rest): an
// error must name the file or the key, and a configuration must survive a round
// trip.
#include "aft/base/config.h"

#include <algorithm>

#include "aft/io/json_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace aft::base;

struct Data {
  std::string path;
  std::vector<std::string> classes;
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("path", s.path), f("classes", s.classes);
  }
};

/// One field of every type that a run configuration has.
struct Run {
  std::string task = "language";
  Json model = Json::object();
  Data data;
  int64_t steps = 1;
  double rate = 0.5;
  bool flip = false;
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("task", s.task), f("model", s.model), f("data", s.data);
    f("steps", s.steps), f("rate", s.rate), f("flip", s.flip);
  }
};

void check_round_trip(const Run& run) {
  static aft::fuzz::MemoryFile memory;
  const std::string text = to_json(run).dump(2);
  memory.put(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  Run again;
  from_json(aft::io::read_json_file(memory.path()), again);
  aft::fuzz::expect(to_json(again) == to_json(run),
                    "the configuration changed in a round trip: " + text);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static aft::fuzz::MemoryFile memory;
  const uint8_t* const end = std::find(data, data + size, 0);
  memory.put(data, static_cast<size_t>(end - data));
  Run run;
  try {
    const Json read = aft::io::read_json_file(memory.path());
    try {
      Json merged = to_json(run);
      if (read.is_object()) merge(read, merged);
      if (merged["model"].is_object()) check_sizes(merged["model"]);
      from_json(read, run);
      check_round_trip(run);
    } catch (const ConfigError& e) {
      aft::fuzz::expect_message(e.what(), "");
    }
  } catch (const ConfigError& e) {
    aft::fuzz::expect_message(e.what(), memory.path() + ": ");
  }
  if (end == data + size) return 0;
  try {
    const std::string text(end + 1, data + size);
    from_json(assignment(text, paths(to_json(run))), run);
    check_round_trip(run);
  } catch (const ConfigError& e) {
    aft::fuzz::expect_message(e.what(), "");
  }
  return 0;
}
