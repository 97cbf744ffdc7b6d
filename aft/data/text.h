// Texts to train on: files, splits, and the order of training windows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aft/data/data.h"
#include "aft/data/text_codec.h"

namespace aft::data {

/// A text and its three parts. enwik8 (100,000,000 bytes) is split into the
/// first 90, the next 5 and the last 5 million bytes, any other text in the
/// same proportions. Files are memory mapped, so only the pages in use are
/// read.
///
/// The parts hold the symbols of the text's codec, as a model reads them. Bits
/// per character are not comparable between the modes of text_codec.h: they
/// count different symbols.
class Text {
 public:
  /// Opens a file; path "" is the built-in text (stories.h). To evaluate a
  /// model on another text than its own (txl and eos), `symbols` is what
  /// codec().symbols() of the model's text returned; a byte without a symbol
  /// there is an error. Otherwise it is "". Throws DataError, which names the
  /// file.
  static Text open(const std::string& path, const std::string& mode,
                   const std::string& symbols = "");
  /// The same for a text in memory, which may be empty.
  static Text from(std::string bytes, const std::string& mode,
                   const std::string& symbols = "");

  Bytes train() const { return train_; }
  Bytes valid() const { return valid_; }
  Bytes test() const { return test_; }
  /// The part called train, valid or test, or all of them. Throws DataError for
  /// other names.
  Bytes split(const std::string& name) const;

  const TextCodec& codec() const { return codec_; }
  /// Identifies the text: its size and a hash of samples of the training part.
  std::string fingerprint() const;

 private:
  void prepare(Bytes raw, const std::string& mode, const std::string& symbols);

  std::shared_ptr<const void> owner_;
  std::vector<uint8_t> prepared_;
  Bytes train_, valid_, test_;
  TextCodec codec_;
};

/// The start positions of training windows of T + 1 bytes. An epoch visits all
/// windows that overlap by only one byte, from a random offset and in random
/// order, both determined by the seed and the index of the epoch. start(i)
/// therefore always returns the same position.
class Windows {
 public:
  /// Throws DataError unless the text holds at least one window.
  Windows(int64_t size, int64_t T, uint64_t seed);
  int64_t start(int64_t example);
  int64_t per_epoch() const { return order_.count(); }

 private:
  int64_t T_;
  Order order_;
};

}  // namespace aft::data
