#include "aft/tasks/picture_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "aft/nn/block.h"
#include "aft/tasks/data.h"
#include "aft/tasks/fetch.h"

namespace aft::tasks {
namespace {

namespace fs = std::filesystem;

bool there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
  });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

}  // namespace

PictureSource picture_source(const std::string& path) {
  if (path.empty()) return PictureSource::kBuiltIn;
  if (!is_folder(path)) {
    const std::string name = fs::path(path).filename().string();
    throw DataError(path + ": expected a folder of pictures, got " +
                    (there(path) ? "a file"
                     : find_dataset(name)
                         ? "nothing; `aft data " + name + " --download` gets it"
                         : "nothing"));
  }
  const CifarFiles files = cifar_files(path);
  return files.train.empty() && files.test.empty() ? PictureSource::kFolder
                                                   : PictureSource::kCifar;
}

CifarFiles cifar_files(const std::string& path) {
  CifarFiles out;
  for (int i = 1; i <= 5; ++i) {
    const std::string batch =
        path + "/data_batch_" + std::to_string(i) + ".bin";
    if (there(batch)) out.train.push_back(batch);
  }
  if (there(path + "/test_batch.bin")) out.test = path + "/test_batch.bin";
  return out;
}

void read_cifar(const std::string& path, std::vector<uint8_t>& records) {
  if (std::error_code error; !fs::is_regular_file(path, error))
    throw DataError(path +
                    ": expected a batch of CIFAR-10, got no regular file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file)
    throw DataError(path + ": cannot be opened: " + std::strerror(errno));
  const int64_t bytes = file.tellg();
  if (bytes != kCifarRecord * kCifarRecords) {
    throw DataError(path + ": is not a batch of CIFAR-10: expected " +
                    std::to_string(kCifarRecord * kCifarRecords) + " bytes (" +
                    std::to_string(kCifarRecords) + " records of " +
                    std::to_string(kCifarRecord) + "), got " +
                    std::to_string(bytes));
  }
  const size_t before = records.size();
  records.resize(before + static_cast<size_t>(bytes));
  uint8_t* const first = records.data() + before;
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(first), bytes))
    throw DataError(path + ": cannot be read: " + std::strerror(errno));
  for (int64_t i = 0; i < kCifarRecords; ++i) {
    if (const int label = first[i * kCifarRecord]; label > 9) {
      throw DataError(path + ": record " + std::to_string(i) +
                      ": the label must be 0 to 9, got " +
                      std::to_string(label));
    }
  }
}

io::Image cifar_picture(const uint8_t* record) {
  constexpr int64_t kPlane = kCifarSide * kCifarSide;
  io::Image image{kCifarSide, kCifarSide, std::vector<uint8_t>(3 * kPlane)};
  for (int64_t p = 0; p < kPlane; ++p)
    for (int64_t c = 0; c < 3; ++c)
      image.rgb[static_cast<size_t>(3 * p + c)] = record[1 + c * kPlane + p];
  return image;
}

std::vector<std::string> list_pictures(const std::string& folder, bool hidden) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error)) {
    if (!hidden && at->path().filename().native()[0] == '.') {
      at.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;  // a link to nowhere is for the reader to name
    if (is_picture(at->path()) && !at->is_directory(ignored))
      out.push_back(at->path().string());
  }
  if (error) throw DataError(folder + ": cannot be read: " + error.message());
  std::sort(out.begin(), out.end());
  return out;
}

std::string test_folder(const std::string& path,
                        std::initializer_list<const char*> names) {
  if (is_folder(path + "/train")) {
    for (const char* name : names)
      if (is_folder(path + "/" + name)) return name;
  }
  return "";
}

void check_side(const std::string& name, int64_t side) {
  if (side < 1 || side > 4096)
    throw DataError(name + " must be 1 to 4096, got " + std::to_string(side));
}

void check_valid(int64_t valid) {
  if (valid < 0)
    throw DataError("data.valid_images must be 0 or more, got " +
                    std::to_string(valid));
}

int64_t valid_count(int64_t valid, int64_t train) {
  return std::min(valid, train / 10);
}

void check_parts(const std::string& path, int64_t train, int64_t valid) {
  if (train >= 1 && valid >= 1) return;
  throw DataError((path.empty() ? "data" : path) +
                  ": training needs a picture or more to train on and one for "
                  "validation (data.valid_images, a tenth at the most), got " +
                  std::to_string(train) + " and " + std::to_string(valid));
}

int split_number(const std::string& name) {
  if (name == "train") return 0;
  if (name == "valid") return 1;
  if (name == "test") return 2;
  throw DataError("the split must be train, valid or test, got '" + name + "'");
}

uint64_t hash_bytes(uint64_t before, const void* data, size_t size) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  uint64_t hash = before;
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at + i, std::min(sizeof(word), size - i));
    hash = nn::mix(hash ^ word, 0);
  }
  return hash;
}

}  // namespace aft::tasks
