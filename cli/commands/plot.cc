// `aft plot`: draws what a model has learned, as PNG files and one HTML page:
// position biases, keys, relative attention, training curves and completions.
#include <ATen/ATen.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "aft/base/counted.h"
#include "aft/io/run_directory.h"
#include "aft/nn/aft.h"
#include "aft/tasks/classification.h"
#include "cli/commands.h"
#include "cli/image_grid.h"
#include "cli/model.h"
#include "cli/plot/maps.h"
#include "cli/plot/page.h"
#include "cli/plot/training_curve.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::string model, out, folder, divisor;  // "" or 0: not given
  std::vector<std::string> images, runs;
  std::vector<double> range;
  int64_t limit = 0, heads = 16, completions = 8, size = 0;
  double crop = 0;
  bool each = false;
  int threads = 0;
};

class Plotter {
 public:
  explicit Plotter(const Options& o)
      : o_(o), config_(tasks::load_config(o.model)) {}

  void run() {
    check();
    compare_runs();  // first, so that a missing run fails early
    details_ = {{"task", config_["task"]},
                {"model", described(config_["model"])}};
    const io::RunDirectory run(o_.model);
    const std::string out = o_.out.empty() ? run.plots() : o_.out;
    io::prepare_file(out + "/index.html");
    if (has_weights()) {
      load();
      biases();
      keys();
      attention();
      completions();
    } else {
      std::cerr << "note: " << no_weights()
                << "; only the training curves are drawn\n";
    }
    curves();
    if (figures_.empty())
      throw std::runtime_error(
          o_.model +
          ": nothing to draw: expected position biases or metrics, got "
          "neither" +
          (classifier_ ? "; --images FOLDER shows average attention" : ""));
    write_figures(out, o_.model, "", details_, figures_);
    std::cout << out
              << "/index.html: " << base::counted(figures_.size(), "figure")
              << '\n';
  }

 private:
  void check() const {
    const bool classes = config_["task"] == "classification";
    if (!classes && (!o_.images.empty() || !o_.folder.empty() || o_.size > 0 ||
                     o_.crop > 0))
      throw UsageError(
          "plot: --image, --images, --size and --crop need a model of task "
          "classification, got " +
          config_["task"].get<std::string>());
    if (!o_.range.empty() && o_.each)
      throw UsageError(
          "plot: --each and --range cannot be combined: --each uses a separate "
          "scale per map, --range the same scale for all maps");
    if (o_.folder.empty() && (o_.limit > 0 || !o_.divisor.empty()))
      throw UsageError(std::string("plot: ") +
                       (o_.limit > 0 ? "--limit" : "--divisor") +
                       " requires --images");
    if (!has_weights() && (!o_.images.empty() || !o_.folder.empty()))
      throw UsageError(std::string("plot: ") +
                       (o_.folder.empty() ? "--image" : "--images") +
                       " needs weights: " + no_weights());
    if (!o_.range.empty() && !(o_.range[0] < o_.range[1]))
      throw UsageError("plot: --range must be ascending, got " +
                       number(o_.range[0]) + " " + number(o_.range[1]));
    if (o_.runs.size() + 1 > kMostCurves)
      throw UsageError("plot: expected at most " +
                       std::to_string(kMostCurves - 1) + " --runs, got " +
                       std::to_string(o_.runs.size()));
    if (classes) check_size("plot", o_.size, config_["model"]);
  }
  static void check_run(const std::string& run) {
    if (!is_directory(run))
      throw std::runtime_error(
          "plot: --runs: expected the directory of a run, got " + run);
    const std::string metrics = io::RunDirectory(run).metrics();
    if (!exists(metrics))
      throw std::runtime_error("plot: --runs: " + metrics + " does not exist");
  }
  bool has_weights() const {
    const io::RunDirectory run(o_.model);
    return run.has_weights() || run.has_checkpoint();
  }
  std::string no_weights() const {
    const io::RunDirectory run(o_.model);
    return "neither " + run.weights() + " nor " + run.checkpoint() +
           " exists yet";
  }

  void load() {
    report_weights(o_.model);
    module_ = tasks::make_model(config_, o_.model);
    tasks::load_weights(o_.model, *module_);
    classifier_ = std::dynamic_pointer_cast<models::ClassifierImpl>(module_);
    double parameters = 0;
    for (const at::Tensor& p : module_->parameters())
      parameters += static_cast<double>(p.numel());
    details_.emplace_back("parameters", count(parameters));
    if (const auto s = nn::sparsity(*module_))
      details_.emplace_back("kernels",
                            described(*s, has_one_position(config_["model"])));
    if ((!o_.images.empty() || !o_.folder.empty()) && !classifier_)
      throw UsageError(
          "plot: --image and --images need a model with mixers, got " +
          described(config_["model"]));
    if (!classifier_) return;
    data_ = tasks::config_as<tasks::ClassificationConfig>(config_).data;
    if (o_.size > 0) data_.height = data_.width = o_.size;
    if (o_.crop > 0) data_.crop = o_.crop;
  }

  /// Adds a figure of heat maps with the requested scale.
  void add(Heatmaps figure, bool each) {
    figure.each = o_.each || (each && o_.range.empty());
    if (!o_.range.empty()) figure.low = o_.range[0], figure.high = o_.range[1];
    figures_.emplace_back(std::move(figure));
  }

  void biases() {
    if (auto figure = bias_maps(*module_, config_["model"], o_.heads))
      add(std::move(*figure), false);
  }

  void keys() {
    for (size_t i = 0; i < o_.images.size(); ++i) {
      Heatmaps figure = key_maps(*classifier_, data_, o_.images[i], o_.heads);
      figure.name = "keys-" + std::to_string(i + 1);
      add(std::move(figure), true);
    }
  }

  void attention() {
    if (o_.folder.empty()) return;
    add(attention_maps(*classifier_, data_, o_.folder,
                       o_.limit > 0 ? o_.limit : 256, o_.divisor == "pairs",
                       o_.heads),
        true);
  }

  void completions() {
    if (config_["task"] != "image" || o_.completions == 0) return;
    const auto config = tasks::config_as<tasks::ImageConfig>(config_);
    const auto& data = config.data;
    std::optional<data::RawImages> images;
    try {
      images.emplace(
          open_images(data.path, data.height, data.width, data.valid_images));
    } catch (const std::runtime_error& e) {
      // The data may have moved; the other figures do not need them.
      std::cerr
          << "note: no completions, since the model's data cannot be read "
             "(--completions 0 skips them): "
          << e.what() << '\n';
      return;
    }
    const data::ImagePart part = images->split("test");
    Completions what;
    what.count = std::min(part.count, o_.completions);
    what.rows = data.height / 2;
    if (what.count == 0) return;
    const int64_t scale =
        std::max<int64_t>(1, 1000 / (data.width * what.count));
    ImageFigure figure{
        "completions",
        "Completions",
        "Top row: test images with the lower half masked. Below: " +
            base::counted(what.times, "completion") +
            " of each by the model (seed 1).",
        {}};
    figure.image = draw_completions(load_model(o_.model, config), {}, part,
                                    what, data.width, 32, scale);
    figures_.emplace_back(std::move(figure));
  }

  void curves() {
    Chart own = run_chart(o_.model);
    if (!own.panels.empty()) figures_.emplace_back(std::move(own));
    if (runs_) figures_.emplace_back(std::move(*runs_));
  }
  void compare_runs() {
    if (o_.runs.empty()) return;
    std::vector<std::string> all{o_.model};
    all.insert(all.end(), o_.runs.begin(), o_.runs.end());
    for (const std::string& run : all) check_run(run);
    runs_ = runs_chart(all);
  }

  const Options& o_;
  base::Json config_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<models::ClassifierImpl> classifier_;  // null: another model
  tasks::LabelledConfig data_;
  Details details_;
  std::optional<Chart> runs_;  // with --runs
  std::vector<Figure> figures_;
};

}  // namespace

void add_plot(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "plot", "Draw what a model has learned, as PNG files and one HTML page");
  command->add_option("model", o->model, "Directory of a model")->required();
  command
      ->add_option("--out", o->out,
                   "Directory for the PNG files and index.html; default: "
                   "MODEL/plots")
      ->type_name("DIR");
  command
      ->add_option("--image", o->images,
                   "Classifiers with AFT: show the keys of this image; "
                   "repeatable")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--images", o->folder,
                   "Classifiers with attention: show the relative attention, "
                   "averaged over the images in this folder")
      ->type_name("FOLDER");
  add_count(*command, "--limit", o->limit,
            "Use at most N of those images, evenly spaced; default: 256", 1,
            1 << 30);
  command
      ->add_option("--divisor", o->divisor,
                   "Divide relative attention by the number of queries: all of "
                   "them (queries, the default) or only those that have a key "
                   "at the offset (pairs)")
      ->check(one_of({"queries", "pairs"}))
      ->type_name("NAME");
  add_count(*command, "--heads", o->heads,
            "Show the first N heads, or channels of keys; default: 16", 1,
            4096);
  command
      ->add_option("--range", o->range,
                   "Fixed colour scale, to compare models; default: from the "
                   "values")
      ->expected(2)
      ->check(real(-1e30, 1e30))
      ->type_name("LOW HIGH");
  command->add_flag("--each", o->each, "Use a separate colour scale per map");
  command
      ->add_option("--runs", o->runs,
                   "Further runs, whose curves are drawn with those of MODEL")
      ->type_name("DIR");
  add_count(*command, "--completions", o->completions,
            "Image models: number of test images to complete; default: 8", 0,
            100);
  add_view(*command, o->size, o->crop);
  add_threads(*command, o->threads);
  command->footer(
      "Draws the position biases of AFT (exp(w) of aft-full and aft-local, "
      "exp(w) - 1 of aft-conv), the training curves, and\n"
      "completions of image models. index.html shows all figures, with the "
      "value "
      "under the mouse; it needs no server.\n"
      "\n"
      "Examples:\n"
      "  aft plot runs/classify-aft-conv-4x96\n"
      "  aft plot flowers-model --image rose.jpg --image tulip.jpg\n"
      "  aft plot deit-tiny --images imagenet/val --limit 64\n"
      "  aft plot runs/plain --runs runs/entropy runs/gumbel --range -1 1");
  command->callback([o] {
    set_threads(o->threads);
    at::NoGradGuard no_grad;
    Plotter(*o).run();
  });
}

}  // namespace aft::cli
