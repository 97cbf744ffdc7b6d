// Batches of CIFAR-10, as its authors pack them for C programs. Torch-free, so
// that it is fuzzed in seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/io/image.h"

namespace aft::tasks {

/// A batch is kCifarRecords records: a label below 10, then red, green and blue
/// of kCifarSide x kCifarSide pixels, each channel for itself.
inline constexpr int64_t kCifarSide = 32;
inline constexpr int64_t kCifarRecord = 1 + 3 * kCifarSide * kCifarSide;
inline constexpr int64_t kCifarRecords = 10000;

struct CifarFiles {
  std::vector<std::string> train;  ///< those of the five that are there
  std::string test;                ///< "": not there
};
CifarFiles cifar_files(const std::string& path);

/// Adds the records of a batch. Throws DataError, which names the file, unless
/// it is a whole one with good labels.
void read_cifar(const std::string& path, std::vector<uint8_t>& records);

io::Image cifar_picture(const uint8_t* record);

}  // namespace aft::tasks
