// Fuzzes the safetensors reader: an error, or tensors that lie within the file
// and survive a round trip.
#include "aft/io/safetensors.h"

#include <filesystem>

#include "tests/fuzz/fuzz.h"

namespace {

using aft::fuzz::expect;
using aft::io::TensorView;

/// Reads every byte, so that the sanitizer detects a view that is too long.
uint64_t sum(const TensorView& t) {
  uint64_t out = 0;
  const auto* bytes = static_cast<const uint8_t*>(t.data);
  for (size_t i = 0; i < t.bytes; ++i) out = out * 31 + bytes[i];
  return out;
}

void check_views(const aft::io::SafeTensors& file, size_t size) {
  size_t bytes = 0;
  for (const TensorView& t : file.tensors()) {
    size_t expected = aft::io::dtype_size(t.dtype);
    for (const int64_t n : t.shape) expected *= static_cast<size_t>(n);
    expect(t.bytes == expected, t.name + ": shape and bytes differ");
    expect(file.find(t.name) == &t, t.name + ": not found by its name");
    sum(t);
    bytes += t.bytes;
  }
  expect(bytes <= size, "more data than bytes in the file");
}

void check_round_trip(const aft::io::SafeTensors& file) {
  static const std::string path =
      std::filesystem::temp_directory_path() /
      ("aft-fuzz-" + std::to_string(::getpid()) + ".safetensors");
  aft::io::save_safetensors(path, file.tensors(), file.metadata());
  const aft::io::SafeTensors again = aft::io::SafeTensors::open(path);
  ::unlink(path.c_str());
  expect(again.tensors().size() == file.tensors().size(), "tensors are lost");
  expect(again.metadata() == file.metadata(), "metadata is lost");
  for (const TensorView& t : file.tensors()) {
    const TensorView* other = again.find(t.name);
    expect(other && other->dtype == t.dtype && other->shape == t.shape &&
               sum(*other) == sum(t),
           t.name + ": the tensor changed in a round trip");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static aft::fuzz::MemoryFile memory;
  memory.put(data, size);
  const std::string begin = "safetensors '" + memory.path() + "': ";
  try {
    const auto file = aft::io::SafeTensors::open(memory.path());
    check_views(file, size);
    check_round_trip(file);
    try {
      file.at("no such name");
    } catch (const aft::io::Error& e) {
      aft::fuzz::expect_message(e.what(), begin);
    }
  } catch (const aft::io::Error& e) {
    aft::fuzz::expect_message(e.what(), begin);
  }
  return 0;
}
