#include "aft/tasks/pictures.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "aft/io/image.h"
#include "aft/nn/block.h"
#include "aft/tasks/fetch.h"

namespace aft::tasks {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32, kPlane = kSide * kSide;
constexpr int64_t kRecord = 1 + 3 * kPlane, kRecords = 10000;

/// Before memory is asked for: does the machine have so much?
void check_memory(int64_t count, int64_t size) {
  const double need = static_cast<double>(count) * static_cast<double>(size),
               have = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                      static_cast<double>(sysconf(_SC_PAGESIZE));
  if (have > 0 && need > have)
    throw DataError(std::to_string(count) + " pictures of " +
                    std::to_string(size) + " values take " +
                    std::to_string(std::llround(need / 1e9)) +
                    " GB, and this machine has " +
                    std::to_string(std::llround(have / 1e9)));
}

/// One batch of CIFAR-10, added to `to` at the given size.
void read_batch(const std::string& path, int64_t height, int64_t width,
                std::vector<uint8_t>& to) {
  if (std::error_code error; !fs::is_regular_file(path, error))
    throw DataError(path +
                    ": expected a batch of CIFAR-10, got no regular file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file)
    throw DataError(path + ": cannot be opened: " + std::strerror(errno));
  const int64_t bytes = file.tellg();
  if (bytes != kRecord * kRecords) {
    throw DataError(path + ": is not a batch of CIFAR-10: expected " +
                    std::to_string(kRecord * kRecords) + " bytes (" +
                    std::to_string(kRecords) + " records of " +
                    std::to_string(kRecord) + "), got " +
                    std::to_string(bytes));
  }
  std::vector<uint8_t> raw(static_cast<size_t>(bytes));
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(raw.data()), bytes))
    throw DataError(path + ": cannot be read: " + std::strerror(errno));
  const int64_t size = 3 * height * width;
  const size_t before = to.size();
  check_memory(static_cast<int64_t>(before) / size + kRecords, size);
  to.resize(before + static_cast<size_t>(kRecords * size));
  io::Image image{kSide, kSide, std::vector<uint8_t>(3 * kPlane)};
  for (int64_t i = 0; i < kRecords; ++i) {
    const uint8_t* record = raw.data() + i * kRecord;
    if (record[0] > 9) {
      throw DataError(path + ": record " + std::to_string(i) +
                      ": the label must be 0 to 9, got " +
                      std::to_string(record[0]));
    }
    for (int64_t p = 0; p < kPlane; ++p)
      for (int64_t c = 0; c < 3; ++c)
        image.rgb[static_cast<size_t>(3 * p + c)] = record[1 + c * kPlane + p];
    const bool same = height == kSide && width == kSide;
    const io::Image fitted = same ? image : io::cover(image, height, width);
    std::copy(fitted.rgb.begin(), fitted.rgb.end(),
              to.begin() + static_cast<std::ptrdiff_t>(before) + i * size);
  }
}

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
  });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

/// All pictures below a folder, in the order of their names.
std::vector<std::string> list_pictures(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error)) {
    std::error_code ignored;  // a link to nowhere is for the reader to name
    if (is_picture(at->path()) && !at->is_directory(ignored))
      out.push_back(at->path().string());
  }
  if (error) throw DataError(folder + ": cannot be read: " + error.message());
  std::sort(out.begin(), out.end());
  return out;
}

void read_pictures(const std::vector<std::string>& paths, int64_t height,
                   int64_t width, std::vector<uint8_t>& to,
                   const Progress& progress) {
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

Pictures Pictures::open(const std::string& path, int64_t height, int64_t width,
                        int64_t valid, const Progress& progress) {
  const auto side = [](const char* name, int64_t x) {
    if (x < 1 || x > 4096)
      throw DataError(std::string("data.") + name + " must be 1 to 4096, got " +
                      std::to_string(x));
  };
  side("height", height), side("width", width);
  if (valid < 0)
    throw DataError("data.valid_images must be 0 or more, got " +
                    std::to_string(valid));
  Pictures out;
  out.height_ = height, out.width_ = width;
  const int64_t size = 3 * height * width;
  const auto count = [&] {
    return static_cast<int64_t>(out.data_.size()) / size;
  };
  std::error_code error;
  std::vector<std::string> batches;
  for (int i = 1; i <= 5; ++i)
    batches.push_back(path + "/data_batch_" + std::to_string(i) + ".bin");
  const std::string last = path + "/test_batch.bin";
  const auto there = [&](const std::string& file) {
    return fs::exists(file, error);
  };
  if (path.empty()) {
    constexpr int64_t kTrain = 2000, kTest = 200;
    check_memory(kTrain + kTest, size);
    out.data_.resize(static_cast<size_t>((kTrain + kTest) * size));
    for (int64_t i = 0; i < kTrain + kTest; ++i)
      draw_picture(static_cast<uint64_t>(i), height, width,
                   out.data_.data() + i * size);
    out.train_ = kTrain, out.test_ = kTest;
  } else if (!fs::is_directory(path, error)) {
    const std::string name = fs::path(path).filename().string();
    throw DataError(path + ": expected a folder of pictures, got " +
                    (there(path) ? "a file"
                     : find_dataset(name)
                         ? "nothing; `aft data " + name + " --download` gets it"
                         : "nothing"));
  } else if (there(last) ||
             std::any_of(batches.begin(), batches.end(), there)) {
    for (const std::string& batch : batches)
      if (there(batch)) read_batch(batch, height, width, out.data_);
    out.train_ = count();
    if (there(last)) read_batch(last, height, width, out.data_);
    out.test_ = count() - out.train_;
  } else {
    std::vector<std::string> train, test;
    const std::string tests =
        path + (fs::is_directory(path + "/test", error) ? "/test" : "/val");
    if (fs::is_directory(path + "/train", error) &&
        fs::is_directory(tests, error)) {
      train = list_pictures(path + "/train");
      test = list_pictures(tests);
    } else {
      const std::vector<std::string> all = list_pictures(path);
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
    read_pictures(train, height, width, out.data_, progress);
  }
  out.valid_ = std::min(valid, out.train_ / 10);
  out.train_ -= out.valid_;
  return out;
}

PicturePart Pictures::part(int64_t first, int64_t count) const {
  const int64_t size = 3 * height_ * width_;
  return {data_.data() + first * size, count, size};
}

PicturePart Pictures::split(const std::string& name) const {
  if (name == "train") return train();
  if (name == "valid") return valid();
  if (name == "test") return test();
  throw DataError("the split must be train, valid or test, got '" + name + "'");
}

std::string Pictures::fingerprint() const {
  uint64_t hash = 0;
  for (size_t i = 0; i < data_.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data_.data() + i,
                std::min(sizeof(word), data_.size() - i));
    hash = nn::mix(hash ^ word, 0);
  }
  return std::to_string(train_ + valid_ + test_) + "-" + std::to_string(hash);
}

}  // namespace aft::tasks
