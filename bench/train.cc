// `aft bench train`: a training step against its own matrix products, and
// against the Transformer of the same size; time and memory.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/peak.h"
#include "bench/products.h"
#include "bench/time.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::vector<std::string> presets, sets;
  bool json = false, quick = false;
  int64_t batch = 0;
  int repeat = 0, threads = 0;
};

/// What a system should reach; 0: anything.
struct Target {
  double over_gemm = 0, speedup = 0, share = 0;
};

struct System {
  std::string name;
  base::Json config;
  Target target;
};

/// Systems of one size: they take turns, and each is compared with the one
/// whose mixer is attention.
using Contest = std::vector<System>;

System make_system(const std::string& preset, int64_t batch,
                   std::vector<std::string> sets) {
  // Built-in data.
  sets.insert(sets.begin(), {"train.accumulate=1", "train.recompute=false",
                             "data.path=", "data.fingerprint="});
  if (batch > 0) sets.push_back("train.batch=" + std::to_string(batch));
  base::Json config = choose_config(preset, sets);
  if (config["task"] == "language") config["data"]["mode"] = "bytes";
  return {preset, std::move(config), {}};
}

/// The sizes of the paper's table on enwik8, and those that a Transformer of 24
/// layers would need more than 20 GB for with fewer: T = 4096 and CIFAR-10.
std::vector<Contest> contests(const Options& o) {
  // Targets hold for the paper's sizes.
  const bool targets = !o.quick && o.sets.empty();
  const auto contest = [&](const std::vector<std::string>& presets,
                           int64_t batch, std::vector<std::string> sets,
                           const Target& local = {},
                           const Target& simple = {}) {
    sets.insert(sets.end(), o.sets.begin(), o.sets.end());
    Contest all;
    for (const std::string& p : presets) {
      all.push_back(make_system(p, o.batch > 0 ? o.batch : batch, sets));
      const std::string mixer = model_config(all.back().config).mixer;
      if (!targets) continue;
      if (mixer == "aft-local") all.back().target = local;
      if (mixer == "aft-simple") all.back().target = simple;
    }
    return all;
  };
  if (!o.presets.empty()) return {contest(o.presets, 0, {})};
  const std::vector<std::string> narrow = {"enwik8-aft-local-24x256",
                                           "enwik8-aft-simple-24x256",
                                           "enwik8-transformer-24x256"},
                                 pictures = {"cifar10-aft-local-24x256",
                                             "cifar10-aft-simple-24x256",
                                             "cifar10-transformer-24x256"};
  if (o.quick) {
    return {contest(narrow, 2,
                    {"model.layers=2", "model.width=64", "model.length=128",
                     "model.rank=16"}),
            contest(pictures, 2,
                    {"model.layers=1", "model.width=64", "data.height=8",
                     "data.width=8"})};
  }
  const Target text{1.35, 1.3, 0.5}, simple{0, 1.5, 0};
  return {
      contest(narrow, 4, {}, text, simple),
      contest({"enwik8-aft-local-12x512", "enwik8-transformer-12x512"}, 4, {},
              text),
      contest(narrow, 1, {"model.length=4096", "model.layers=6"}, text, simple),
      contest(pictures, 4, {"model.layers=4"}, {0, 2, 0.45})};
}

/// A model in training that takes one step at a time.
class Run {
 public:
  explicit Run(base::Json config)
      : task_(tasks::make_task(config)),
        trainer_(*task_, train_config(config), "") {
    task_->model().train();
  }
  void step() { trainer_.advance(); }
  torch::nn::Module& model() { return task_->model(); }

 private:
  std::unique_ptr<train::Task> task_;
  train::Trainer trainer_;
};

struct Row {
  std::string name, size;
  double step_ms, gemm_ms, gflops;
  double peak_gb;                 // 0: not known
  double speedup = 0, share = 0;  // against attention; 0: there is none
  std::string mixer;
  Target target;
};

std::vector<Row> measure(const Contest& contest, const Repeat& repeat,
                         Progress& progress) {
  std::vector<std::unique_ptr<Run>> runs;
  std::vector<std::unique_ptr<Products>> products;
  std::vector<std::function<void()>> functions;
  std::vector<Row> rows;
  std::string names;
  for (const System& s : contest) {
    const models::SequenceModelConfig m = model_config(s.config);
    const int64_t batch = train_config(s.config).batch;
    progress.next(s.name + ": memory");
    const Measured memory = measure_training(s.config.dump(), 0);
    char size[64];
    snprintf(size, sizeof(size), "%lldx%lld T=%lld B=%lld",
             static_cast<long long>(m.layers), static_cast<long long>(m.width),
             static_cast<long long>(m.length), static_cast<long long>(batch));
    rows.push_back(
        {s.name, size, 0, 0, 0, memory.peak / 1e9, 0, 0, m.mixer, s.target});
    runs.push_back(std::make_unique<Run>(s.config));
    products.push_back(
        std::make_unique<Products>(runs.back()->model(), batch * m.length));
    functions.push_back([run = runs.back().get()] { run->step(); });
    functions.push_back([p = products.back().get()] { p->run(); });
    names += (names.empty() ? "" : ", ") + s.name;
  }
  progress.next(names + ": steps, in turns");
  const std::vector<double> ms = interleave(functions, repeat);
  const Row* rival = nullptr;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].step_ms = ms[2 * i], rows[i].gemm_ms = ms[2 * i + 1];
    rows[i].gflops = products[i]->flops() / rows[i].gemm_ms / 1e6;
    if (nn::mixer_traits(rows[i].mixer).attention) rival = &rows[i];
  }
  for (Row& r : rows) {
    if (!rival || &r == rival) continue;
    r.speedup = rival->step_ms / r.step_ms;
    if (rival->peak_gb > 0) r.share = r.peak_gb / rival->peak_gb;
  }
  return rows;
}

void run(const Options& o) {
  Repeat repeat;
  repeat.fixed = o.repeat > 0 ? o.repeat : o.quick ? 2 : 5;
  const std::vector<Contest> all = contests(o);
  size_t total = all.size();
  for (const Contest& c : all) total += c.size();
  std::vector<Row> rows;
  {
    Progress progress(total);
    for (const Contest& c : all) {
      for (Row& r : measure(c, repeat, progress)) rows.push_back(std::move(r));
    }
  }
  if (o.json) {
    auto j = nlohmann::ordered_json::array();
    for (const Row& r : rows) {
      nlohmann::ordered_json row = {{"preset", r.name},
                                    {"size", r.size},
                                    {"threads", at::get_num_threads()},
                                    {"step_ms", r.step_ms},
                                    {"gemm_ms", r.gemm_ms},
                                    {"gemm_gflops", r.gflops},
                                    {"step_over_gemm", r.step_ms / r.gemm_ms},
                                    {"peak_gb", r.peak_gb}};
      if (r.speedup > 0) row["speedup"] = r.speedup;
      if (r.share > 0) row["memory_share"] = r.share;
      j.push_back(std::move(row));
    }
    std::cout << j.dump(2) << '\n';
    return;
  }
  std::vector<std::vector<std::string>> cells;
  for (const Row& r : rows) {
    cells.push_back(
        {r.name, r.size, number(r.step_ms), number(r.gemm_ms),
         verdict(r.step_ms / r.gemm_ms, r.target.over_gemm, true),
         r.speedup > 0 ? verdict(r.speedup, r.target.speedup, false) : "-",
         r.peak_gb > 0 ? number(r.peak_gb) : "-",
         r.share > 0 ? verdict(r.share, r.target.share, true) : "-"});
  }
  std::cout << table({"preset", "size", "step_ms", "gemm_ms", "step/gemm",
                      "speedup", "peak_gb", "memory"},
                     cells, 2)
            << "\n"
            << at::get_num_threads() << " threads, products at ";
  for (size_t i = 0; i < rows.size(); ++i)
    std::cout << (i > 0 ? ", " : "") << number(rows[i].gflops);
  std::cout << " GFLOP/s; speedup and memory are against the Transformer of "
               "the same size\n";
}

}  // namespace

void add_bench_train(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "train",
      "A training step against its bare matrix products and the Transformer");
  command->add_option("presets", o->presets,
                      "Presets of one size; default: the paper's sizes on "
                      "enwik8, T = 4096, and CIFAR-10 with 4 layers");
  command
      ->add_option("--batch", o->batch,
                   "Sequences of a step; default: 4 (T = 4096: 1), or the "
                   "preset's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->type_name("N");
  command->add_option("--repeat", o->repeat, "Repetitions; default: 5")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->add_flag("--quick", o->quick,
                    "A small model, 2 repetitions: does it all run?");
  command->add_flag("--json", o->json, "One JSON array instead of a table");
  command->footer(
      "A step is what `aft train` does: batch, forward, backward, clipping, "
      "AdamW; float, with dropout.\n"
      "gemm_ms: the matrix products of its linear layers alone, forward and "
      "backward, into memory that is there.\n"
      "All systems of one size and their products take turns; medians. "
      "peak_gb: the largest resident memory of a\n"
      "process of its own that takes two steps. Nothing is read but "
      "built-in data, and nothing is written.\n"
      "\n"
      "Examples:\n"
      "  aft bench train\n"
      "  aft bench train text-aft-local-6x256 text-transformer-6x256 --json\n"
      "  aft bench train cifar10-aft-local-24x256 cifar10-transformer-24x256 "
      "--batch 4 --set model.layers=4\n"
      "  aft bench train enwik8-aft-local-24x256 --batch 2 --set "
      "model.window=128");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

std::function<void()> training_steps(const std::string& config) {
  auto run = std::make_shared<Run>(base::Json::parse(config));
  return [run] { run->step(); };
}

}  // namespace aft::cli
