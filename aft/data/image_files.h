// Sources of images: CIFAR-10 batches or folders of PNG and JPEG files; and
// checks shared by the image data sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace aft::data {

enum class ImageSource { kBuiltIn, kCifar, kFolder };

/// The kind of data at a path; "" is the built-in data. A directory with at
/// least one CIFAR-10 batch is CIFAR-10. Throws DataError if the path is not a
/// directory.
ImageSource image_source(const std::string& path);

// ---- Folders ----------------------------------------------------------------

/// All images in a folder and its subfolders, sorted by path. Images are
/// recognised by name (.png, .jpg, .jpeg); no file is opened. hidden: include
/// names that begin with a dot. Throws DataError.
std::vector<std::string> list_images(const std::string& folder, bool hidden);

/// The first of `names` that exists as a folder beside path/train; "" if there
/// is none, or no path/train.
std::string test_folder(const std::string& path,
                        std::initializer_list<const char*> names);

// ---- Image data sets --------------------------------------------------------

/// Throw DataError, which names the setting to change.
void check_side(const std::string& name, int64_t side);
void check_valid(int64_t valid);

/// How many of `train` images to use for validation if `valid` are requested.
int64_t valid_count(int64_t valid, int64_t train);

/// Throws DataError unless there is at least one image for training and one for
/// validation. path "": built in.
void check_parts(const std::string& path, int64_t train, int64_t valid);

}  // namespace aft::data
