#include "aft/tasks/cifar.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "aft/tasks/data.h"

namespace aft::tasks {
namespace {

namespace fs = std::filesystem;

bool there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

CifarFiles cifar_files(const std::string& path) {
  CifarFiles out;
  for (int i = 1; i <= 5; ++i) {
    const std::string batch =
        path + "/data_batch_" + std::to_string(i) + ".bin";
    if (there(batch)) out.train.push_back(batch);
  }
  if (there(path + "/test_batch.bin")) out.test = path + "/test_batch.bin";
  return out;
}

void read_cifar(const std::string& path, std::vector<uint8_t>& records) {
  if (std::error_code error; !fs::is_regular_file(path, error))
    throw DataError(path +
                    ": expected a batch of CIFAR-10, got no regular file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file)
    throw DataError(path + ": cannot be opened: " + std::strerror(errno));
  const int64_t bytes = file.tellg();
  if (bytes != kCifarRecord * kCifarRecords) {
    throw DataError(path + ": is not a batch of CIFAR-10: expected " +
                    std::to_string(kCifarRecord * kCifarRecords) + " bytes (" +
                    std::to_string(kCifarRecords) + " records of " +
                    std::to_string(kCifarRecord) + "), got " +
                    std::to_string(bytes));
  }
  const size_t before = records.size();
  records.resize(before + static_cast<size_t>(bytes));
  uint8_t* const first = records.data() + before;
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(first), bytes))
    throw DataError(path + ": cannot be read: " + std::strerror(errno));
  for (int64_t i = 0; i < kCifarRecords; ++i) {
    if (const int label = first[i * kCifarRecord]; label > 9) {
      throw DataError(path + ": record " + std::to_string(i) +
                      ": the label must be 0 to 9, got " +
                      std::to_string(label));
    }
  }
}

io::Image cifar_picture(const uint8_t* record) {
  constexpr int64_t kPlane = kCifarSide * kCifarSide;
  io::Image image{kCifarSide, kCifarSide, std::vector<uint8_t>(3 * kPlane)};
  for (int64_t p = 0; p < kPlane; ++p)
    for (int64_t c = 0; c < 3; ++c)
      image.rgb[static_cast<size_t>(3 * p + c)] = record[1 + c * kPlane + p];
  return image;
}

}  // namespace aft::tasks
