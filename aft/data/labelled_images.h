// Pictures with classes, read when they are asked for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aft/io/image.h"
#include "aft/tasks/data.h"
#include "aft/tasks/picture_files.h"

namespace aft::tasks {

/// A part of a data set: numbers of pictures, from small to large.
using LabelledPart = std::vector<int64_t>;

/// What is in a data set.
///
///   ImageNet's layout  train/CLASS/... and val/CLASS/... (or test/CLASS/...,
///                      if there is no val/: ImageNet's own test/ has no
///                      classes), PNG and JPEG files by their names, also in
///                      folders below CLASS; the classes are the names of the
///                      folders of train/, in order. val/ needs not have
///                      pictures of all, but must not have others. Without
///                      those two: CLASS/..., each tenth of a class for the
///                      test. What begins with a dot, and pictures that lie
///                      beside the classes, are passed over
///   labels.tsv         a folder with that file: columns "file" and
///                      "class_index" (0 to 99,999) and, if they are there,
///                      "wnid" and "name", in any order, named in its first
///                      line, separated by tabs. Files lie beside it or in
///                      images/. All for the test. Class i is called
///                      "wnid name", what there is of that, or "class i"
///   CIFAR-10           as Pictures reads it, with its labels; in memory
///   built in           2,000 for training and 400 for the test: a shape of one
///                      of six kinds, drawn by the program
class LabelledPictures {
 public:
  /// path "": built in. valid: how many of the training pictures are kept for
  /// validation, evenly from all classes, but a tenth at the most. Folders are
  /// listed, not read: in memory are their names. size: the side of built-in
  /// pictures. Throws DataError, which names the file, what was expected and
  /// what came.
  static LabelledPictures open(const std::string& path, int64_t valid,
                               int64_t size = 64);

  const std::vector<std::string>& classes() const { return classes_; }
  /// Of all parts together.
  int64_t count() const { return static_cast<int64_t>(labels_.size()); }
  /// In [0, classes().size()). Here and below, picture is in [0, count());
  /// std::out_of_range otherwise.
  int64_t label(int64_t picture) const;
  /// The picture itself; may be called from many threads. Throws io::Error,
  /// which names the file.
  io::Image read(int64_t picture) const;
  /// What a picture is called: its file, or a number.
  std::string name(int64_t picture) const;

  const LabelledPart& train() const { return train_; }
  const LabelledPart& valid() const { return valid_; }
  const LabelledPart& test() const { return test_; }
  /// `count` of a part, at most all of it, evenly from all its classes.
  LabelledPart some(const LabelledPart& part, int64_t count) const;
  /// By name: train, valid or test. Throws DataError.
  const LabelledPart& split(const std::string& name) const;
  /// Tells data sets apart, wherever they lie: how many pictures and a hash of
  /// classes, labels, what is for the test, and of the names of files (not what
  /// is in them, which would take a look at each), of all bytes of CIFAR-10, or
  /// of one built-in picture a class.
  std::string fingerprint() const;

 private:
  void open_built_in(int64_t size);
  void open_cifar(const std::string& path);
  void open_table(const std::string& path);
  void open_folders(const std::string& path);
  /// The pictures of one class, below path/folder.
  std::vector<std::string> list_class(const std::string& folder) const;
  void add(int64_t label, LabelledPart& to);
  void add_file(std::string_view file, int64_t label, LabelledPart& to);
  void choose_valid(int64_t valid);
  size_t at(int64_t picture) const;
  std::string_view file(size_t i) const;

  PictureSource source_ = PictureSource::kBuiltIn;
  std::vector<std::string> classes_;
  std::vector<int32_t> labels_;
  LabelledPart train_, valid_, test_;
  int64_t size_ = 0;              // built in
  std::vector<uint8_t> records_;  // CIFAR-10
  // Files below path_, one behind the other: a string each would take twice
  // the memory, which counts for the 1.3 million of ImageNet.
  std::string path_, files_;
  std::vector<size_t> ends_;
};

/// The kinds of shapes, which are the built-in classes.
inline constexpr std::array<const char*, 6> kShapes = {
    "disc", "square", "triangle", "ring", "cross", "stripes"};

/// The built-in picture of that number, to [height, width, 3]: one shape, of
/// kind number % 6, of any size, place, turn and colour, and some noise.
void draw_shape(uint64_t number, int64_t height, int64_t width, uint8_t* to);

}  // namespace aft::tasks
