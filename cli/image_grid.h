// Pictures for the commands: opening them, drawing them with a model, and many
// of them on one sheet.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aft/io/image.h"
#include "aft/tasks/image.h"

namespace aft::cli {

/// Pictures::open, with progress on stderr.
tasks::Pictures open_pictures(const std::string& path, int64_t height,
                              int64_t width, int64_t valid);

/// The model of a directory whose configuration that is. Throws io::Error,
/// c10::Error.
tasks::PictureModel load_model(const std::string& directory,
                               const tasks::ImageConfig& config);

/// The values of pictures, [height, width, 3] each.
using PictureList = std::vector<std::vector<uint8_t>>;

/// Pictures of height x width in rows of `columns`, each pixel `scale` pixels
/// wide, on white.
io::Image sheet(const PictureList& pictures, int64_t height, int64_t width,
                int64_t columns, int64_t scale);

/// `given`, with what is missing of `size` values in grey.
PictureList masked(PictureList given, int64_t size);

/// Draws a picture for each of `given`, which it begins with, `batch` at once,
/// with progress on stderr. `show` gets all of them, those that are not drawn
/// yet masked, before the first batch and after each.
void draw_pictures(const tasks::PictureModel& model, tasks::Sampling sampling,
                   const PictureList& given, int64_t batch,
                   const std::function<void(const PictureList&)>& show);

/// Which pictures are completed, and how.
struct Completions {
  int64_t first = 0, count = 8, times = 3;
  int64_t rows = 0;  ///< of pixels that are given, from the top
};

/// Sheets of completions: the masked pictures on top, a row below for each
/// time. `show` gets one before the first batch and after each.
void draw_completions(const tasks::PictureModel& model,
                      const tasks::Sampling& sampling,
                      const tasks::PicturePart& part, const Completions& what,
                      int64_t width, int64_t batch, int64_t scale,
                      const std::function<void(const io::Image&)>& show);

}  // namespace aft::cli
