// Images with class labels, read on demand.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aft/data/data.h"
#include "aft/data/image_files.h"
#include "aft/io/image.h"

namespace aft::data {

/// Indices of images in a data set, ascending.
using LabelledPart = std::vector<int64_t>;

/// A labelled image data set. Supported sources:
///
///   ImageNet layout  train/CLASS/... and val/CLASS/... (or test/CLASS/... if
///                    there is no val/: ImageNet's own test/ has no labels).
///                    PNG and JPEG files, recognised by name, also in folders
///                    below CLASS. The classes are the folders of train/,
///                    sorted by name; val/ may lack some of them but must not
///                    have others. Without train/ and val/: CLASS/..., with
///                    every tenth image of a class in the test part. Names that
///                    begin with a dot, and images beside the class folders,
///                    are ignored.
///   labels.tsv       a folder with that file: tab-separated columns, named in
///                    the first line, in any order: "file", "class_index" (0 to
///                    99,999) and optionally "wnid" and "name". Files are next
///                    to it or in images/. All images are in the test part.
///                    Class i is called "wnid name", whichever of the two is
///                    given, or "class i".
///   CIFAR-10         as RawImages reads it, with labels; kept in memory.
///   built in         2,000 training and 400 test images, drawn by the program:
///                    one shape each, of one of six kinds.
class LabelledImages {
 public:
  /// Opens a data set; path "" is the built-in one. `valid` training images,
  /// but at most a tenth, are held out for validation, evenly from all classes.
  /// Folders are only listed: file names are kept in memory, images are not.
  /// size: the side of built-in images. Throws DataError, which names the file,
  /// and what was expected and found.
  static LabelledImages open(const std::string& path, int64_t valid,
                             int64_t size = 64);

  const std::vector<std::string>& classes() const { return classes_; }
  /// The number of images in all parts together.
  int64_t count() const { return static_cast<int64_t>(labels_.size()); }
  /// "the built-in images" or the path, for messages.
  std::string path() const;
  /// Whether class i is by convention output i of a model with `count` classes:
  /// there are as many classes, and they are not merely in the order of folder
  /// names, unless these are WordNet ids, whose order is ImageNet's. A
  /// labels.tsv may have fewer classes, because it gives their indices.
  bool has_order_of(int64_t count) const;
  /// The class of an image, in [0, classes().size()). Here and below,
  /// index is in [0, count()); otherwise throws std::out_of_range.
  int64_t label(int64_t index) const;
  /// Reads an image. Thread-safe. Throws io::Error, which names the file.
  io::Image read(int64_t index) const;
  /// The name of an image for messages: its file, or its index.
  std::string name(int64_t index) const;

  const LabelledPart& train() const { return train_; }
  const LabelledPart& valid() const { return valid_; }
  const LabelledPart& test() const { return test_; }
  /// `count` images of a part, at most all of it, evenly from all its classes.
  LabelledPart some(const LabelledPart& part, int64_t count) const;
  /// The part called train, valid or test, or all of them. Throws DataError for
  /// other names.
  LabelledPart split(const std::string& name) const;
  /// Whether the source has a test part; otherwise, open() held one out.
  bool has_test() const { return has_test_; }
  /// Identifies the data set, independently of its location: the number of
  /// images and a hash of the classes, the labels, the test split and the
  /// contents. The contents are represented by the file names (reading every
  /// file would take too long), all bytes of CIFAR-10, or one built-in image
  /// per class.
  std::string fingerprint() const;

 private:
  void open_built_in(int64_t size);
  void open_cifar(const std::string& path);
  void open_table(const std::string& path);
  void open_folders(const std::string& path);
  /// The images of one class, below path/folder.
  std::vector<std::string> list_class(const std::string& folder) const;
  void add(int64_t label, LabelledPart& to);
  void add_file(std::string_view file, int64_t label, LabelledPart& to);
  void choose_valid(int64_t valid);
  size_t at(int64_t index) const;
  std::string_view file(size_t i) const;

  ImageSource source_ = ImageSource::kBuiltIn;
  bool table_ = false;  // labels.tsv
  std::vector<std::string> classes_;
  std::vector<int32_t> labels_;
  LabelledPart train_, valid_, test_;
  bool has_test_ = true;
  int64_t size_ = 0;              // of built-in images
  std::vector<uint8_t> records_;  // of CIFAR-10
  // File names relative to path_, concatenated. One std::string per file would
  // double the memory, which matters for the 1.3 million files of ImageNet.
  std::string path_, files_;
  std::vector<size_t> ends_;
};

/// The kinds of shapes, which are the built-in classes.
inline constexpr std::array<const char*, 6> kShapes = {
    "disc", "square", "triangle", "ring", "cross", "stripes"};

/// Draws built-in image `number` into `to` [height, width, 3]: one shape of
/// kind number % 6 with random size, position, rotation and colour, and some
/// noise.
void draw_shape(uint64_t number, int64_t height, int64_t width, uint8_t* to);

}  // namespace aft::data
