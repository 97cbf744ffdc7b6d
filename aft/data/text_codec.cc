#include "aft/data/text_codec.h"

#include <algorithm>
#include <numeric>

#include "aft/data/data.h"

namespace aft::data {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

void check_mode(const std::string& mode) {
  if (mode == "bytes" || mode == "txl" || mode == "eos") return;
  throw DataError("data.mode must be bytes, txl or eos, got '" + mode + "'");
}

std::vector<uint8_t> all_bytes() {
  std::vector<uint8_t> out(256);
  std::iota(out.begin(), out.end(), uint8_t{0});
  return out;
}

/// Parses the output of TextCodec::symbols().
std::vector<uint8_t> parse_symbols(const std::string& text) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const size_t high = kDigits.find(text[i]), low = kDigits.find(text[i + 1]);
    const auto byte = static_cast<uint8_t>(16 * high + low);
    if (high == kDigits.npos || low == kDigits.npos ||
        std::find(out.begin(), out.end(), byte) != out.end())
      break;
    out.push_back(byte);
  }
  if (out.empty() || 2 * out.size() != text.size())
    throw DataError(
        "data.symbols must be different bytes in hexadecimal, got '" + text +
        "'");
  return out;
}

}  // namespace

TextCodec::TextCodec(const std::string& mode, const std::string& symbols)
    : all_bytes_(mode == "bytes") {
  check_mode(mode);
  number(all_bytes_ ? all_bytes() : parse_symbols(symbols));
}

TextCodec TextCodec::from_counts(const std::string& mode,
                                 const std::array<int64_t, 256>& counts) {
  check_mode(mode);
  TextCodec out;
  if (mode == "bytes") return out;
  std::vector<uint8_t> bytes = all_bytes();
  bytes.erase(std::remove_if(bytes.begin(), bytes.end(),
                             [&](uint8_t b) {
                               return counts[b] == 0 ||
                                      (b == '\n' && mode == "txl");
                             }),
              bytes.end());
  std::stable_sort(bytes.begin(), bytes.end(),
                   [&](uint8_t x, uint8_t y) { return counts[x] > counts[y]; });
  out.all_bytes_ = false;
  out.number(std::move(bytes));
  return out;
}

void TextCodec::number(std::vector<uint8_t> bytes) {
  bytes_ = std::move(bytes);
  symbols_.fill(-1);
  for (size_t i = 0; i < bytes_.size(); ++i)
    symbols_[bytes_[i]] = static_cast<int>(i);
}

std::string TextCodec::symbols() const {
  std::string out;
  if (all_bytes_) return out;
  for (const uint8_t b : bytes_) out += {kDigits[b / 16], kDigits[b % 16]};
  return out;
}

std::vector<int64_t> TextCodec::encode(std::string_view text,
                                       int64_t* unknown) const {
  std::vector<int64_t> out;
  for (const char c : text) {
    const int symbol = symbol_of(static_cast<uint8_t>(c));
    if (symbol >= 0) out.push_back(symbol);
    if (symbol < 0 && c != '\n' && unknown) ++*unknown;
  }
  return out;
}

std::string TextCodec::decode(const std::vector<int64_t>& symbols) const {
  std::string out;
  for (const int64_t s : symbols) out += static_cast<char>(byte_of(s));
  return out;
}

}  // namespace aft::data
