// An installed aft::io, without torch: what is saved is what is read.
#include <cstdio>
#include <cstring>

#include "aft/io/safetensors.h"

int main(int, char** argv) {
  const std::string path = std::string(argv[0]) + ".safetensors";
  const float numbers[2] = {1.5f, -2.0f};
  aft::io::TensorView view;
  view.name = "numbers";
  view.dtype = aft::io::DType::kF32;
  view.shape = {2};
  view.data = numbers;
  view.bytes = sizeof numbers;
  aft::io::save_safetensors(path, {view});
  const aft::io::SafeTensors file = aft::io::SafeTensors::open(path);
  const aft::io::TensorView& read = file.at("numbers");
  if (read.bytes != sizeof numbers ||
      std::memcmp(read.data, numbers, sizeof numbers) != 0) {
    std::printf("use_io: %s does not hold what was saved\n", path.c_str());
    return 1;
  }
  std::puts("use_io: ok");
}
