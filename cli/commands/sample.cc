// `aft sample` and `aft complete`: pictures from a model, on one sheet.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "aft/io/image.h"
#include "cli/commands.h"
#include "cli/image_grid.h"
#include "cli/model.h"

namespace aft::cli {
namespace {

struct Options {
  std::string model, out, data, split = "test";
  int64_t count = 0, columns = 0, batch = 32, scale = 4;
  int64_t first = 0, times = 3;
  double keep = 0.5;
  tasks::Sampling sampling;
  int threads = 0;
};

tasks::ImageConfig load(const Options& o) {
  return tasks::config_as<tasks::ImageConfig>(
      tasks::load_config(o.model, "image"));
}

void write(const Options& o, const ImageList& pictures,
           const tasks::ImageConfig& config, int64_t columns) {
  io::write_png(o.out, image_grid(pictures, config.data.height,
                                  config.data.width, columns, o.scale));
}

void sample(const Options& o) {
  const tasks::ImageConfig config = load(o);
  const tasks::ImageModel model = load_model(o.model, config);
  const int64_t columns =
      o.columns > 0 ? o.columns
                    : static_cast<int64_t>(
                          std::ceil(std::sqrt(static_cast<double>(o.count))));
  draw_images(model, o.sampling, ImageList(static_cast<size_t>(o.count)),
              o.batch, [&](const ImageList& pictures) {
                write(o, pictures, config, std::min(columns, o.count));
              });
  std::cout << o.out << ": " << o.count << " images of " << config.data.height
            << "x" << config.data.width << " from " << o.model << ", seed "
            << o.sampling.seed << '\n';
}

void complete(const Options& o) {
  const tasks::ImageConfig config = load(o);
  const auto& data = config.data;
  const tasks::ImageModel model = load_model(o.model, config);
  const std::string path = o.data.empty() ? data.path : o.data;
  const data::RawImages pictures =
      open_images(path, data.height, data.width, data.valid_images);
  const data::ImagePart part = pictures.split(o.split);
  const int64_t left = part.count - o.first,
                count = o.count > 0 ? o.count : std::min<int64_t>(left, 8);
  if (left < 1 || count > left)
    throw data::DataError(
        (path.empty() ? "the built-in pictures" : path) + ": the part '" +
        o.split + "' has " + std::to_string(part.count) +
        " pictures; expected --first plus --count at most that, got " +
        std::to_string(o.first) + " and " + std::to_string(o.count));
  // Whole rows of pixels are kept.
  const int64_t rows = std::llround(o.keep * static_cast<double>(data.height));
  draw_completions(model, o.sampling, part, {o.first, count, o.times, rows},
                   data.width, o.batch, o.scale, [&](const io::Image& sheet) {
                     io::write_png(o.out, sheet);
                   });
  std::cout << o.out << ": " << count << " images of '" << o.split << "' with "
            << rows << " of " << data.height << " rows, completed " << o.times
            << " times by " << o.model << ", seed " << o.sampling.seed << '\n';
}

void add_common(CLI::App& command, Options& o) {
  command.add_option("model", o.model, "Directory of a model of images")
      ->required();
  command.add_option("--out", o.out, "The sheet (PNG); default: " + o.out)
      ->type_name("FILE");
  command
      .add_option("--batch", o.batch,
                  "Images drawn at once; default: " + std::to_string(o.batch))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N");
  command
      .add_option(
          "--scale", o.scale,
          "Pixels of the sheet a pixel; default: " + std::to_string(o.scale))
      ->check(CLI::Range(int64_t{1}, int64_t{64}).description(""))
      ->type_name("N");
  add_sampling(command, o.sampling,
               "The same seed draws the same pictures; default: 1");
  add_threads(command, o.threads);
}

}  // namespace

void add_sample(CLI::App& app) {
  auto o = std::make_shared<Options>();
  o->out = "samples.png", o->count = 16;
  CLI::App* command =
      app.add_subcommand("sample", "Draw pictures with a model, on one sheet");
  add_common(*command, *o);
  command->add_option("--count", o->count, "How many; default: 16")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}).description(""))
      ->type_name("N");
  command
      ->add_option("--columns", o->columns,
                   "Images in a row of the sheet; default: a square")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}).description(""))
      ->type_name("N");
  command->footer(
      "Each sub-pixel is drawn from what came before it, on the model's state: "
      "its price does not grow (attention\n"
      "and other mixers that keep all aside). A network over pictures "
      "(PixelCNN "
      "and its kin) is computed anew each time.\n"
      "\n"
      "Examples:\n"
      "  aft sample runs/image-aft-local-4x128\n"
      "  aft sample holiday-model --count 64 --temperature 0.95 --out "
      "grid.png");
  command->callback([o] {
    set_threads(o->threads);
    sample(*o);
  });
}

void add_complete(CLI::App& app) {
  auto o = std::make_shared<Options>();
  o->out = "completions.png";
  CLI::App* command = app.add_subcommand(
      "complete",
      "Complete test pictures whose lower part is masked, on one sheet");
  add_common(*command, *o);
  command
      ->add_option("--data", o->data,
                   "Images to complete; default: what it was trained on")
      ->type_name("PATH");
  command->add_option("--split", o->split, "train, valid or test (default)")
      ->type_name("NAME");
  command
      ->add_option("--count", o->count,
                   "How many pictures; default: 8, or as many as there are")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}).description(""))
      ->type_name("N");
  command
      ->add_option("--first", o->first, "Number of the first one; default: 0")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40).description(""))
      ->type_name("N");
  command->add_option("--times", o->times, "Completions of each; default: 3")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}).description(""))
      ->type_name("N");
  command
      ->add_option("--keep", o->keep,
                   "Share of the rows that is given, from the top; default: "
                   "0.5")
      ->check(real(0, 1))
      ->type_name("X");
  command->footer(
      "On the sheet: the masked pictures on top, a row of completions below "
      "for each time.\n"
      "\n"
      "Examples:\n"
      "  aft complete runs/image-aft-local-4x128\n"
      "  aft complete holiday-model --keep 0.75 --times 5 --out lower.png");
  command->callback([o] {
    set_threads(o->threads);
    complete(*o);
  });
}

}  // namespace aft::cli
