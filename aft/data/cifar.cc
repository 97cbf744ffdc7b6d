#include "aft/data/cifar.h"

#include "aft/data/data.h"
#include "aft/io/file.h"
#include "aft/io/safetensors.h"

namespace aft::data {
CifarFiles cifar_files(const std::string& path) {
  CifarFiles out;
  for (int i = 1; i <= 5; ++i) {
    const std::string batch =
        path + "/data_batch_" + std::to_string(i) + ".bin";
    if (io::exists(batch)) out.train.push_back(batch);
  }
  if (io::exists(path + "/test_batch.bin")) out.test = path + "/test_batch.bin";
  return out;
}

void read_cifar(const std::string& path, std::vector<uint8_t>& records) {
  constexpr size_t kBytes = static_cast<size_t>(kCifarRecord * kCifarRecords);
  std::string bytes;
  try {
    bytes = io::read_file(path, kBytes);
  } catch (const io::Error& e) {
    throw DataError(std::string(e.what()) + "; expected a batch of CIFAR-10");
  }
  if (bytes.size() != kBytes) {
    throw DataError(path + ": is not a batch of CIFAR-10: expected " +
                    std::to_string(kBytes) + " bytes (" +
                    std::to_string(kCifarRecords) + " records of " +
                    std::to_string(kCifarRecord) + "), got " +
                    std::to_string(bytes.size()));
  }
  const size_t before = records.size();
  records.insert(records.end(), bytes.begin(), bytes.end());
  const uint8_t* const first = records.data() + before;
  for (int64_t i = 0; i < kCifarRecords; ++i) {
    if (const int label = first[i * kCifarRecord]; label > 9) {
      throw DataError(path + ": record " + std::to_string(i) +
                      ": the label must be 0 to 9, got " +
                      std::to_string(label));
    }
  }
}

io::Image cifar_image(const uint8_t* record) {
  constexpr int64_t kPlane = kCifarSide * kCifarSide;
  io::Image image{kCifarSide, kCifarSide, std::vector<uint8_t>(3 * kPlane)};
  for (int64_t p = 0; p < kPlane; ++p)
    for (int64_t c = 0; c < 3; ++c)
      image.rgb[static_cast<size_t>(3 * p + c)] = record[1 + c * kPlane + p];
  return image;
}

}  // namespace aft::data
