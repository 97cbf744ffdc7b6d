// `aft bench classify`: images per second and memory of classifiers at
// inference, against the attention of the same size.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "aft/models/classifier.h"
#include "aft/tasks/classification.h"
#include "bench/peak.h"
#include "bench/time.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::vector<std::string> presets, sets;
  bool json = false, quick = false;
  int64_t batch = 32, size = 0;
  int repeat = 0, threads = 0;
};

/// A network with the weights of a directory, or first ones (""), ready for
/// inference, and images for it.
class Runner {
 public:
  Runner(const base::Json& config, const std::string& weights, int64_t batch,
         int64_t size)
      : model_(std::dynamic_pointer_cast<models::ImageNetwork>(
            tasks::make_model(config, weights))),
        height_(size > 0 ? size : config["data"]["height"].get<int64_t>()),
        width_(size > 0 ? size : config["data"]["width"].get<int64_t>()) {
    images_ = at::randn({batch, 3, height_, width_});
    count();
    if (!weights.empty()) tasks::load_weights(weights, *model_);
    model_->eval();
    model_->pack_for_inference();
  }
  void run() {
    at::NoGradGuard no_grad;
    model_->forward(images_);
  }
  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int64_t parameters() const { return parameters_; }
  /// Floating-point operations of its matrix products for one image: what any
  /// implementation has to do. 0: not known.
  double flops() const { return flops_; }

 private:
  void count() {
    for (const auto& p : model_->parameters()) parameters_ += p.numel();
    const auto* blocks = model_->as<models::ClassifierImpl>();
    if (!blocks) return;
    const auto& c = blocks->config;
    const double T =
        static_cast<double>(height_ / c.patch * (width_ / c.patch));
    for (const auto& m : model_->modules()) {
      const auto* linear = m->as<torch::nn::Linear>();
      if (!linear) continue;
      const bool once = linear == blocks->head.get();
      flops_ +=
          2 * static_cast<double>(linear->weight.numel()) * (once ? 1 : T);
    }
    if (c.mixer.traits().attention)
      flops_ += 4 * T * T * static_cast<double>(c.width * c.layers);
  }

  std::shared_ptr<models::ImageNetwork> model_;
  int64_t height_, width_, parameters_ = 0;
  double flops_ = 0;
  at::Tensor images_;
};

struct Row {
  std::string name, mixer;
  int64_t width, parameters;
  double rate = 0;                // images per second
  double gflops = 0;              // of matrix products
  double peak_gb = 0;             // 0: not known
  double speedup = 0, share = 0;  // against attention; 0: there is none
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

/// Networks of one width take turns.
std::vector<Row> measure(const std::vector<base::Json>& configs,
                         const std::vector<std::string>& names,
                         const Options& o, Progress& progress) {
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<std::function<void()>> functions;
  std::vector<Row> rows;
  for (size_t i = 0; i < configs.size(); ++i) {
    progress.next(names[i] + ": memory");
    const std::string weights = is_directory(names[i]) ? names[i] : "";
    // First here: its errors are shown, those of the other process are not.
    runners.push_back(
        std::make_unique<Runner>(configs[i], weights, o.batch, o.size));
    const Measured memory =
        measure_inference(configs[i].dump(), o.batch, o.size, 0, weights);
    const base::Json& m = configs[i]["model"];
    rows.push_back({names[i], m.value("mixer", m.value("network", "")),
                    m["width"], runners.back()->parameters()});
    rows.back().peak_gb = memory.peak / 1e9;
    functions.push_back([r = runners.back().get()] { r->run(); });
  }
  progress.next("width " + std::to_string(rows[0].width) +
                ": images, in turns");
  Repeat repeat;
  repeat.fixed = o.repeat > 0 ? o.repeat : o.quick ? 2 : 7;
  const std::vector<double> ms = interleave(functions, repeat);
  const Row* rival = nullptr;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].rate = 1e3 * static_cast<double>(o.batch) / ms[i];
    rows[i].gflops = runners[i]->flops() * rows[i].rate / 1e9;
    if (nn::mixer_traits(rows[i].mixer).attention) rival = &rows[i];
  }
  for (Row& r : rows) {
    if (!rival || &r == rival) continue;
    r.speedup = r.rate / rival->rate;
    if (rival->peak_gb > 0) r.share = r.peak_gb / rival->peak_gb;
  }
  return rows;
}

void run(Options o) {
  if (o.presets.empty()) o.presets = defaults();
  if (o.quick) o.batch = 2;
  std::vector<std::vector<base::Json>> groups;
  std::vector<std::vector<std::string>> names;
  std::vector<int64_t> widths;
  for (const std::string& preset : o.presets) {
    std::vector<std::string> sets = o.sets;
    base::Json config = choose_config(preset, sets);
    // Trained weights are of as many layers as they are.
    if (o.quick && !has_network(config) && !is_directory(preset))
      config["model"]["layers"] = 1;
    if (config["task"] != "classification")
      throw UsageError("bench classify: " + preset + " is of task " +
                       config["task"].get<std::string>() +
                       ", and not of classification");
    const int64_t width = config["model"]["width"];
    const auto at = std::find(widths.begin(), widths.end(), width);
    const size_t group = static_cast<size_t>(at - widths.begin());
    if (at == widths.end()) {
      widths.push_back(width);
      groups.emplace_back(), names.emplace_back();
    }
    groups[group].push_back(std::move(config));
    names[group].push_back(preset);
  }
  std::vector<Row> rows;
  {
    Progress progress(o.presets.size() + groups.size());
    for (size_t i = 0; i < groups.size(); ++i)
      for (Row& r : measure(groups[i], names[i], o, progress))
        rows.push_back(std::move(r));
  }
  if (o.json) {
    auto j = nlohmann::ordered_json::array();
    for (const Row& r : rows) {
      nlohmann::ordered_json row = {{"preset", r.name},
                                    {"parameters", r.parameters},
                                    {"batch", o.batch},
                                    {"threads", at::get_num_threads()},
                                    {"images_per_second", r.rate},
                                    {"gflops", r.gflops},
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
    cells.push_back({r.name, std::to_string(r.parameters), number(r.rate),
                     r.speedup > 0 ? verdict(r.speedup, 1, false) : "-",
                     r.gflops > 0 ? number(r.gflops) : "-",
                     r.peak_gb > 0 ? number(r.peak_gb) : "-",
                     r.share > 0 ? verdict(r.share, 1, true) : "-"});
  }
  std::cout << table({"preset", "parameters", "images/s", "speedup", "gflop/s",
                      "peak_gb", "memory"},
                     cells, 1)
            << "\n"
            << at::get_num_threads() << " threads, batch " << o.batch
            << "; speedup and memory are against attention of the same "
               "width\n";
}

}  // namespace

std::function<void()> inference_batches(const std::string& config,
                                        int64_t batch, int64_t size,
                                        const std::string& weights) {
  auto runner =
      std::make_shared<Runner>(base::Json::parse(config), weights, batch, size);
  return [runner] { runner->run(); };
}

void add_bench_classify(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "classify", "Images per second of classifiers, against attention");
  command->add_option("presets", o->presets,
                      "Presets of classification, or directories of trained "
                      "models; default: DeiT, AFT-full and AFT-conv, tiny and "
                      "small");
  command->add_option("--batch", o->batch, "Images at once; default: 32")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
  command
      ->add_option("--size", o->size,
                   "Images of N x N pixels; default: the preset's")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}).description(""))
      ->type_name("N");
  command->add_option("--repeat", o->repeat, "Repetitions; default: 7")
      ->check(CLI::Range(1, 1000000).description(""))
      ->type_name("N");
  add_sets(*command, o->sets);
  add_threads(*command, o->threads);
  command->add_flag("--quick", o->quick,
                    "One layer of presets, batch 2, 2 repetitions: does it "
                    "all run?");
  command->add_flag("--json", o->json, "One JSON array instead of a table");
  command->footer(
      "Inference in float, folded as `aft classify` does it: presets with "
      "first weights, directories with their own.\n"
      "Networks of one width take turns; medians.\n"
      "gflop/s: of the matrix products alone. peak_gb: the largest resident "
      "memory of a process of its own.\n"
      "Against PyTorch: bench/pytorch_classify.py.\n"
      "\n"
      "Examples:\n"
      "  aft bench classify\n"
      "  aft bench classify imagenet-deit-tiny imagenet-aft-conv-tiny-k11-h32 "
      "--size 384 --batch 8\n"
      "  aft bench classify runs/plain runs/entropy runs/gumbel");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
