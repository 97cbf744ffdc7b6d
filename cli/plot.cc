// `aft plot`: what a model has learned, as pictures and one page: position
// biases, keys, relative attention, curves and completions.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "aft/nn/aft.h"
#include "aft/tasks/classification.h"
#include "aft/tasks/inside.h"
#include "aft/tasks/picture_files.h"
#include "cli/commands.h"
#include "cli/curve.h"
#include "cli/figures/page.h"
#include "cli/model.h"
#include "cli/sheet.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::string model, out, folder, divisor;  // "", 0: not given
  std::vector<std::string> images, runs;
  std::vector<double> range;
  int64_t limit = 0, heads = 16, completions = 8, size = 0;
  double crop = 0;
  bool each = false;
  int threads = 0;
};

std::string layer_name(size_t layer) {
  return "layer " + std::to_string(layer + 1);
}
std::string head_name(int64_t head) {
  return "head " + std::to_string(head + 1);
}

/// x [height, width] as a map.
Map map_of(const at::Tensor& x, std::string name, int64_t y0 = 0,
           int64_t x0 = 0) {
  const at::Tensor values = x.to(at::kFloat).contiguous();
  const float* data = values.data_ptr<float>();
  return {x.size(0), x.size(1), {data, data + values.numel()},
          y0,        x0,        std::move(name)};
}

class Plotter {
 public:
  explicit Plotter(const Options& o)
      : o_(o), config_(tasks::load_config(o.model)) {}

  void run() {
    check();
    compare_runs();  // before the work: a run may not be there
    details_ = {{"task", config_["task"]},
                {"model", described(config_["model"])}};
    if (exists(weights())) {
      load();
      biases();
      keys();
      attention();
      completions();
    } else {
      std::cerr << "note: " << weights()
                << " is not there yet: only its curves\n";
    }
    curves();
    if (figures_.empty())
      throw std::runtime_error(
          o_.model +
          ": nothing to draw: it has neither position biases nor metrics" +
          (classifier_ ? "; --images FOLDER shows what attention looks at"
                       : ""));
    const std::string out = o_.out.empty() ? o_.model + "/plots" : o_.out;
    write_figures(out, o_.model, "", details_, figures_);
    std::cout << out << "/index.html: " << figures_.size()
              << (figures_.size() == 1 ? " figure" : " figures") << '\n';
  }

 private:
  void check() const {
    const bool classes = config_["task"] == "classification";
    if (!classes && (!o_.images.empty() || !o_.folder.empty() || o_.size > 0 ||
                     o_.crop > 0))
      throw UsageError(
          "plot: --image, --images, --size and --crop are for models of "
          "classification; this one is of task " +
          config_["task"].get<std::string>());
    if (!o_.range.empty() && o_.each)
      throw UsageError(
          "plot: expected one of --each and --range, a scale for every map or "
          "the same for all, got both");
    if (o_.folder.empty() && (o_.limit > 0 || !o_.divisor.empty()))
      throw UsageError(std::string("plot: ") +
                       (o_.limit > 0 ? "--limit" : "--divisor") +
                       " is for the pictures of --images, which is not given");
    if (!exists(weights()) && (!o_.images.empty() || !o_.folder.empty()))
      throw UsageError(std::string("plot: ") +
                       (o_.folder.empty() ? "--image" : "--images") +
                       " needs " + weights() + ", which is not there yet");
    if (!o_.range.empty() && !(o_.range[0] < o_.range[1]))
      throw UsageError("plot: --range must rise, got " + number(o_.range[0]) +
                       " " + number(o_.range[1]));
    if (o_.runs.size() + 1 > kMostCurves)
      throw UsageError("plot: expected at most " +
                       std::to_string(kMostCurves - 1) + " --runs, got " +
                       std::to_string(o_.runs.size()));
    if (classes) check_size("plot", o_.size, config_["model"]);
  }
  static void check_run(const std::string& run) {
    if (!is_directory(run))
      throw std::runtime_error(
          "plot: --runs: expected the directory of a run, " + run + " is none");
    if (!exists(run + "/metrics.jsonl"))
      throw std::runtime_error("plot: --runs: " + run +
                               "/metrics.jsonl: is not there");
  }
  std::string weights() const { return o_.model + "/model.safetensors"; }

  void load() {
    tasks::check_weights(o_.model, config_["model"]);
    module_ = tasks::task_kind(config_).model(config_);
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
          "plot: --image and --images are for models with mixers; "
          "this one is " +
          described(config_["model"]));
    if (!classifier_) return;
    data_ = tasks::config_as<tasks::ClassificationConfig>(config_).data;
    if (o_.size > 0) data_.height = data_.width = o_.size;
    if (o_.crop > 0) data_.crop = o_.crop;
  }

  /// A sheet of heat maps with the scale that was asked for.
  void add(Heatmaps figure, bool each) {
    figure.each = o_.each || (each && o_.range.empty());
    if (!o_.range.empty()) figure.low = o_.range[0], figure.high = o_.range[1];
    figures_.emplace_back(std::move(figure));
  }

  /// Layers down, the first heads across.
  Heatmaps by_heads(size_t layers, int64_t heads) const {
    Heatmaps figure;
    for (size_t l = 0; l < layers; ++l)
      figure.row_names.push_back(layer_name(l));
    for (int64_t h = 0; h < std::min(heads, o_.heads); ++h)
      figure.column_names.push_back(head_name(h));
    return figure;
  }
  /// x [heads, height, width] as the next row.
  static void add_row(const at::Tensor& x, size_t layer, int64_t y0, int64_t x0,
                      Heatmaps& figure) {
    for (size_t h = 0; h < figure.column_names.size(); ++h)
      figure.maps.push_back(
          map_of(x[static_cast<int64_t>(h)],
                 layer_name(layer) + ", " + figure.column_names[h], y0, x0));
  }
  std::string first_heads(int64_t heads) const {
    return heads > o_.heads ? ", the first " + std::to_string(o_.heads) +
                                  " of " + std::to_string(heads) + " heads"
                            : "";
  }

  void biases() {
    std::vector<tasks::Biases> all;
    for (const auto& m : module_->modules()) {
      const auto mixer = std::dynamic_pointer_cast<nn::Mixer>(m);
      if (!mixer) continue;
      tasks::Biases b = tasks::position_biases(*mixer, kMostCells);
      if (b.values.defined()) all.push_back(std::move(b));
    }
    if (all.empty()) return;
    const at::Tensor& first = all[0].values;
    Heatmaps figure;
    if (!all[0].relative) {
      figure = by_pairs(all);
    } else if (first.dim() == 2) {  // on a line: heads down, taps across
      for (size_t l = 0; l < all.size(); ++l) {
        figure.column_names.push_back(layer_name(l));
        figure.maps.push_back(
            map_of(all[l].values, layer_name(l), 1, 1 - all[l].values.size(1)));
      }
      figure.row_names = {""};
      figure.y_name = "head", figure.x_name = "position";
    } else {
      figure = by_heads(all.size(), first.size(0));
      for (size_t l = 0; l < all.size(); ++l)
        add_row(all[l].values, l, -(first.size(1) / 2), -(first.size(2) / 2),
                figure);
      figure.y_name = "dy", figure.x_name = "dx";
    }
    figure.name = "biases", figure.title = "Position biases";
    if (all[0].relative) {
      figure.quantity = "exp(w) - 1", figure.colours = Colours::kDiverging;
      figure.caption =
          "exp(w) - 1 by the place of the key relative to the query" +
          (first.dim() == 2 ? "" : first_heads(first.size(0))) + ".";
    } else {
      figure.quantity = "exp(w)", figure.colours = Colours::kSequential;
      figure.y_name = "t", figure.x_name = "j";
      figure.caption = "exp(w) of query t (down) and key j (across)";
      if (config_["model"].value("pool", "") == "token")
        figure.caption += "; the first of both is the class token";
      if (all[0].block > 1)
        figure.caption += "; means of blocks of " +
                          std::to_string(all[0].block) + " x " +
                          std::to_string(all[0].block);
      figure.caption += ".";
    }
    add(std::move(figure), false);
  }

  /// Layers from the top left to the bottom right.
  static Heatmaps by_pairs(const std::vector<tasks::Biases>& all) {
    constexpr size_t kAcross = 6;
    Heatmaps figure;
    const size_t across = std::min(kAcross, all.size()),
                 rows = (all.size() + across - 1) / across;
    figure.row_names.resize(rows), figure.column_names.resize(across);
    for (size_t l = 0; l < all.size(); ++l)
      figure.maps.push_back(map_of(all[l].values[0], layer_name(l)));
    figure.maps.resize(rows * across);
    return figure;
  }

  /// A picture as the model reads it, and as numbers [1, 3, H, W].
  std::pair<io::Image, at::Tensor> read(const std::string& path) const {
    const io::Image image = tasks::centre(io::read_image(path), data_.height,
                                          data_.width, data_.crop);
    at::Tensor numbers = at::empty({1, 3, data_.height, data_.width});
    tasks::normalise(image, numbers.data_ptr<float>());
    return {image, numbers};
  }

  void keys() {
    for (size_t i = 0; i < o_.images.size(); ++i) {
      const auto [image, numbers] = read(o_.images[i]);
      const std::vector<at::Tensor> k = tasks::keys_of(*classifier_, numbers);
      Heatmaps figure = by_heads(k.size(), k[0].size(1));
      for (size_t l = 0; l < k.size(); ++l) add_row(k[l][0], l, 0, 0, figure);
      const std::string& path = o_.images[i];
      figure.name = "keys-" + std::to_string(i + 1);
      figure.title = "Keys of " + path.substr(path.find_last_of('/') + 1);
      figure.caption =
          "The keys of every patch, by layer and " +
          std::string(k[0].size(1) == classifier_->config.width ? "channel"
                                                                : "head") +
          first_heads(k[0].size(1)) + ".";
      figure.quantity = "k", figure.y_name = "row", figure.x_name = "column";
      figure.picture = image;
      add(std::move(figure), true);
    }
  }

  void attention() {
    if (o_.folder.empty()) return;
    tasks::RelativeAttention relative(*classifier_);
    std::vector<std::string> paths =
        tasks::list_pictures(o_.folder, /*hidden=*/false);
    if (paths.empty())
      throw tasks::DataError(o_.folder +
                             ": expected PNG or JPEG files, got none");
    const int64_t all = static_cast<int64_t>(paths.size()),
                  used = std::min(all, o_.limit > 0 ? o_.limit : 256);
    Meter meter("images");
    constexpr int64_t kTogether = 8;
    for (int64_t i = 0; i < used; i += kTogether) {
      std::vector<at::Tensor> batch;
      for (int64_t j = i; j < std::min(used, i + kTogether); ++j)
        batch.push_back(
            read(paths[static_cast<size_t>(j * all / used)]).second);
      relative.add(at::cat(batch));
      meter.show(relative.images(), used);
    }
    const bool pairs = o_.divisor == "pairs";
    using Divisor = tasks::RelativeAttention::Divisor;
    const at::Tensor mean =
        relative.mean(pairs ? Divisor::kPairs : Divisor::kQueries);
    Heatmaps figure = by_heads(static_cast<size_t>(mean.size(0)), mean.size(1));
    for (int64_t l = 0; l < mean.size(0); ++l)
      add_row(mean[l], static_cast<size_t>(l), -(mean.size(2) / 2),
              -(mean.size(3) / 2), figure);
    figure.name = "attention", figure.title = "Average relative attention";
    figure.caption =
        "Attention by the place of the key relative to the query, summed over "
        "queries and " +
        std::to_string(used) +
        " images and divided by the number of images times " +
        (pairs ? "the queries that have a key at that place"
               : "all queries, " + std::to_string((mean.size(2) + 1) / 2 *
                                                  ((mean.size(3) + 1) / 2))) +
        "; the class token is left out" + first_heads(mean.size(1)) + ".";
    figure.quantity = "attention", figure.y_name = "dy", figure.x_name = "dx";
    add(std::move(figure), true);
  }

  void completions() {
    if (config_["task"] != "image" || o_.completions == 0) return;
    const auto config = tasks::config_as<tasks::ImageConfig>(config_);
    const auto& data = config.data;
    std::optional<tasks::Pictures> pictures;
    try {
      pictures.emplace(
          open_pictures(data.path, data.height, data.width, data.valid_images));
    } catch (const std::runtime_error& e) {
      // The data may be elsewhere now; all other figures do without.
      std::cerr << "note: no completions, as the model's data cannot be read "
                   "(`--completions 0` leaves them out): "
                << e.what() << '\n';
      return;
    }
    const tasks::PicturePart part = pictures->split("test");
    Completions what;
    what.count = std::min(part.count, o_.completions);
    what.rows = data.height / 2;
    if (what.count == 0) return;
    const int64_t scale =
        std::max<int64_t>(1, 1000 / (data.width * what.count));
    Picture figure{"completions",
                   "Completions",
                   "Test pictures whose lower half is masked, on top; below, " +
                       std::to_string(what.times) +
                       " completions of each by the model (seed 1).",
                   {}};
    draw_completions(load_model(o_.model, config), {}, part, what, data.width,
                     32, scale,
                     [&](const io::Image& sheet) { figure.image = sheet; });
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
  models::Json config_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<models::ClassifierImpl> classifier_;  // null: another one
  tasks::LabelledConfig data_;
  Details details_;
  std::optional<Chart> runs_;  // with --runs
  std::vector<Figure> figures_;
};

}  // namespace

void add_plot(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "plot", "What a model has learned, as pictures and one page to open");
  command->add_option("model", o->model, "Directory of a model")->required();
  command
      ->add_option("--out", o->out,
                   "Directory for the pictures (PNG) and index.html; default: "
                   "MODEL/plots")
      ->type_name("DIR");
  command
      ->add_option("--image", o->images,
                   "Classifiers with AFT: the keys of this picture; may be "
                   "given again")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--images", o->folder,
                   "Classifiers with attention: average relative attention "
                   "over the pictures in this folder")
      ->type_name("FOLDER");
  command
      ->add_option("--limit", o->limit,
                   "At most N of those pictures, evenly; default: 256")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->type_name("N");
  command
      ->add_option("--divisor", o->divisor,
                   "Relative attention is divided by the number of queries "
                   "(default), or pairs: of those with a key at the offset")
      ->check(CLI::IsMember({"queries", "pairs"}).description(""))
      ->type_name("NAME");
  command
      ->add_option("--heads", o->heads,
                   "The first N heads, or channels of keys; default: 16")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}).description(""))
      ->type_name("N");
  command
      ->add_option("--range", o->range,
                   "A fixed scale of the colours, to compare several models; "
                   "default: from the numbers")
      ->expected(2)
      ->check(real(-1e30, 1e30))
      ->type_name("LOW HIGH");
  command->add_flag("--each", o->each, "A scale of its own for every map");
  command
      ->add_option("--runs", o->runs,
                   "More runs, whose curves are drawn with those of this one")
      ->type_name("DIR");
  command
      ->add_option("--completions", o->completions,
                   "Models of images: test pictures to complete; default: 8")
      ->check(CLI::Range(int64_t{0}, int64_t{100}).description(""))
      ->type_name("N");
  add_view(*command, o->size, o->crop);
  add_threads(*command, o->threads);
  command->footer(
      "Draws what the model has: exp(w) of aft-full and aft-local, exp(w) - 1 "
      "of aft-conv, curves of its training, and\n"
      "completions of models of images. index.html shows all of it, with the "
      "values under the mouse; it needs no server.\n"
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
