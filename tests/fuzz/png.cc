// Fuzzes the PNG decoder, with the original bytes and with corrected checksums,
// which a fuzzer would never guess.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/image.h"

namespace {

constexpr size_t kMagic = 8, kSize = 16;  // offsets of the chunks and the size

uint32_t big_endian(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 |
         uint32_t{at[3]};
}

/// The CRC-32 of PNG, bit by bit, since inputs are short.
uint32_t checksum(const uint8_t* at, size_t size) {
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < size; ++i) {
    crc ^= at[i];
    for (int bit = 0; bit < 8; ++bit)
      crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

/// Corrects the checksums. A chunk is a length, four letters, data, and the
/// checksum of the letters and the data.
void seal(std::vector<uint8_t>& png) {
  for (size_t at = kMagic; at + 12 <= png.size();) {
    const size_t length = big_endian(&png[at]);
    if (length > png.size() - at - 12) return;
    const uint32_t crc = checksum(&png[at + 4], length + 4);
    uint8_t* to = &png[at + 8 + length];
    for (int i = 0; i < 4; ++i)
      to[i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    at += 12 + length;
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Set the signature; otherwise half of the inputs would be rejected.
  std::vector<uint8_t> png(data, data + size);
  const char magic[] = "\x89PNG\r\n\x1a\n";
  std::copy_n(magic, std::min(size, kMagic), png.begin());
  if (size >= kSize + 8 &&
      aft::fuzz::takes_long(big_endian(&png[kSize]),
                            big_endian(&png[kSize + 4]), size))
    return 0;
  aft::fuzz::check_image(png.data(), png.size());
  seal(png);
  aft::fuzz::check_image(png.data(), png.size());
  return 0;
}
