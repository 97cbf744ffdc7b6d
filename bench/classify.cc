// `aft-bench classify`: images per second and memory of classifiers at
// inference, relative to attention of the same width.
#include <ATen/Parallel.h>

#include "aft/base/counted.h"
#include "bench/bench.h"
#include "cli/measure/measure.h"
#include "cli/measure/workloads.h"
#include "cli/model.h"

namespace aft::bench {
namespace {

struct ClassifyOptions : Options {
  int64_t size = 0;
};

struct Classifier : SystemResult {
  base::Json config;
  std::unique_ptr<TimedClassifier> run;

  int64_t width() const { return config["model"]["width"]; }
};

std::vector<std::string> defaults() {
  return {"imagenet-deit-tiny",
          "imagenet-aft-full-tiny",
          "imagenet-aft-conv-tiny-k11-h32",
          "imagenet-aft-conv-tiny-k11-h192",
          "imagenet-deit-small",
          "imagenet-aft-full-small",
          "imagenet-aft-conv-small-k11-h16",
          "imagenet-aft-conv-small-k11-h384"};
}

/// The classifiers, grouped by width in the order given.
std::vector<std::vector<Classifier>> groups(const ClassifyOptions& o) {
  std::vector<std::vector<Classifier>> out;
  for (const std::string& preset : o.presets) {
    Classifier c;
    c.name = preset;
    c.config = choose_config(preset, o.sets);
    if (c.config["task"] != "classification")
      throw UsageError("classify: expected a classifier, but " + preset +
                       " is of task " + c.config["task"].get<std::string>());
    // Trained weights need all their layers.
    if (o.quick && !has_network(c.config) && !is_directory(preset))
      c.config["model"]["layers"] = 1;
    const base::Json& m = c.config["model"];
    c.mixer = m.value("mixer", m.value("network", ""));
    auto group = out.begin();
    while (group != out.end() && group->front().width() != c.width()) ++group;
    if (group == out.end()) group = out.emplace(group);
    group->push_back(std::move(c));
  }
  return out;
}

void measure(std::vector<Classifier>& group, const ClassifyOptions& o,
             Progress& progress) {
  std::vector<std::function<void()>> functions;
  for (Classifier& c : group) {
    progress.next(c.name + ": memory");
    const std::string weights = is_directory(c.name) ? c.name : "";
    // First in this process, which prints errors; those of the subprocess are
    // not shown.
    c.run =
        std::make_unique<TimedClassifier>(c.config, weights, o.batch, o.size);
    c.peak_gb =
        measure_inference(c.config.dump(), o.batch, o.size, 0, weights).peak /
        1e9;
    functions.push_back([run = c.run.get()] { run->run(); });
  }
  progress.next("width " + std::to_string(group[0].width()) +
                ": images, alternating");
  const std::vector<double> ms = interleave(functions, o.repetitions(7, 2));
  for (size_t i = 0; i < group.size(); ++i) group[i].ms = ms[i];
  compare_with_attention(group);
}

void run(ClassifyOptions o) {
  if (o.presets.empty()) o.presets = defaults();
  if (o.quick) o.batch = 2;
  std::vector<std::vector<Classifier>> all = groups(o);
  Results results({"preset", "parameters", "images/s", "speedup", "gflop/s",
                   "peak_gb", "memory"},
                  1);
  {
    Progress progress(o.presets.size() + all.size());
    for (std::vector<Classifier>& group : all) {
      measure(group, o, progress);
      for (Classifier& c : group) {
        const double rate = 1e3 * static_cast<double>(o.batch) / c.ms,
                     gflops = c.run->flops() * rate / 1e9;
        nlohmann::ordered_json object = {
            {"preset", c.name},          {"parameters", c.run->parameters()},
            {"batch", o.batch},          {"threads", at::get_num_threads()},
            {"images_per_second", rate}, {"gflops", gflops}};
        c.append_to(object);
        results.add(std::move(object),
                    {c.name, std::to_string(c.run->parameters()), number(rate),
                     c.speedup_cell(1), gflops > 0 ? number(gflops) : "-",
                     c.peak_cell(), c.memory_cell(1)});
        c.run.reset();
      }
    }
  }
  results.print(o.json,
                "\n" + base::counted(at::get_num_threads(), "thread") +
                    ", batch " + std::to_string(o.batch) +
                    "; speedup and memory are relative to attention of the "
                    "same width\n");
}

}  // namespace

void add_classify(CLI::App& app) {
  auto o = std::make_shared<ClassifyOptions>();
  o->batch = 32;
  CLI::App* command = app.add_subcommand(
      "classify", "Images per second of classifiers, relative to attention");
  command->add_option("presets", o->presets,
                      "Classifiers: presets or model directories; default: "
                      "DeiT, AFT-full and AFT-conv, tiny and small");
  add_count(*command, "--batch", o->batch, "Images per batch; default: 32",
            int64_t{1}, int64_t{1} << 20);
  add_count(*command, "--size", o->size,
            "Images of N x N pixels; default: the preset's", int64_t{1},
            int64_t{4096});
  add_sets(*command, o->sets);
  add_common(*command, *o, "7",
             "One layer for presets, batch 2, 2 repetitions");
  command->footer(
      "Inference in float, with packed weights as in `aft classify`. Presets "
      "have initial weights, directories their own.\n"
      "Networks of the same width alternate; medians.\n"
      "gflop/s: only the matrix products. peak_gb: peak resident memory of a "
      "separate process.\n"
      "For PyTorch: bench/pytorch_classify.py.\n"
      "\n"
      "Examples:\n"
      "  aft-bench classify\n"
      "  aft-bench classify imagenet-deit-tiny imagenet-aft-conv-tiny-k11-h32 "
      "--size 384 --batch 8\n"
      "  aft-bench classify runs/plain runs/entropy runs/gumbel");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::bench
