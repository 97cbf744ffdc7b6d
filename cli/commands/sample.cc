// `aft sample` and `aft complete`: generate images and complete masked ones, as
// one image grid.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "aft/base/counted.h"
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

void write(const Options& o, const ImageList& images,
           const tasks::ImageConfig& config, int64_t columns) {
  io::write_png(o.out, image_grid(images, config.data.height, config.data.width,
                                  columns, o.scale));
}

void sample(const Options& o) {
  const tasks::ImageConfig config = load(o);
  const tasks::ImageModel model = load_model(o.model, config);
  const int64_t columns =
      o.columns > 0 ? o.columns
                    : static_cast<int64_t>(
                          std::ceil(std::sqrt(static_cast<double>(o.count))));
  draw_images(model, o.sampling, ImageList(static_cast<size_t>(o.count)),
              o.batch, [&](const ImageList& images) {
                write(o, images, config, std::min(columns, o.count));
              });
  std::cout << o.out << ": " << base::counted(o.count, "image") << " of "
            << config.data.height << "x" << config.data.width << " from "
            << o.model << ", seed " << o.sampling.seed << '\n';
}

void complete(const Options& o) {
  const tasks::ImageConfig config = load(o);
  const auto& data = config.data;
  const tasks::ImageModel model = load_model(o.model, config);
  const std::string path = o.data.empty() ? data.path : o.data;
  const data::RawImages images =
      open_images(path, data.height, data.width, data.valid_images);
  const data::ImagePart part = images.split(o.split);
  const int64_t left = part.count - o.first,
                count = o.count > 0 ? o.count : std::min<int64_t>(left, 8);
  if (left < 1 || count > left)
    throw data::DataError(
        (path.empty() ? "the built-in images" : path) + ": the split '" +
        o.split + "' has " + base::counted(part.count, "image") +
        "; expected --first plus --count to be at most that, got " +
        std::to_string(o.first) + " and " + std::to_string(o.count));
  const int64_t rows = std::llround(o.keep * static_cast<double>(data.height));
  draw_completions(model, o.sampling, part, {o.first, count, o.times, rows},
                   data.width, o.batch, o.scale,
                   [&](const io::Image& grid) { io::write_png(o.out, grid); });
  std::cout << o.out << ": " << base::counted(count, "image") << " of '"
            << o.split << "' with " << rows << " of "
            << base::counted(data.height, "row") << ", completed "
            << base::counted(o.times, "time") << " by " << o.model << ", seed "
            << o.sampling.seed << '\n';
}

void add_common(CLI::App& command, Options& o) {
  add_model(command, o.model);
  add_text(command, "--out", o.out, "FILE",
           "The image grid (PNG); default: " + o.out);
  add_batch(command, o.batch, "Images");
  add_count(command, "--scale", o.scale,
            "Size of a pixel in the grid; default: " + std::to_string(o.scale),
            1, 64);
  add_sampling(command, o.sampling,
               "The same seed gives the same images; default: 1");
  add_threads(command, o.threads);
}

}  // namespace

void add_sample(CLI::App& app) {
  auto o = std::make_shared<Options>();
  o->out = "samples.png", o->count = 16;
  CLI::App* command =
      app.add_subcommand("sample", "Generate images, as one image grid");
  add_common(*command, *o);
  add_count(*command, "--count", o->count, "Images; default: 16", 1, 10000);
  add_count(*command, "--columns", o->columns,
            "Images per row of the grid; default: a square", 1, 10000);
  command->footer(
      "Each sub-pixel is sampled given the previous ones, from the model's "
      "state: the cost per sub-pixel is constant, except\n"
      "for attention and other mixers that keep all positions. Networks over "
      "whole images (PixelCNN and its variants)\n"
      "are evaluated again for each sub-pixel.\n"
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
      "Complete test images whose lower part is masked, as one image grid");
  add_common(*command, *o);
  add_split(*command, o->data, o->split, "Images to complete");
  add_count(*command, "--count", o->count,
            "Images to complete; default: 8, or all if there are fewer", 1,
            10000);
  add_count(*command, "--first", o->first,
            "Index of the first image; default: 0", 0);
  add_count(*command, "--times", o->times, "Completions per image; default: 3",
            1, 1000);
  add_real(*command, "--keep", o->keep,
           "Fraction of the rows that is given to the model, from the top; "
           "default: 0.5",
           0, 1);
  command->footer(
      "The first row of the grid shows the masked images, each further row one "
      "completion of each.\n"
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
