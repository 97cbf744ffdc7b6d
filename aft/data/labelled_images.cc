#include "aft/data/labelled_images.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <stdexcept>

#include "aft/base/counted.h"
#include "aft/base/random.h"
#include "aft/data/cifar.h"
#include "aft/data/label_table.h"

namespace aft::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCifarClasses[] = {
    "airplane", "automobile", "bird",  "cat",  "deer",
    "dog",      "frog",       "horse", "ship", "truck"};
constexpr const char* kTable = "labels.tsv";

// ---- Folders ----------------------------------------------------------------

/// The names of the class folders in a folder, sorted.
std::vector<std::string> class_folders(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    std::string name = at->path().filename().string();
    if (name[0] != '.' && at->is_directory(ignored))
      out.push_back(std::move(name));
  }
  if (error) throw DataError(folder + ": cannot be read: " + error.message());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

LabelledImages LabelledImages::open(const std::string& path, int64_t valid,
                                    int64_t size) {
  check_valid(valid);
  LabelledImages out;
  out.source_ = image_source(path);
  out.path_ = path;
  std::error_code error;
  if (out.source_ == ImageSource::kBuiltIn) {
    out.open_built_in(size);
  } else if (out.source_ == ImageSource::kCifar) {
    out.open_cifar(path);
  } else if (fs::exists(path + "/" + kTable, error)) {
    out.open_table(path);
  } else {
    out.open_folders(path);
  }
  out.choose_valid(valid);
  return out;
}

void LabelledImages::open_built_in(int64_t size) {
  check_side("data.height and data.width of the built-in images", size);
  constexpr int64_t kTrain = 2000, kTest = 400;
  size_ = size;
  classes_.assign(kShapes.begin(), kShapes.end());
  for (int64_t i = 0; i < kTrain + kTest; ++i)
    add(i % static_cast<int64_t>(kShapes.size()), i < kTrain ? train_ : test_);
}

void LabelledImages::open_cifar(const std::string& path) {
  classes_.assign(std::begin(kCifarClasses), std::end(kCifarClasses));
  const auto read = [&](const std::string& batch, LabelledPart& to) {
    const size_t before = records_.size();
    read_cifar(batch, records_);
    for (size_t at = before; at < records_.size(); at += kCifarRecord)
      add(records_[at], to);
  };
  const CifarFiles files = cifar_files(path);
  records_.reserve((files.train.size() + !files.test.empty()) *
                   static_cast<size_t>(kCifarRecord * kCifarRecords));
  for (const std::string& batch : files.train) read(batch, train_);
  if (!files.test.empty()) read(files.test, test_);
}

void LabelledImages::open_table(const std::string& path) {
  const LabelTable table =
      read_label_table(path + "/" + kTable, /*files=*/true);
  classes_ = std::move(table.classes), table_ = true;
  for (const LabelTable::Row& row : table.rows)
    add_file(row.file, row.label, test_);
}

void LabelledImages::open_folders(const std::string& path) {
  const std::string tests = test_folder(path, {"val", "test"});
  const bool parts = has_test_ = !tests.empty();
  classes_ = class_folders(parts ? path + "/train" : path);
  const auto is_part = [](const std::string& name) {
    return name == "train" || name == "val" || name == "test";
  };
  if (!parts && !classes_.empty() &&
      std::all_of(classes_.begin(), classes_.end(), is_part)) {
    throw DataError(path + ": expected train/ and val/ (or test/), got only " +
                    classes_[0] + "/");
  }
  if (parts && classes_.empty())
    throw DataError(path +
                    "/train: expected a folder of PNG or JPEG files for "
                    "each class, got none");
  for (size_t label = 0; label < classes_.size(); ++label) {
    const std::string folder = (parts ? "train/" : "") + classes_[label];
    const std::vector<std::string> files = list_class(folder);
    if (files.empty())
      throw DataError(path + "/" + folder +
                      ": expected PNG or JPEG files of that class, got none");
    for (size_t i = 0; i < files.size(); ++i)
      add_file(files[i], static_cast<int64_t>(label),
               !parts && i % 10 == 9 ? test_ : train_);
  }
  if (parts) {
    for (const std::string& name : class_folders(path + "/" + tests)) {
      const auto at = std::lower_bound(classes_.begin(), classes_.end(), name);
      if (at == classes_.end() || *at != name)
        throw DataError(path + "/" + tests + "/" + name +
                        ": expected one of the " +
                        base::counted(classes_.size(), "class") +
                        " in train/, got '" + name + "'");
      for (const std::string& file : list_class(tests + "/" + name))
        add_file(file, at - classes_.begin(), test_);
    }
  }
  const auto need = [&](const std::string& folder, const std::string& others) {
    throw DataError(folder +
                    ": expected a folder of PNG or JPEG files for each class" +
                    others + ", got none");
  };
  if (train_.empty())
    need(parts ? path + "/train" : path,
         parts ? ""
               : std::string(", ") + kTable +
                     " or batches of CIFAR-10 (data_batch_1.bin ...)");
  if (parts && test_.empty()) need(path + "/" + tests, "");
}

std::vector<std::string> LabelledImages::list_class(
    const std::string& folder) const {
  std::vector<std::string> files = list_images(path_ + "/" + folder, false);
  for (std::string& file : files) file.erase(0, path_.size() + 1);
  return files;
}

void LabelledImages::add(int64_t label, LabelledPart& to) {
  to.push_back(count());
  labels_.push_back(static_cast<int32_t>(label));
}

void LabelledImages::add_file(std::string_view file, int64_t label,
                              LabelledPart& to) {
  files_ += file;
  ends_.push_back(files_.size());
  add(label, to);
}

LabelledPart LabelledImages::some(const LabelledPart& part,
                                  int64_t count) const {
  // Sorted by class, so that even steps cover all classes whatever the order of
  // the images. For example, every sixth built-in image has the same class.
  LabelledPart sorted = part, out;
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
    return labels_[static_cast<size_t>(a)] < labels_[static_cast<size_t>(b)];
  });
  const int64_t all = static_cast<int64_t>(part.size());
  count = std::min(count, all);
  for (int64_t i = 0; i < count; ++i)
    out.push_back(sorted[static_cast<size_t>((2 * i + 1) * all / (2 * count))]);
  std::sort(out.begin(), out.end());
  return out;
}

void LabelledImages::choose_valid(int64_t valid) {
  valid_ =
      some(train_, valid_count(valid, static_cast<int64_t>(train_.size())));
  LabelledPart rest;
  std::set_difference(train_.begin(), train_.end(), valid_.begin(),
                      valid_.end(), std::back_inserter(rest));
  train_ = std::move(rest);
}

size_t LabelledImages::at(int64_t index) const {
  if (index < 0 || index >= count())
    throw std::out_of_range("LabelledImages: index must be below " +
                            std::to_string(count()) + ", got " +
                            std::to_string(index));
  return static_cast<size_t>(index);
}

std::string_view LabelledImages::file(size_t i) const {
  const size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(files_).substr(begin, ends_[i] - begin);
}

std::string LabelledImages::path() const {
  return path_.empty() ? "the built-in images" : path_;
}

bool LabelledImages::has_order_of(int64_t count) const {
  const int64_t classes = static_cast<int64_t>(classes_.size());
  if (table_) return classes <= count;
  return classes == count && (source_ != ImageSource::kFolder ||
                              std::all_of(classes_.begin(), classes_.end(),
                                          [](const std::string& name) {
                                            return wnid_of(name) == name;
                                          }));
}

int64_t LabelledImages::label(int64_t index) const {
  return labels_[at(index)];
}

io::Image LabelledImages::read(int64_t index) const {
  const size_t i = at(index);
  switch (source_) {
    case ImageSource::kFolder:
      return io::read_image(name(index));
    case ImageSource::kCifar:
      return cifar_image(records_.data() + i * kCifarRecord);
    default: {
      io::Image image{
          size_, size_,
          std::vector<uint8_t>(static_cast<size_t>(3 * size_ * size_))};
      draw_shape(i, size_, size_, image.rgb.data());
      return image;
    }
  }
}

std::string LabelledImages::name(int64_t index) const {
  const size_t i = at(index);
  if (source_ != ImageSource::kFolder) return std::to_string(index);
  return path_ + "/" + std::string(file(i));
}

LabelledPart LabelledImages::split(const std::string& name) const {
  const int number = split_number(name);
  const LabelledPart* const parts[] = {&train_, &valid_, &test_};
  if (number < 3) return *parts[number];
  LabelledPart all(labels_.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

std::string LabelledImages::fingerprint() const {
  uint64_t hash = 0;
  const auto add = [&](const auto& values) {
    const uint64_t count = values.size();  // tells "ab", "c" from "a", "bc"
    hash = base::hash_bytes(hash, &count, sizeof(count));
    hash = base::hash_bytes(hash, values.data(), count * sizeof(values[0]));
  };
  for (const std::string& name : classes_) add(name);
  add(labels_), add(test_), add(ends_), add(files_), add(records_);
  if (source_ == ImageSource::kBuiltIn) {
    constexpr int64_t kSide = 16;  // independent of the size they are drawn at
    std::vector<uint8_t> shape(3 * kSide * kSide);
    for (size_t i = 0; i < kShapes.size(); ++i) {
      draw_shape(i, kSide, kSide, shape.data());
      add(shape);
    }
  }
  return std::to_string(count()) + "-" + std::to_string(hash);
}

}  // namespace aft::data
