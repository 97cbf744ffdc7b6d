// Reads CIFAR-10 batches in their binary version. Torch-free, so that the
// fuzzer builds quickly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/io/image.h"

namespace aft::data {

/// A batch is kCifarRecords records: a label below 10, then the red, green and
/// blue planes of kCifarSide x kCifarSide pixels.
inline constexpr int64_t kCifarSide = 32;
inline constexpr int64_t kCifarRecord = 1 + 3 * kCifarSide * kCifarSide;
inline constexpr int64_t kCifarRecords = 10000;

struct CifarFiles {
  std::vector<std::string> train;  ///< those of the five that exist
  std::string test;                ///< empty if it does not exist
};
CifarFiles cifar_files(const std::string& path);

/// Appends the records of a batch file. Throws DataError, which names the file,
/// unless it is complete and all labels are valid.
void read_cifar(const std::string& path, std::vector<uint8_t>& records);

io::Image cifar_image(const uint8_t* record);

}  // namespace aft::data
