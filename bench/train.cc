// `aft-bench train`: a training step relative to its own matrix products and to
// the Transformer of the same size; time and memory.
#include <ATen/Parallel.h>

#include "aft/base/counted.h"
#include "bench/bench.h"
#include "bench/matrix_products.h"
#include "cli/measure/measure.h"
#include "cli/measure/workloads.h"
#include "cli/model.h"

namespace aft::bench {
namespace {

/// What a model should reach; 0: no target.
struct Target {
  double over_gemm = 0, speedup = 0, memory = 0;
};

struct TrainedModel : SystemResult {
  base::Json config;
  Target target;
  std::string size;
  double gemm_ms = 0, gflops = 0;
  std::unique_ptr<TimedTraining> run;
  std::unique_ptr<MatrixProducts> products;
};

/// Models of one size: they alternate, and each is compared with the one whose
/// mixer is attention.
using Group = std::vector<TrainedModel>;

TrainedModel make_model(const std::string& preset, int64_t batch,
                        std::vector<std::string> sets) {
  sets.insert(sets.begin(),
              {"train.grad_accumulation=1", "train.recompute=false"});
  if (batch > 0) sets.push_back("train.batch_size=" + std::to_string(batch));
  TrainedModel model;
  model.name = preset;
  model.config = config_on_built_in_data(preset, sets);
  model.mixer = model_config(model.config).mixer;
  return model;
}

/// The sizes of the paper's table on enwik8. T = 4096 and CIFAR-10 with fewer
/// layers: a Transformer with 24 would need more than 20 GB.
std::vector<Group> groups(const Options& o) {
  // Targets hold for the paper's sizes.
  const bool targets = !o.quick && o.sets.empty();
  const auto group = [&](const std::vector<std::string>& presets, int64_t batch,
                         std::vector<std::string> sets,
                         const Target& local = {}, const Target& simple = {}) {
    sets.insert(sets.end(), o.sets.begin(), o.sets.end());
    Group models;
    for (const std::string& preset : presets) {
      models.push_back(make_model(preset, o.batch > 0 ? o.batch : batch, sets));
      TrainedModel& model = models.back();
      if (targets && model.mixer == "aft-local") model.target = local;
      if (targets && model.mixer == "aft-simple") model.target = simple;
    }
    return models;
  };
  std::vector<Group> out;
  if (!o.presets.empty()) {
    out.push_back(group(o.presets, 0, {}));
    return out;
  }
  const std::vector<std::string> text = {"enwik8-aft-local-24x256",
                                         "enwik8-aft-simple-24x256",
                                         "enwik8-transformer-24x256"},
                                 images = {"cifar10-aft-local-24x256",
                                           "cifar10-aft-simple-24x256",
                                           "cifar10-transformer-24x256"};
  if (o.quick) {
    out.push_back(group(text, 2,
                        {"model.layers=2", "model.width=64", "model.length=128",
                         "model.rank=16"}));
    out.push_back(group(
        images, 2,
        {"model.layers=1", "model.width=64", "data.height=8", "data.width=8"}));
    return out;
  }
  const Target local{1.35, 1.3, 0.5}, simple{0, 1.5, 0};
  out.push_back(group(text, 4, {}, local, simple));
  out.push_back(group({"enwik8-aft-local-12x512", "enwik8-transformer-12x512"},
                      4, {}, local));
  out.push_back(
      group(text, 1, {"model.length=4096", "model.layers=6"}, local, simple));
  out.push_back(group(images, 4, {"model.layers=4"}, {0, 2, 0.45}));
  return out;
}

void measure(Group& group, const Repeat& repeat, Progress& progress) {
  std::vector<std::function<void()>> functions;
  std::string names;
  for (TrainedModel& model : group) {
    const models::SequenceModelConfig m = model_config(model.config);
    const int64_t batch = train_config(model.config).batch_size;
    progress.next(model.name + ": memory");
    model.peak_gb = measure_training(model.config.dump(), 0).peak / 1e9;
    model.size = std::to_string(m.layers) + "x" + std::to_string(m.width) +
                 " T=" + std::to_string(m.length) +
                 " B=" + std::to_string(batch);
    model.run = std::make_unique<TimedTraining>(model.config);
    model.products =
        std::make_unique<MatrixProducts>(model.run->model(), batch * m.length);
    functions.push_back([run = model.run.get()] { run->run(); });
    functions.push_back([p = model.products.get()] { p->run(); });
    names += (names.empty() ? "" : ", ") + model.name;
  }
  progress.next(names + ": steps, alternating");
  const std::vector<double> ms = interleave(functions, repeat);
  for (size_t i = 0; i < group.size(); ++i) {
    group[i].ms = ms[2 * i], group[i].gemm_ms = ms[2 * i + 1];
    group[i].gflops = group[i].products->flops() / group[i].gemm_ms / 1e6;
    group[i].run.reset(), group[i].products.reset();
  }
  compare_with_attention(group);
}

void run(const Options& o) {
  std::vector<Group> all = groups(o);
  size_t total = all.size();
  for (const Group& group : all) total += group.size();
  Results results({"preset", "size", "step_ms", "gemm_ms", "step/gemm",
                   "speedup", "peak_gb", "memory"},
                  2);
  std::string gflops;
  {
    Progress progress(total);
    for (Group& group : all) {
      measure(group, o.repetitions(5, 2), progress);
      for (const TrainedModel& m : group) {
        nlohmann::ordered_json object = {{"preset", m.name},
                                         {"size", m.size},
                                         {"threads", at::get_num_threads()},
                                         {"step_ms", m.ms},
                                         {"gemm_ms", m.gemm_ms},
                                         {"gemm_gflops", m.gflops},
                                         {"step_over_gemm", m.ms / m.gemm_ms}};
        m.append_to(object);
        results.add(std::move(object),
                    {m.name, m.size, number(m.ms), number(m.gemm_ms),
                     verdict(m.ms / m.gemm_ms, m.target.over_gemm, true),
                     m.speedup_cell(m.target.speedup), m.peak_cell(),
                     m.memory_cell(m.target.memory)});
        gflops += (gflops.empty() ? "" : ", ") + number(m.gflops);
      }
    }
  }
  results.print(o.json, "\n" + base::counted(at::get_num_threads(), "thread") +
                            ", matrix products at " + gflops +
                            " GFLOP/s; speedup and memory are relative to the "
                            "Transformer of the same size\n");
}

}  // namespace

void add_train(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train",
      "A training step, relative to its matrix products and the Transformer");
  command->add_option("presets", o->presets,
                      "Presets of one size; default: the paper's sizes on "
                      "enwik8, T = 4096, and CIFAR-10 with 4 layers");
  add_count(*command, "--batch", o->batch,
            "Sequences per step; default: 4 (T = 4096: 1), or the preset's",
            int64_t{1}, int64_t{1} << 30);
  add_sets(*command, o->sets);
  add_common(*command, *o, "5", "Small models, 2 repetitions");
  command->footer(
      "A step is that of `aft train`: batch, forward, backward, clipping, "
      "AdamW; float, with dropout.\n"
      "gemm_ms: only the matrix products of the linear layers, forward and "
      "backward, into preallocated memory.\n"
      "All models of one size and their products alternate; medians. peak_gb: "
      "peak resident memory of a separate\n"
      "process that takes two steps. Reads only built-in data and writes "
      "nothing.\n"
      "\n"
      "Examples:\n"
      "  aft-bench train\n"
      "  aft-bench train text-aft-local-6x256 text-transformer-6x256 --json\n"
      "  aft-bench train cifar10-aft-local-24x256 cifar10-transformer-24x256 "
      "--batch 4 --set model.layers=4\n"
      "  aft-bench train enwik8-aft-local-24x256 --batch 2 --set "
      "model.window=128");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::bench
