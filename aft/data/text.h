// Text as bytes: files, splits, preparation, and the order in which windows are
// trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aft/tasks/data.h"

namespace aft::tasks {

/// A text with its three parts: of 100,000,000 bytes (enwik8) the first 90, the
/// next 5 and the last 5 million, of any other size the same shares. A file is
/// memory mapped, and only read where it is looked at.
///
/// Preparation modes, as the literature has them for enwik8:
///   bytes  every byte is itself; vocabulary 256
///   txl    Transformer-XL's: newlines are dropped, symbols numbered by
///          frequency over the whole text
///   eos    the same, and a newline is a symbol
/// bits per character of different modes count different symbols.
class Text {
 public:
  /// path "" is the built-in text: the project's own sources and documents.
  /// symbols: what symbols() of another text gave, where this one is for a
  /// model of that one (txl and eos; otherwise ""); a byte that has no symbol
  /// there is an error. Throws DataError, with the file's name.
  static Text open(const std::string& path, const std::string& mode,
                   const std::string& symbols = "");
  /// A text that is given; it may be empty.
  static Text from(std::string bytes, const std::string& mode,
                   const std::string& symbols = "");

  Bytes train() const { return train_; }
  Bytes valid() const { return valid_; }
  Bytes test() const { return test_; }
  /// By name: train, valid or test. Throws DataError.
  Bytes split(const std::string& name) const;

  int64_t vocabulary() const { return vocabulary_; }
  /// The bytes of the symbols in order, in hexadecimal; "" for mode bytes.
  std::string symbols() const;
  /// Tells texts apart: their size and a hash of samples of the training part.
  std::string fingerprint() const;
  /// The byte of a symbol, and back; -1 for a byte that has none.
  int byte_of(int64_t symbol) const { return bytes_[symbol]; }
  int symbol_of(uint8_t byte) const { return symbols_[byte]; }

 private:
  void prepare(Bytes raw, const std::string& mode, const std::string& symbols);

  std::shared_ptr<const void> owner_;
  std::vector<uint8_t> prepared_;
  Bytes train_, valid_, test_;
  std::string mode_;
  int64_t vocabulary_ = 256;
  std::vector<int> bytes_;
  int symbols_[256];
};

/// Where training windows of T + 1 bytes begin. An epoch is all windows that do
/// not overlap (but for one byte), from a random offset, in a random order,
/// both from the seed and the number of the epoch: example i is the same
/// whenever it is asked for.
class Windows {
 public:
  /// Throws DataError unless there is at least one.
  Windows(int64_t size, int64_t T, uint64_t seed);
  int64_t start(int64_t example);
  int64_t per_epoch() const { return order_.count(); }

 private:
  int64_t T_;
  Order order_;
};

/// The built-in text.
Bytes built_in_text();

}  // namespace aft::tasks
