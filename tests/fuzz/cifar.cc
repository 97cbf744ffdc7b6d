// Fuzzes read_cifar. Since a batch has a fixed size, an input is either the
// file or, if its first byte is odd, changes of a valid batch: position / 251
// in four bytes, then the new byte.
#include "aft/data/cifar.h"

#include <stdexcept>

#include "aft/data/data.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace aft::data;

constexpr size_t kBatch = static_cast<size_t>(kCifarRecord * kCifarRecords);

void check(const std::string& path) {
  std::vector<uint8_t> records(7, 255);  // must be preserved
  try {
    read_cifar(path, records);
    aft::fuzz::expect(records.size() == 7 + kBatch && records[6] == 255,
                      "wrong number of bytes");
    for (size_t i = 7; i < records.size(); i += kCifarRecord)
      aft::fuzz::expect(records[i] <= 9, "a label above 9");
    const aft::io::Image image = cifar_image(&records[7]);
    aft::fuzz::expect(image.rgb[2] == records[7 + 1 + 2 * 32 * 32],
                      "wrong value of the blue channel");
  } catch (const DataError& e) {
    aft::fuzz::expect_message(e.what(), path + ": ");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || data[0] % 2 == 0) {
    static aft::fuzz::MemoryFile any;
    any.put(data, size);
    check(any.path());
    return 0;
  }
  static aft::fuzz::MemoryFile batch;
  batch.resize(kBatch);
  std::vector<size_t> changed;
  for (size_t at = 1; at + 5 <= size; at += 5) {
    size_t place = 0;
    for (size_t i = 0; i < 4; ++i) place = place << 8 | data[at + i];
    place = place / 251 % kBatch;
    batch.write(place, data + at + 4, 1);
    changed.push_back(place);
  }
  check(batch.path());
  const uint8_t zero = 0;
  for (const size_t place : changed) batch.write(place, &zero, 1);
  return 0;
}
