// Concurrent readers, as in data workers.
#include <gtest/gtest.h>

#include <thread>

#include "tests/io/image_fixture.h"

namespace aft::io {
namespace {

TEST(Threads, ReadImagesAndTensors) {
  const std::vector<std::string> names = {"baseline.jpg", "cmyk.jpg",
                                          "grey16.png", "grey.jpg"};
  const SafeTensors shared =
      SafeTensors::open(kGolden + "expected.safetensors");
  const auto work = [&](size_t from) {
    size_t sum = shared.tensors().size() + shared.metadata().size();
    for (const TensorView& t : shared.tensors())
      sum += shared.at(t.name).bytes + static_cast<const uint8_t*>(t.data)[0];
    // Each thread has a different order. Some calls fail, by longjmp.
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string path = kGolden + names[(from + i) % names.size()];
      const Image image = read_image(path);
      for (const uint8_t x : resize(image, 7, 9).rgb) sum += x;
      sum += encode_png(image, "name").size();
      const std::string bytes = contents(path);
      EXPECT_THROW(decode(bytes.substr(0, bytes.size() / 2)), Error);
    }
    return sum;
  };
  const size_t alone = work(0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(work(t), alone);
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace aft::io
