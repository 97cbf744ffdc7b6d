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
  std::vector<std::string> images;
  int64_t count = 0, columns = 0, batch = 32, scale = 4;
  int64_t first = 0, times = 3;
  double keep = 0.5;
  tasks::Sampling sampling;
  int threads = 0;
};

/// The configuration of the model. Prepares the output file.
tasks::ImageConfig prepare(const Options& o) {
  const base::Json config = tasks::load_config(o.model, "image");
  report_weights(o.model);
  prepare_output("--out", o.out);
  return tasks::config_as<tasks::ImageConfig>(config);
}

void sample(const Options& o) {
  const tasks::ImageConfig config = prepare(o);
  const tasks::ImageModel model = load_model(o.model, config);
  const int64_t columns =
      o.columns > 0 ? o.columns
                    : static_cast<int64_t>(
                          std::ceil(std::sqrt(static_cast<double>(o.count))));
  const auto grid = [&](const ImageList& images) {
    return image_grid(images, config.data.height, config.data.width,
                      std::min(columns, o.count), o.scale);
  };
  const ImageList none(static_cast<size_t>(o.count));
  grid(masked(none, model.size()));  // fails before sampling if it is too large
  io::write_png(o.out, grid(draw_images(model, o.sampling, none, o.batch)));
  std::cout << o.out << ": " << base::counted(o.count, "image") << " of "
            << config.data.height << "x" << config.data.width << " from "
            << o.model << ", seed " << o.sampling.seed << '\n';
}

/// The images to complete: files, or a part of a data set.
struct Given {
  std::vector<uint8_t> pixels;  // of files
  data::RawImages images;
  data::ImagePart part;
  int64_t count = 0;
  std::string name;
};

Given read_files(const Options& o, int64_t height, int64_t width) {
  Given out;
  const std::vector<std::string> paths = image_files(o.images);
  for (const std::string& path : paths) {
    const io::Image image = io::cover(io::read_image(path), height, width);
    out.pixels.insert(out.pixels.end(), image.rgb.begin(), image.rgb.end());
  }
  out.count = static_cast<int64_t>(paths.size());
  out.part = {out.pixels.data(), out.count, 3 * height * width};
  out.name = out.count == 1 ? paths[0] : base::counted(out.count, "image");
  return out;
}

Given read_part(const Options& o, const tasks::ImageDataConfig& data) {
  Given out;
  const std::string path = o.data.empty() ? data.path : o.data;
  out.images = open_images(path, data.height, data.width, data.valid_images);
  out.part = out.images.split(o.split);
  const int64_t left = out.part.count - o.first;
  out.count = o.count > 0 ? o.count : std::min<int64_t>(left, 8);
  if (left < 1 || out.count > left)
    throw data::DataError(
        (path.empty() ? "the built-in images" : path) + ": the split '" +
        o.split + "' has " + base::counted(out.part.count, "image") +
        "; expected --first plus --count to be at most that, got " +
        std::to_string(o.first) + " and " + std::to_string(o.count));
  out.name = base::counted(out.count, "image") + " of '" + o.split + "'";
  return out;
}

void complete(const Options& o) {
  const tasks::ImageConfig config = prepare(o);
  const auto& data = config.data;
  const Given given = o.images.empty() ? read_part(o, data)
                                       : read_files(o, data.height, data.width);
  const tasks::ImageModel model = load_model(o.model, config);
  const int64_t rows = std::llround(o.keep * static_cast<double>(data.height));
  io::write_png(o.out, draw_completions(model, o.sampling, given.part,
                                        {o.first, given.count, o.times, rows},
                                        data.width, o.batch, o.scale));
  std::cout << o.out << ": " << given.name << " with " << rows << " of "
            << base::counted(data.height, "row") << ", completed "
            << base::counted(o.times, "time") << " by " << o.model << ", seed "
            << o.sampling.seed << '\n';
}

void add_common(CLI::App& command, Options& o) {
  add_model(command, o.model);
  add_text(command, "--out", o.out, "FILE",
           "The image grid, a PNG file; default: " + o.out)
      ->check(ends_in(".png"));
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
      "Complete images whose lower part is masked, as one image grid");
  add_common(*command, *o);
  CLI::Option* const files = command->add_option(
      "images", o->images,
      "PNG or JPEG files, or folders of them, which are scaled and cropped to "
      "the model's size; default: images of --data");
  add_split(*command, o->data, o->split, "Images to complete");
  add_count(*command, "--count", o->count,
            "Images of --data to complete; default: 8, or all if there are "
            "fewer",
            1, 10000);
  add_count(*command, "--first", o->first,
            "Index of the first image of --data; default: 0", 0);
  for (const char* option : {"--data", "--split", "--count", "--first"})
    files->excludes(command->get_option(option));
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
      "  aft complete runs/image-aft-local-4x128 photo.png\n"
      "  aft complete holiday-model --keep 0.75 --times 5 --out lower.png");
  command->callback([o] {
    set_threads(o->threads);
    complete(*o);
  });
}

}  // namespace aft::cli
