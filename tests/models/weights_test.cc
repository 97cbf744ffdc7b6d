// Named tensors in files: checksums, and what is rejected.
#include "aft/models/weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "aft/base/error.h"
#include "aft/io/file.h"
#include "aft/io/safetensors.h"
#include "tests/io/message_of.h"
#include "tests/scratch.h"

namespace aft::models {
namespace {

using io::message_of;

NamedTensors example() {
  return {{"w", at::arange(6, at::kFloat).view({2, 3})},
          {"counts", at::arange(3, at::kLong)}};
}

constexpr size_t kBytes = 6 * 4 + 3 * 8;  // of the example

NamedTensors empty_like(const NamedTensors& all) {
  NamedTensors out;
  for (const auto& [name, x] : all) out.emplace_back(name, at::zeros_like(x));
  return out;
}

TEST(Weights, AreReadAsTheyWereWritten) {
  const std::string path = new_folder() + "/weights";
  save_tensors(path, example(), {{"step", "7"}});
  const NamedTensors read = empty_like(example());
  EXPECT_EQ(load_tensors(path, read).at("step"), "7");
  for (size_t i = 0; i < read.size(); ++i)
    EXPECT_TRUE(read[i].second.equal(example()[i].second)) << read[i].first;
}

/// A change of one bit is an error, wherever it is.
TEST(Weights, DamageIsNoticed) {
  const std::string path = new_folder() + "/weights";
  save_tensors(path, example(), {{"step", "7"}});
  const std::string whole = io::read_file(path, 10000);
  size_t named = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    io::write_file(path, damaged);
    const NamedTensors read = empty_like(example());
    const std::string message = message_of([&] { load_tensors(path, read); });
    named += message.find("the file is damaged") != std::string::npos;
    // Also where the name of the checksum is damaged.
    ASSERT_NE(message, "no error") << "byte " << i;
    for (const auto& [name, x] : read)
      ASSERT_TRUE(x.equal(at::zeros_like(x))) << name << ", byte " << i;
  }
  EXPECT_GE(named, kBytes);
}

TEST(Weights, FilesWithoutChecksumAreRead) {
  const std::string path = new_folder() + "/weights";
  const float value = 2;
  io::save_safetensors(path, {{"w", io::DType::kF32, {1}, &value, 4}}, {});
  const at::Tensor w = at::zeros({1});
  load_tensors(path, {{"w", w}});
  EXPECT_EQ(w.item<float>(), 2);
}

TEST(Weights, FingerprintsTellTensorsApart) {
  const at::Tensor x = at::ones({2, 3});
  const std::string one = fingerprint({{"x", x}});
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(one, fingerprint({{"x", x.clone()}}));
  EXPECT_NE(one, fingerprint({{"y", x}}));
  EXPECT_NE(one, fingerprint({{"x", x.view({3, 2})}}));
  EXPECT_NE(one, fingerprint({{"x", x.to(at::kDouble)}}));
  EXPECT_NE(one,
            fingerprint({{"x", at::ones({2, 3}).index_fill_(
                                   0, at::ones({1}, at::kLong), 1.0000001)}}));
}

TEST(Weights, RejectsOtherTensors) {
  const std::string path = new_folder() + "/weights";
  save_tensors(path, example());
  const at::Tensor w = at::zeros({2, 3});
  EXPECT_EQ(message_of([&] {
              load_tensors(path, {{"w", w}});
            }),
            path + ": has a tensor 'counts' that the model does not have");
  load_tensors(path, {{"w", w}}, /*more=*/true);
  EXPECT_NE(message_of([&] {
              load_tensors(path, {{"w", at::zeros({3, 2})}}, true);
            }).find("tensor 'w' must be F32 [3, 2], got F32 [2, 3]"),
            std::string::npos);
  save_tensors(path,
               {{"w", at::full({1}, std::numeric_limits<float>::infinity())}});
  EXPECT_NE(message_of([&] {
              load_tensors(path, {{"w", at::zeros({1})}});
            }),
            "no error");
}

}  // namespace
}  // namespace aft::models
