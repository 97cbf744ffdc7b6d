#include "cli/sheet.h"

#include <algorithm>

#include "cli/model.h"

namespace aft::cli {

io::Image sheet(const PictureList& pictures, int64_t height, int64_t width,
                int64_t columns, int64_t scale) {
  const int64_t count = static_cast<int64_t>(pictures.size()),
                rows = (count + columns - 1) / columns,
                gap = std::max<int64_t>(scale / 2, 1);
  const int64_t down = height * scale + gap, across = width * scale + gap;
  io::Image out;
  out.height = rows * down + gap, out.width = columns * across + gap;
  out.rgb.assign(static_cast<size_t>(3 * out.height * out.width), 255);
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* from = pictures[static_cast<size_t>(i)].data();
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

PictureList draw_pictures(const models::SequenceModel& model,
                          tasks::Sampling sampling, const PictureList& given,
                          int64_t batch) {
  PictureList out;
  const int64_t all = static_cast<int64_t>(given.size()),
                T = model->config.length;
  Meter meter("sub-pixels");
  for (int64_t first = 0; first < all; first += batch) {
    const int64_t count = std::min(batch, all - first);
    sampling.first = static_cast<uint64_t>(first);
    PictureList part = tasks::complete_pictures(
        model, sampling,
        PictureList(given.begin() + first, given.begin() + first + count),
        [&](int64_t done, int64_t) {
          meter.show(first * T + done * count, all * T);
        });
    std::move(part.begin(), part.end(), std::back_inserter(out));
  }
  return out;
}

}  // namespace aft::cli
