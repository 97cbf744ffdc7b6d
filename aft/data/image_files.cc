#include "aft/data/image_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "aft/base/random.h"
#include "aft/data/cifar.h"
#include "aft/data/data.h"
#include "aft/data/download.h"
#include "aft/io/file.h"

namespace aft::data {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
  });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

}  // namespace

ImageSource image_source(const std::string& path) {
  if (path.empty()) return ImageSource::kBuiltIn;
  if (!is_folder(path)) {
    const std::string name = fs::path(path).filename().string();
    throw DataError(
        path + ": expected a folder of images (--data or data.path), got " +
        (is_image(path) && io::exists(path) ? "one image"
         : io::exists(path) ? "a file; text is for text presets (`aft presets`)"
         : find_dataset(name)
             ? "nothing; `aft data " + name + " --download` downloads it"
             : "nothing"));
  }
  const CifarFiles files = cifar_files(path);
  return files.train.empty() && files.test.empty() ? ImageSource::kFolder
                                                   : ImageSource::kCifar;
}

std::vector<std::string> list_images(const std::string& folder, bool hidden) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error)) {
    if (!hidden && at->path().filename().native()[0] == '.') {
      at.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;  // a dangling link is reported when it is read
    if (is_image(at->path()) && !at->is_directory(ignored))
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
  throw DataError((path.empty() ? "the built-in images" : path) +
                  ": expected at least one image for training and one for "
                  "validation, got " +
                  std::to_string(train) + " and " + std::to_string(valid) +
                  "; data.valid_images must be 1 or more, and at most a tenth "
                  "of the images are used for validation");
}

}  // namespace aft::data
