// Fuzzes the JPEG decoder.
#include <algorithm>
#include <vector>

#include "tests/fuzz/image.h"

namespace {

/// Whether any frame header, FF C0 to FF CF, declares a size that takes long.
bool takes_long(const std::vector<uint8_t>& jpeg) {
  for (size_t i = 0; i + 9 <= jpeg.size(); ++i) {
    if (jpeg[i] != 0xff || (jpeg[i + 1] & 0xf0) != 0xc0) continue;
    const auto side = [&](size_t at) {
      return uint64_t{jpeg[at]} << 8 | jpeg[at + 1];
    };
    if (aft::fuzz::takes_long(side(i + 5), side(i + 7), jpeg.size()))
      return true;
  }
  return false;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Set the signature; otherwise half of the inputs would be rejected.
  std::vector<uint8_t> jpeg(data, data + size);
  const char magic[] = "\xff\xd8\xff";
  std::copy_n(magic, std::min<size_t>(size, 3), jpeg.begin());
  if (!takes_long(jpeg)) aft::fuzz::check_image(jpeg.data(), jpeg.size());
  return 0;
}
