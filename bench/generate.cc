// `aft bench generate`: the price of one more byte against how many came
// before it, and what a stream holds by then.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "aft/tasks/memory_limit.h"
#include "bench/time.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::vector<std::string> presets, sets;
  bool json = false, quick = false;
  int repeat = 0, threads = 0;
};

/// A stream that has taken `context` bytes.
struct Point {
  int64_t context = 0;
  models::SequenceModelState state;
  double ms = 0;
};

struct Row {
  std::string name, mixer;
  std::vector<Point> points;
  /// Time a byte at the longest context over that at the shortest.
};

Row measure(const std::string& name, const Options& o) {
  models::SequenceModelConfig config =
      model_config(choose_config(name, o.sets));
  // Without position embeddings a model has an end only where its mixer has.
  config.positions = false;
  torch::manual_seed(1);
  models::SequenceModel model =
      tasks::within_memory([&] { return models::SequenceModel(config); });
  model->eval();
  Row row{name, config.mixer, {}};
  const int64_t few = o.quick ? 10 : 100,  // bytes that one timing takes
      end = config.has_end()                    ? config.length - few
            : o.quick                           ? 1000
            : nn::mixer_traits(row.mixer).grows ? 10000
                                                : 100000;
  // The price is that of a full window.
  const nn::MixerKind& kind = config.mixer.traits();
  const bool windowed = kind.has("window") && !kind.grows;
  const int64_t begin =
      windowed ? std::max(few, config.mixer.get<int64_t>("window")) : few;
  if (end < begin)
    throw UsageError("bench generate: model.length must be " +
                     std::to_string(begin + few) + " or more, got " +
                     std::to_string(config.length));
  models::SequenceModelState state =
      tasks::within_memory([&] { return model->start(1); });
  const auto feed = [&](models::SequenceModelState& s) {
    model->step(torch::tensor({s.position * 7 % config.vocabulary}), s);
  };
  for (int64_t context = begin; context <= end; context *= 10) {
    while (state.position < context) feed(state);
    row.points.push_back({context, state.clone(), 0});
  }
  if (row.points.back().context < end) {
    while (state.position < end) feed(state);
    row.points.push_back({end, state.clone(), 0});
  }
  std::vector<std::function<void()>> functions;
  for (Point& p : row.points) {
    functions.push_back([&] {
      models::SequenceModelState s = p.state.clone();
      for (int64_t i = 0; i < few; ++i) feed(s);
    });
  }
  Repeat repeat;
  repeat.fixed = o.repeat > 0 ? o.repeat : o.quick ? 3 : 21;
  const std::vector<double> ms = interleave(functions, repeat);
  for (size_t i = 0; i < ms.size(); ++i)
    row.points[i].ms = ms[i] / static_cast<double>(few);
  return row;
}

void run(const Options& o) {
  std::vector<std::string> presets = o.presets;
  if (presets.empty()) {
    for (const char* mixer :
         {"aft-simple", "aft-conv", "aft-local", "aft-full", "transformer"})
      presets.push_back("text-" + std::string(mixer) + "-4x128");
  }
  std::vector<Row> rows;
  {
    Progress progress(presets.size());
    for (const std::string& p : presets) {
      progress.next(p);
      rows.push_back(measure(p, o));
    }
  }
  if (o.json) {
    auto all = nlohmann::ordered_json::array();
    for (const Row& r : rows) {
      for (const Point& p : r.points) {
        all.push_back({{"preset", r.name},
                       {"threads", at::get_num_threads()},
                       {"context", p.context},
                       {"us_per_byte", 1e3 * p.ms},
                       {"over_shortest", p.ms / r.points.front().ms},
                       {"state_bytes", p.state.bytes()}});
      }
    }
    std::cout << all.dump(2) << '\n';
    return;
  }
  std::vector<std::vector<std::string>> cells;
  for (const Row& r : rows) {
    for (const Point& p : r.points) {
      const bool last = &p == &r.points.back(),
                 target = last && !nn::mixer_traits(r.mixer).grows && !o.quick;
      cells.push_back(
          {r.name, std::to_string(p.context), number(1e3 * p.ms),
           verdict(p.ms / r.points.front().ms, target ? 1.1 : 0, true),
           count(static_cast<double>(p.state.bytes())) + "B"});
    }
  }
  std::cout << table({"preset", "context", "us_per_byte", "over_shortest",
                      "state"},
                     cells, 1)
            << "\n"
            << at::get_num_threads()
            << " threads; one stream, fed byte by byte\n";
}

}  // namespace

void add_bench_generate(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "generate", "The price of a byte against the length of its context");
  command->add_option("presets", o->presets,
                      "Presets; default: text-*-4x128, one of each mixer");
  command->add_option("--repeat", o->repeat, "Repetitions; default: 21")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->add_flag("--quick", o->quick,
                    "Contexts up to 1000: does it all run?");
  command->add_flag("--json", o->json, "One JSON array instead of a table");
  command->footer(
      "A stream is fed to contexts of 100, 1000, ... 100,000 bytes (aft-local "
      "and aft-full: up to the model's\n"
      "length; attention: 10,000); then copies of the streams take turns with "
      "100 bytes each; medians.\n"
      "Position embeddings are off. state: what a stream holds at that "
      "context.\n"
      "\n"
      "Examples:\n"
      "  aft bench generate\n"
      "  aft bench generate text-aft-conv-6x256 --set model.window=128 --json");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
