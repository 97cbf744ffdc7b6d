// `aft eval`: bits per character of a model on a text, bits per dimension on
// pictures.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

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
  std::string model, data, split = "test";
  int64_t stride = 0, batch = 8, bytes = 0, images = 0, size = 0;
  double crop = 0;
  bool json = false;
  int threads = 0;
};

/// What was measured, as JSON and as the end of a line.
struct Answer {
  double nats = 0;
  base::Json json;
  std::string line;
  std::string figure;                    ///< "": the loss in bits
  c10::optional<nn::Sparsity> sparsity;  ///< of the kernels of aft-conv
};

void note_changed(const std::string& expected, const std::string& found,
                  const Options& o) {
  if (o.data.empty() && !expected.empty() && expected != found)
    std::cerr << "note: the data have changed since the model was trained: "
                 "their parts may overlap with what was trained on\n";
}

Answer judge_text(const base::Json& json, const Options& o) {
  const auto config = tasks::config_as<tasks::LanguageConfig>(json);
  const auto& data = config.data;
  const data::Text text = data::Text::open(o.data.empty() ? data.path : o.data,
                                           data.mode, data.symbols);
  note_changed(data.fingerprint, text.fingerprint(), o);
  data::Bytes part = text.split(o.split);
  if (o.bytes > 0 && o.bytes < part.size) part.size = o.bytes;
  const int64_t T = config.model.length, stride = o.stride > 0 ? o.stride : T;
  if (stride > T)
    throw UsageError("eval: --stride must be at most model.length = " +
                     std::to_string(T) + ", got " + std::to_string(stride));
  const auto model = tasks::load_model(o.model, config.model);
  ProgressMeter meter("symbols");
  Answer answer;
  answer.nats = tasks::evaluate(
      model, part, T, stride, o.batch,
      [&](int64_t done, int64_t all) { meter.show(done, all); });
  answer.sparsity = nn::sparsity(*model);
  answer.json = {{"symbols", part.size},
                 {"length", T},
                 {"stride", stride},
                 {"mode", data.mode}};
  answer.line = std::to_string(part.size) + " symbols (" + data.mode +
                "), windows of " + std::to_string(T) + ", " +
                std::to_string(stride) + " apart";
  return answer;
}

Answer judge_classes(const base::Json& json, const Options& o) {
  const auto config = tasks::config_as<tasks::ClassificationConfig>(json);
  tasks::LabelledConfig data = config.data;
  const std::string path = o.data.empty() ? data.path : o.data;
  if (o.size > 0) data.height = data.width = o.size;
  check_size("eval", o.size, config.model);
  if (o.crop > 0) data.crop = o.crop;
  const auto model = tasks::load_classifier(o.model, config.model);
  const auto pictures = data::LabelledImages::open(
      path, data.valid_images, std::max(data.height, data.width));
  note_changed(data.fingerprint, pictures.fingerprint(), o);
  data::LabelledPart part = pictures.split(o.split);
  if (o.images > 0) part = pictures.some(part, o.images);
  if (part.empty())
    throw data::DataError(path + ": has no pictures in its part '" + o.split +
                          "'");
  ProgressMeter meter("images");
  const tasks::Accuracy a = tasks::evaluate(
      *model, pictures, part,
      tasks::match_classes(pictures.classes(), data.classes), data, o.batch,
      [&](int64_t done, int64_t all) { meter.show(done, all); });
  Answer answer;
  answer.nats = a.loss;
  answer.sparsity = nn::sparsity(*model);
  answer.json = {{"images", a.images},  {"height", data.height},
                 {"width", data.width}, {"crop", data.crop},
                 {"top1", a.top1},      {"top5", a.top5}};
  char text[128];
  snprintf(text, sizeof(text), "top-1 %.2f %%, top-5 %.2f %%, loss %.4f",
           100 * a.top1, 100 * a.top5, a.loss);
  answer.figure = text;
  answer.line = std::to_string(a.images) + " images of " +
                std::to_string(data.height) + "x" + std::to_string(data.width) +
                ", crop " + number(data.crop);
  return answer;
}

Answer judge_pictures(const base::Json& json, const Options& o) {
  const auto config = tasks::config_as<tasks::ImageConfig>(json);
  const auto& data = config.data;
  const auto model = load_model(o.model, config);
  const data::RawImages pictures =
      open_images(o.data.empty() ? data.path : o.data, data.height, data.width,
                  data.valid_images);
  note_changed(data.fingerprint, pictures.fingerprint(), o);
  data::ImagePart part = pictures.split(o.split);
  if (o.images > 0 && o.images < part.count) part.count = o.images;
  if (part.count == 0)
    throw data::DataError((o.data.empty() ? data.path : o.data) +
                          ": has no pictures in its part '" + o.split + "'");
  ProgressMeter meter("images");
  Answer answer;
  answer.nats = tasks::evaluate(
      model, part, o.batch,
      [&](int64_t done, int64_t all) { meter.show(done, all); });
  answer.sparsity = nn::sparsity(*model.module());
  answer.json = {
      {"images", part.count}, {"height", data.height}, {"width", data.width}};
  answer.line = std::to_string(part.count) + " images of " +
                std::to_string(data.height) + "x" + std::to_string(data.width);
  return answer;
}

void run(const Options& o) {
  const base::Json config = tasks::load_config(o.model);
  const std::string task = config["task"];
  const bool text = task == "language", classes = task == "classification";
  if ((o.size > 0 || o.crop > 0) && !classes)
    throw UsageError(
        "eval: --size and --crop are for models of classification; this one "
        "is of task " +
        task);
  if (o.images > 0 && text)
    throw UsageError(
        "eval: --images is for models of images; this one is of "
        "text, which --bytes is for");
  if ((o.bytes > 0 || o.stride > 0) && !text)
    throw UsageError(
        "eval: --bytes and --stride are for models of text; this "
        "one is of images, which --images is for");
  const Answer answer = text      ? judge_text(config, o)
                        : classes ? judge_classes(config, o)
                                  : judge_pictures(config, o);
  if (o.json) {
    base::Json j{{"model", o.model}, {"split", o.split}};
    j.update(answer.json);
    j["nats"] = answer.nats;
    if (answer.sparsity) {
      j["kernel_entropy"] = answer.sparsity->entropy;
      j["kernel_entropy_most"] = answer.sparsity->most;
      j["kernel_top"] = answer.sparsity->top;
    }
    if (!classes) j[text ? "bpc" : "bits_per_dim"] = answer.nats * kBits;
    std::cout << j.dump(2) << '\n';
    return;
  }
  char bits[64];
  snprintf(bits, sizeof(bits), "%s %.4f", tasks::task_kind(config).unit.c_str(),
           answer.nats * kBits);
  printf("%s: %s on %s, %s\n", o.model.c_str(),
         classes ? answer.figure.c_str() : bits, o.split.c_str(),
         answer.line.c_str());
  if (answer.sparsity)
    printf(
        "kernels: %s\n",
        described(*answer.sparsity, has_one_position(config["model"])).c_str());
}

}  // namespace

void add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("eval",
                         "Bits per character of a model on a text, bits per "
                         "dimension on pictures, accuracy on classes");
  command->add_option("model", o->model, "Directory of a model")->required();
  command
      ->add_option("--data", o->data,
                   "Text or pictures; default: what it was trained on")
      ->type_name("PATH");
  command->add_option("--split", o->split, "train, valid or test (default)")
      ->type_name("NAME");
  command
      ->add_option("--stride", o->stride,
                   "Text: bytes from one window to the next; default: the "
                   "model's length, no overlap. Smaller: more context, more "
                   "work")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command
      ->add_option("--bytes", o->bytes, "Text: only the first N of the split")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command
      ->add_option("--images", o->images,
                   "Images: only the first N of the split (with classes: N "
                   "of it, evenly)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command
      ->add_option("--batch", o->batch,
                   "Windows or pictures at once; default: 8")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
  add_view(*command, o->size, o->crop);
  command->add_flag("--json", o->json, "A JSON object instead of a line");
  add_threads(*command, o->threads);
  command->footer(
      "Examples:\n"
      "  aft eval runs/text-aft-local-4x128\n"
      "  aft eval book --split valid --stride 64 --json\n"
      "  aft eval runs/image-aft-local-4x128 --images 100\n"
      "  aft eval runs/classify-aft-conv-4x96 --size 96");
  command->callback([o] {
    set_threads(o->threads);
    run(*o);
  });
}

}  // namespace aft::cli
