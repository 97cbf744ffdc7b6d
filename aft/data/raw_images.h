// Pictures of one size as sub-pixels: CIFAR-10, a folder of files, or built in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/tasks/data.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

/// Pictures that lie one after the other in someone else's memory, each
/// [height, width, 3]: rows from the top, red, green and blue of a pixel
/// together.
struct PicturePart {
  const uint8_t* data = nullptr;
  int64_t count = 0;
  int64_t size = 0;  ///< of one: 3 height width

  const uint8_t* operator[](int64_t i) const { return data + i * size; }
};

/// What is in a data set, at one size. In memory as bytes.
///
///   CIFAR-10  a directory with data_batch_1.bin to data_batch_5.bin, any of
///             them, and test_batch.bin, each whole: 10,000 records of a label
///             below 10 and 3072 bytes. Another size than 32 x 32: as below
///   a folder  of PNG and JPEG files (by their names: .png, .jpg, .jpeg), with
///             those in folders below it, in the order of their names, scaled
///             to cover height x width and cut to its centre. Below train/ and
///             test/ (or val/) where both are there, otherwise each tenth is
///             for the test. Greyscale, palette, alpha, 16 bits and CMYK
///             become RGB as io::read_image says; a file that cannot be read
///             is an error
///   built in  2,000 for training and 200 for the test, drawn by the program:
///             coloured discs, squares and triangles on a sky of two colours
class Pictures {
 public:
  /// path "": built in. valid: how many of the last training pictures are kept
  /// for validation, but a tenth at the most. Throws DataError, io::Error,
  /// which name the file; DataError for more than the machine's memory.
  static Pictures open(const std::string& path, int64_t height, int64_t width,
                       int64_t valid, const Progress& progress = {});

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  PicturePart train() const { return part(0, train_); }
  PicturePart valid() const { return part(train_, valid_); }
  PicturePart test() const { return part(train_ + valid_, test_); }
  /// By name: train, valid or test. Throws DataError.
  PicturePart split(const std::string& name) const;
  /// Tells data sets apart: their size and a hash of all pictures.
  std::string fingerprint() const;

 private:
  PicturePart part(int64_t first, int64_t count) const;

  int64_t height_ = 0, width_ = 0, train_ = 0, valid_ = 0, test_ = 0;
  std::vector<uint8_t> data_;  // training, validation, test
};

/// The built-in picture of that number, to [height, width, 3].
void draw_picture(uint64_t number, int64_t height, int64_t width, uint8_t* to);

}  // namespace aft::tasks
