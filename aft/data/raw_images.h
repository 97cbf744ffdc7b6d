// Images of one size as sub-pixels: CIFAR-10, a folder of files, or built in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/data/data.h"

namespace aft::data {

/// A view of consecutive images [height, width, 3]: rows from the top, with
/// red, green and blue interleaved. Does not own them.
struct ImagePart {
  const uint8_t* data = nullptr;
  int64_t count = 0;
  int64_t size = 0;  ///< of one image: 3 height width

  const uint8_t* operator[](int64_t i) const { return data + i * size; }
};

/// An image data set at one size, held in memory as bytes. Supported sources:
///
///   CIFAR-10  a directory with test_batch.bin and any of data_batch_1.bin to
///             data_batch_5.bin. Each must be complete: 10,000 records of a
///             label below 10 and 3072 bytes. Sizes other than 32 x 32 are
///             scaled as below.
///   a folder  PNG and JPEG files, recognised by name (.png, .jpg, .jpeg), also
///             in subfolders, sorted by name, scaled to cover height x width
///             and cropped to the centre. If train/ and test/ (or val/) both
///             exist, they are the parts; otherwise every tenth image is in the
///             test part. Greyscale, palette, alpha, 16 bits and CMYK become
///             RGB as described at io::read_image. An unreadable file is an
///             error.
///   built in  2,000 training and 200 test images, drawn by the program:
///             coloured discs, squares and triangles on a two-colour sky.
class RawImages {
 public:
  /// Opens a data set; path "" is the built-in one. The last `valid` training
  /// images, but at most a tenth, are held out for validation. Throws DataError
  /// and io::Error, which name the file; DataError also if the images exceed
  /// the machine's memory.
  static RawImages open(const std::string& path, int64_t height, int64_t width,
                        int64_t valid, const ProgressCallback& progress = {});

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  ImagePart train() const { return part(0, train_); }
  ImagePart valid() const { return part(train_, valid_); }
  ImagePart test() const { return part(train_ + valid_, test_); }
  /// The part called train, valid or test, or all of them. Throws DataError for
  /// other names.
  ImagePart split(const std::string& name) const;
  /// Whether the source has a test part; otherwise, open() held one out.
  bool has_test() const { return has_test_; }
  /// Identifies the data set: its size and a hash of all images.
  std::string fingerprint() const;

 private:
  ImagePart part(int64_t first, int64_t count) const;

  int64_t height_ = 0, width_ = 0, train_ = 0, valid_ = 0, test_ = 0;
  bool has_test_ = true;
  std::vector<uint8_t> data_;  // training, validation, test images
};

/// Draws built-in image `number` into `to` [height, width, 3].
void draw_built_in_image(uint64_t number, int64_t height, int64_t width,
                         uint8_t* to);

}  // namespace aft::data
