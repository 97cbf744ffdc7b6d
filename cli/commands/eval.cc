// `aft eval`: bits per character of a text model, bits per dimension of an
// image model, accuracy of a classifier.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "aft/base/counted.h"
#include "aft/tasks/class_names.h"
#include "aft/tasks/classification.h"
#include "aft/tasks/image.h"
#include "aft/tasks/language.h"
#include "cli/commands.h"
#include "cli/image_grid.h"
#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

struct Options {
  std::string model, data, split;
  int64_t stride = 0, batch = 8, bytes = 0, images = 0, size = 0;
  double crop = 0;
  bool json = false;
  int threads = 0;
};

struct Evaluation {
  double nats = 0;
  base::Json json;
  std::string split;
  std::string settings;                  ///< what was evaluated, and how
  std::string result;                    ///< "": the loss in bits
  c10::optional<nn::Sparsity> sparsity;  ///< of the kernels of aft-conv
};

void note_changed(const std::string& expected, const std::string& found,
                  const Options& o) {
  if (o.data.empty() && !expected.empty() && expected != found)
    std::cerr << "note: the data have changed since the model was trained; "
                 "this split may contain training data\n";
}

/// The split to evaluate: --split or, by default, the test part, but all of
/// data that the model was not trained on and that have no test part.
std::string split_of(const Options& o, const std::string& trained_on,
                     const std::string& found, bool has_test) {
  if (!o.split.empty()) return o.split;
  return o.data.empty() || trained_on == found || has_test ? "test" : "all";
}

Evaluation evaluate_text(const base::Json& json, const Options& o) {
  const auto config = tasks::config_as<tasks::LanguageConfig>(json);
  const auto& data = config.data;
  const data::Text text =
      open_text(o.data.empty() ? data.path : o.data, data.mode, data.symbols);
  note_changed(data.fingerprint, text.fingerprint(), o);
  Evaluation out;
  out.split = split_of(o, data.fingerprint, text.fingerprint(), false);
  data::Bytes part = text.split(out.split);
  if (o.bytes > 0 && o.bytes < part.size) part.size = o.bytes;
  const int64_t T = config.model.length, stride = o.stride > 0 ? o.stride : T;
  if (stride > T)
    throw UsageError("eval: --stride must be at most model.length = " +
                     std::to_string(T) + ", got " + std::to_string(stride));
  const auto model = tasks::load_sequence_model(o.model, config.model);
  ProgressMeter meter("symbols");
  // The first symbol is not predicted, but read.
  out.nats = tasks::evaluate(
      model, part, T, stride, o.batch,
      [&](int64_t done, int64_t all) { meter.show(done + 1, all + 1); });
  out.sparsity = nn::sparsity(*model);
  out.json = {{"symbols", part.size},
              {"length", T},
              {"stride", stride},
              {"mode", data.mode}};
  out.settings = base::counted(part.size, "symbol") + " (" + data.mode +
                 "), windows of " + std::to_string(T) + ", " +
                 std::to_string(stride) + " apart";
  return out;
}

Evaluation evaluate_classifier(const base::Json& json, const Options& o) {
  const auto config = tasks::config_as<tasks::ClassificationConfig>(json);
  tasks::LabelledConfig data = config.data;
  const std::string path = o.data.empty() ? data.path : o.data;
  if (path.empty() && data.fingerprint.empty())
    throw UsageError("eval: " + o.model +
                     " was not trained here and has no data; give --data");
  if (o.size > 0) data.height = data.width = o.size;
  check_size("eval", o.size, config.model);
  if (o.crop > 0) data.crop = o.crop;
  const auto model = tasks::load_classifier(o.model, config.model);
  const auto images = data::LabelledImages::open(
      path, data.valid_images, std::max(data.height, data.width));
  note_changed(data.fingerprint, images.fingerprint(), o);
  Evaluation out;
  out.split =
      split_of(o, data.fingerprint, images.fingerprint(), images.has_test());
  data::LabelledPart part = images.split(out.split);
  if (o.images > 0) part = images.some(part, o.images);
  if (part.empty())
    throw data::DataError(path + ": has no images in its split '" + out.split +
                          "'");
  const std::vector<int64_t> to_model =
      tasks::match_classes(images, data.classes, model->classes());
  if (tasks::unnamed(data.classes))
    std::cerr << "note: the model's classes have no names; class i of the data "
                 "is taken as class i of the model\n";
  ProgressMeter meter("images");
  const tasks::Accuracy a = tasks::evaluate(
      *model, images, part, to_model, data, o.batch,
      [&](int64_t done, int64_t all) { meter.show(done, all); });
  out.nats = a.loss;
  out.sparsity = nn::sparsity(*model);
  out.json = {{"images", a.images},  {"height", data.height},
              {"width", data.width}, {"crop", data.crop},
              {"top1", a.top1},      {"top5", a.top5}};
  char text[128];
  snprintf(text, sizeof(text), "top-1 %.2f %%, top-5 %.2f %%, loss %.4f",
           100 * a.top1, 100 * a.top5, a.loss);
  out.result = text;
  out.settings = base::counted(a.images, "image") + " of " +
                 std::to_string(data.height) + "x" +
                 std::to_string(data.width) + ", crop " + number(data.crop);
  return out;
}

Evaluation evaluate_images(const base::Json& json, const Options& o) {
  const auto config = tasks::config_as<tasks::ImageConfig>(json);
  const auto& data = config.data;
  const auto model = load_model(o.model, config);
  const data::RawImages images =
      open_images(o.data.empty() ? data.path : o.data, data.height, data.width,
                  data.valid_images);
  note_changed(data.fingerprint, images.fingerprint(), o);
  Evaluation out;
  out.split =
      split_of(o, data.fingerprint, images.fingerprint(), images.has_test());
  data::ImagePart part = images.split(out.split);
  if (o.images > 0 && o.images < part.count) part.count = o.images;
  if (part.count == 0)
    throw data::DataError((o.data.empty() ? data.path : o.data) +
                          ": has no images in its split '" + out.split + "'");
  ProgressMeter meter("images");
  out.nats = tasks::evaluate(
      model, part, o.batch,
      [&](int64_t done, int64_t all) { meter.show(done, all); });
  out.sparsity = nn::sparsity(*model.module());
  out.json = {
      {"images", part.count}, {"height", data.height}, {"width", data.width}};
  out.settings = base::counted(part.count, "image") + " of " +
                 std::to_string(data.height) + "x" + std::to_string(data.width);
  return out;
}

void run(const Options& o) {
  const base::Json config = tasks::load_config(o.model);
  const std::string task = config["task"];
  const bool text = task == "language", classes = task == "classification";
  if ((o.size > 0 || o.crop > 0) && !classes)
    throw UsageError(
        "eval: --size and --crop are for classifiers; this model is of task " +
        task);
  if (o.images > 0 && text)
    throw UsageError(
        "eval: --images is for image models; use --bytes for this text "
        "model");
  if ((o.bytes > 0 || o.stride > 0) && !text)
    throw UsageError(
        "eval: --bytes and --stride are for text models; use --images for "
        "this model");
  if (o.data == "-" && !text)
    throw UsageError("eval: --data - reads a text; this model is of task " +
                     task);
  report_weights(o.model);
  const Evaluation out = text      ? evaluate_text(config, o)
                         : classes ? evaluate_classifier(config, o)
                                   : evaluate_images(config, o);
  if (o.json) {
    base::Json j{{"model", o.model}, {"split", out.split}};
    if (const int64_t step = tasks::weights_of(o.model).step; step >= 0)
      j["step"] = step;
    j.update(out.json);
    j["nats"] = out.nats;
    if (out.sparsity) {
      j["kernel_entropy"] = out.sparsity->entropy;
      j["kernel_entropy_most"] = out.sparsity->most;
      j["kernel_top"] = out.sparsity->top;
    }
    if (!classes) j[text ? "bpc" : "bits_per_dim"] = out.nats * kBits;
    std::cout << j.dump(2) << '\n';
    return;
  }
  char bits[64];
  snprintf(bits, sizeof(bits), "%s %.4f", tasks::task_kind(config).unit.c_str(),
           out.nats * kBits);
  printf("%s: %s on %s, %s\n", o.model.c_str(),
         classes ? out.result.c_str() : bits, out.split.c_str(),
         out.settings.c_str());
  if (out.sparsity)
    printf("kernels: %s\n",
           described(*out.sparsity, has_one_position(config["model"])).c_str());
}

}  // namespace

void add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("eval",
                         "Evaluate a model: bits per character of text, bits "
                         "per dimension of images, accuracy of a classifier");
  add_model(*command, o->model);
  add_split(*command, o->data, o->split,
            "Text (-: the standard input) or images",
            "train, valid, test or all; default: test, or all for other data "
            "without a test part");
  add_count(*command, "--stride", o->stride,
            "Text: symbols between the starts of windows; smaller values give "
            "more context and take longer; default: the model's length, no "
            "overlap");
  add_count(*command, "--bytes", o->bytes,
            "Text: only the first N symbols of the split", 2);
  add_count(*command, "--images", o->images,
            "Images: only the first N of the split; classification: N evenly "
            "spaced ones");
  add_batch(*command, o->batch, "Windows or images");
  add_view(*command, o->size, o->crop);
  command->add_flag("--json", o->json, "Print a JSON object");
  add_threads(*command, o->threads);
  command->footer(
      "Examples:\n"
      "  aft eval runs/text-aft-local-4x128\n"
      "  aft eval book --split valid --stride 64 --json\n"
      "  aft eval book --data other-book.txt\n"
      "  aft eval runs/image-aft-local-4x128 --images 100\n"
      "  aft eval runs/classify-aft-conv-4x96 --size 96");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
