#include "cli/image_grid.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "aft/data/image_files.h"
#include "cli/model.h"

namespace aft::cli {

data::RawImages open_images(const std::string& path, int64_t height,
                            int64_t width, int64_t valid) {
  ProgressMeter meter("files read");
  return data::RawImages::open(
      path, height, width, valid,
      [&](int64_t done, int64_t all) { meter.show(done, all); });
}

std::vector<std::string> image_files(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    if (!is_directory(path)) {
      out.push_back(path);
      continue;
    }
    const std::vector<std::string> inside =
        data::list_images(path, /*hidden=*/false);
    if (inside.empty())
      throw data::DataError(path + ": expected PNG or JPEG files, got none");
    out.insert(out.end(), inside.begin(), inside.end());
  }
  return out;
}

tasks::ImageModel load_model(const std::string& directory,
                             const tasks::ImageConfig& config) {
  return tasks::load_image_model(directory, config.model, config.data.height,
                                 config.data.width);
}

io::Image image_grid(const ImageList& images, int64_t height, int64_t width,
                     int64_t columns, int64_t scale) {
  const int64_t count = static_cast<int64_t>(images.size()),
                rows = (count + columns - 1) / columns,
                gap = std::max<int64_t>(scale / 2, 1);
  const int64_t down = height * scale + gap, across = width * scale + gap;
  io::Image out;
  out.height = rows * down + gap, out.width = columns * across + gap;
  if (out.height * out.width > io::kMaxPixels)
    throw std::runtime_error(
        "the image grid must have at most " + std::to_string(io::kMaxPixels) +
        " pixels, got " + std::to_string(out.height) + " x " +
        std::to_string(out.width) + "; use a smaller --scale or fewer images");
  out.rgb.assign(static_cast<size_t>(3 * out.height * out.width), 255);
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* from = images[static_cast<size_t>(i)].data();
    const int64_t top = gap + i / columns * down,
                  left = gap + i % columns * across;
    for (int64_t y = 0; y < height * scale; ++y) {
      for (int64_t x = 0; x < width * scale; ++x) {
        const uint8_t* pixel = from + 3 * (y / scale * width + x / scale);
        std::copy_n(pixel, 3,
                    out.rgb.begin() + 3 * ((top + y) * out.width + left + x));
      }
    }
  }
  return out;
}

ImageList masked(ImageList given, int64_t size) {
  constexpr uint8_t kGrey = 128;
  for (auto& image : given) image.resize(static_cast<size_t>(size), kGrey);
  return given;
}

ImageList draw_images(const tasks::ImageModel& model, tasks::Sampling sampling,
                      const ImageList& given, int64_t batch) {
  const int64_t all = static_cast<int64_t>(given.size()), T = model.size();
  ImageList out;
  ProgressMeter meter("sub-pixels");
  for (int64_t first = 0; first < all; first += batch) {
    const int64_t count = std::min(batch, all - first);
    sampling.first = static_cast<uint64_t>(first);
    ImageList part = model.complete(
        sampling,
        ImageList(given.begin() + first, given.begin() + first + count),
        [&](int64_t done, int64_t) {
          meter.show(first * T + done * count, all * T);
        });
    std::move(part.begin(), part.end(), std::back_inserter(out));
  }
  return out;
}

io::Image draw_completions(const tasks::ImageModel& model,
                           const tasks::Sampling& sampling,
                           const data::ImagePart& part, const Completions& what,
                           int64_t width, int64_t batch, int64_t scale) {
  ImageList top, given;
  for (int64_t i = 0; i < what.count; ++i) {
    const uint8_t* image = part[what.first + i];
    top.emplace_back(image, image + 3 * what.rows * width);
  }
  for (int64_t t = 0; t < what.times; ++t)
    given.insert(given.end(), top.begin(), top.end());
  top = masked(std::move(top), part.size);
  const auto grid = [&](const ImageList& completions) {
    ImageList all = top;
    all.insert(all.end(), completions.begin(), completions.end());
    return image_grid(all, part.size / (3 * width), width, what.count, scale);
  };
  grid(masked(given, part.size));  // fails before sampling if it is too large
  return grid(draw_images(model, sampling, given, batch));
}

}  // namespace aft::cli
