// Converts between the bytes of a text and the symbols of a language model.
// Torch-free; needs no text and no training task.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aft::data {

/// A numbering of bytes, which a model's config.json names as data.mode and
/// data.symbols. The modes are those of the literature on enwik8:
///   bytes  every byte is a symbol; the vocabulary is 256
///   txl    Transformer-XL's: newlines are dropped, and symbols are numbered by
///          frequency over the whole text
///   eos    the same, but the newline is kept as a symbol
/// Immutable, so one codec can be used by several threads.
class TextCodec {
 public:
  /// The codec of a trained model. symbols: what symbols() returned for the
  /// model's text; ignored for mode bytes. Throws DataError for an unknown mode
  /// or symbols that are not different bytes in hexadecimal.
  explicit TextCodec(const std::string& mode = "bytes",
                     const std::string& symbols = "");
  /// The codec of a text in which byte b occurs counts[b] times. Throws
  /// DataError for an unknown mode.
  static TextCodec from_counts(const std::string& mode,
                               const std::array<int64_t, 256>& counts);

  /// The symbols are 0 to vocabulary() - 1.
  int64_t vocabulary() const { return static_cast<int64_t>(bytes_.size()); }
  /// The bytes of all symbols in order, in hexadecimal; "" for mode bytes.
  std::string symbols() const;
  /// The byte of a symbol in [0, vocabulary()).
  uint8_t byte_of(int64_t symbol) const {
    return bytes_[static_cast<size_t>(symbol)];
  }
  /// The symbol of a byte, or -1 if the byte has none.
  int symbol_of(uint8_t byte) const { return symbols_[byte]; }

  /// The symbols of a text. Bytes without a symbol are skipped; all of them
  /// except newlines are added to *unknown, if given.
  std::vector<int64_t> encode(std::string_view text,
                              int64_t* unknown = nullptr) const;
  /// The inverse of encode for symbols in [0, vocabulary()).
  std::string decode(const std::vector<int64_t>& symbols) const;

 private:
  void number(std::vector<uint8_t> bytes);

  bool all_bytes_ = false;          // mode bytes
  std::vector<uint8_t> bytes_;      // of each symbol
  std::array<int, 256> symbols_{};  // of each byte; -1: none
};

}  // namespace aft::data
