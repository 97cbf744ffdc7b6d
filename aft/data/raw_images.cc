#include "aft/data/raw_images.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "aft/base/random.h"
#include "aft/data/cifar.h"
#include "aft/data/image_files.h"
#include "aft/io/image.h"

namespace aft::data {
namespace {

/// Throws DataError, before allocating, if the machine has too little memory.
void check_memory(int64_t count, int64_t size) {
  const double need = static_cast<double>(count) * static_cast<double>(size),
               have = machine_memory();
  if (need > have)
    throw DataError(std::to_string(count) + " images of " +
                    std::to_string(size) + " values need " +
                    std::to_string(std::llround(need / 1e9)) +
                    " GB, and this machine has " +
                    std::to_string(std::llround(have / 1e9)) +
                    "; use fewer images or a smaller data.height and "
                    "data.width (`aft data`: --size)");
}

/// Appends a CIFAR-10 batch to `to` at the given size.
void add_batch(const std::string& path, int64_t height, int64_t width,
               std::vector<uint8_t>& to) {
  std::vector<uint8_t> records;
  read_cifar(path, records);
  const int64_t size = 3 * height * width;
  const size_t before = to.size();
  check_memory(static_cast<int64_t>(before) / size + kCifarRecords, size);
  to.resize(before + static_cast<size_t>(kCifarRecords * size));
  for (int64_t i = 0; i < kCifarRecords; ++i) {
    io::Image image = cifar_image(records.data() + i * kCifarRecord);
    if (height != kCifarSide || width != kCifarSide)
      image = io::cover(image, height, width);
    std::copy(image.rgb.begin(), image.rgb.end(),
              to.begin() + static_cast<std::ptrdiff_t>(before) + i * size);
  }
}

void read_images(const std::vector<std::string>& paths, int64_t height,
                 int64_t width, std::vector<uint8_t>& to,
                 const ProgressCallback& progress) {
  const int64_t all = static_cast<int64_t>(paths.size()),
                size = 3 * height * width;
  check_memory(all, size);
  to.resize(static_cast<size_t>(all * size));
  for (int64_t done = 0; done < all;) {
    const int64_t end = std::min(all, done + 64);
    at::parallel_for(done, end, 1, [&](int64_t from, int64_t until) {
      for (int64_t i = from; i < until; ++i) {
        const io::Image image = io::cover(
            io::read_image(paths[static_cast<size_t>(i)]), height, width);
        std::copy(image.rgb.begin(), image.rgb.end(), to.begin() + i * size);
      }
    });
    done = end;
    if (progress) progress(done, all);
  }
}

}  // namespace

RawImages RawImages::open(const std::string& path, int64_t height,
                          int64_t width, int64_t valid,
                          const ProgressCallback& progress) {
  check_side("data.height", height), check_side("data.width", width);
  check_valid(valid);
  RawImages out;
  out.height_ = height, out.width_ = width;
  const int64_t size = 3 * height * width;
  const auto count = [&] {
    return static_cast<int64_t>(out.data_.size()) / size;
  };
  switch (image_source(path)) {
    case ImageSource::kBuiltIn: {
      constexpr int64_t kTrain = 2000, kTest = 200;
      check_memory(kTrain + kTest, size);
      out.data_.resize(static_cast<size_t>((kTrain + kTest) * size));
      for (int64_t i = 0; i < kTrain + kTest; ++i)
        draw_built_in_image(static_cast<uint64_t>(i), height, width,
                            out.data_.data() + i * size);
      out.train_ = kTrain, out.test_ = kTest;
      break;
    }
    case ImageSource::kCifar: {
      const CifarFiles files = cifar_files(path);
      for (const std::string& batch : files.train)
        add_batch(batch, height, width, out.data_);
      out.train_ = count();
      if (!files.test.empty()) add_batch(files.test, height, width, out.data_);
      out.test_ = count() - out.train_;
      break;
    }
    case ImageSource::kFolder: {
      std::vector<std::string> train, test;
      if (const std::string name = test_folder(path, {"test", "val"});
          !name.empty()) {
        train = list_images(path + "/train", true);
        test = list_images(path + "/" + name, true);
      } else {
        out.has_test_ = false;
        const std::vector<std::string> all = list_images(path, true);
        for (size_t i = 0; i < all.size(); ++i)
          (i % 10 == 9 ? test : train).push_back(all[i]);
      }
      if (train.empty() && test.empty())
        throw DataError(path +
                        ": expected PNG or JPEG files or batches of CIFAR-10 "
                        "(data_batch_1.bin ...), got none");
      out.train_ = static_cast<int64_t>(train.size());
      out.test_ = static_cast<int64_t>(test.size());
      train.insert(train.end(), test.begin(), test.end());
      read_images(train, height, width, out.data_, progress);
    }
  }
  out.valid_ = valid_count(valid, out.train_);
  out.train_ -= out.valid_;
  return out;
}

ImagePart RawImages::part(int64_t first, int64_t count) const {
  const int64_t size = 3 * height_ * width_;
  return {data_.data() + first * size, count, size};
}

ImagePart RawImages::split(const std::string& name) const {
  const ImagePart parts[] = {train(), valid(), test(),
                             part(0, train_ + valid_ + test_)};
  return parts[split_number(name)];
}

std::string RawImages::fingerprint() const {
  return std::to_string(train_ + valid_ + test_) + "-" +
         std::to_string(base::hash_bytes(0, data_.data(), data_.size()));
}

}  // namespace aft::data
