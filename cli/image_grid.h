// Image helpers for the commands: opening data sets, sampling from a model, and
// arranging many images in one grid.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "aft/io/image.h"
#include "aft/tasks/image.h"

namespace aft::cli {

/// RawImages::open, with progress on stderr.
data::RawImages open_images(const std::string& path, int64_t height,
                            int64_t width, int64_t valid);

/// The given files, and the PNG and JPEG files in and below the given folders.
/// Throws data::DataError for a folder without any.
std::vector<std::string> image_files(const std::vector<std::string>& paths);

/// Loads the model in `directory`, whose configuration is `config`. Throws
/// io::Error, c10::Error.
tasks::ImageModel load_model(const std::string& directory,
                             const tasks::ImageConfig& config);

/// The values of several images, [height, width, 3] each.
using ImageList = std::vector<std::vector<uint8_t>>;

/// Arranges images of height x width in rows of `columns` on a white
/// background. Each pixel becomes a square of `scale` x `scale` pixels. Throws
/// std::runtime_error if the grid would exceed io::kMaxPixels.
io::Image image_grid(const ImageList& images, int64_t height, int64_t width,
                     int64_t columns, int64_t scale);

/// Pads each image of `given` with grey to `size` values.
ImageList masked(ImageList given, int64_t size);

/// Samples one image for each prefix in `given`, `batch` images at a time, with
/// progress on stderr.
ImageList draw_images(const tasks::ImageModel& model, tasks::Sampling sampling,
                      const ImageList& given, int64_t batch);

/// Which images to complete: `count` images from index `first`, each `times`
/// times.
struct Completions {
  int64_t first = 0, count = 8, times = 3;
  int64_t rows = 0;  ///< rows of pixels given to the model, from the top
};

/// Draws a grid of completions: the masked images in the first row, then one
/// row per repetition.
io::Image draw_completions(const tasks::ImageModel& model,
                           const tasks::Sampling& sampling,
                           const data::ImagePart& part, const Completions& what,
                           int64_t width, int64_t batch, int64_t scale);

}  // namespace aft::cli
