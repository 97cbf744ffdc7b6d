// Bit-identical results for the same number of threads, and the same outputs
// for any number.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "tests/ops/calls.h"

namespace aft::ops {
namespace {

/// Large enough for two threads.
std::vector<Call> large_calls(bool causal) {
  const int64_t B = 2, T = 150, D = 72, H = 24;
  const Mode mode{"", causal, true, true};
  const Data data({B, T, T, D, D}, mode, 1), heads({B, T, T, D, H}, mode, 2);
  const Numbers w = Random(3).normals(T * T), taps = Random(4).normals(H * 15);
  std::vector<Call> all = {{"simple", kernels::simple(), data},
                           {"full dense", kernels::full(w), data},
                           {"full", kernels::full(w), data},
                           {"local dense", kernels::local(w, 9), data},
                           {"local", kernels::local(w, 30), data},
                           {"conv", kernels::conv(taps, {T}, {15}), heads}};
  factorise(&all[2], 8, 5), factorise(&all[4], 8, 5);
  if (!causal) {
    all.push_back({"conv 2d", kernels::conv(taps, {10, 15}, {3, 5}), heads});
  }
  Call hostile = all[3];
  Random random(6);
  hostile.name = "local hostile";
  hostile.data.k = testing::hostile_keys(random, B * T * D);
  all.push_back(hostile);
  return all;
}

class Threads : public ::testing::Test {
 protected:
  void TearDown() override { at::set_num_threads(before_); }
  const int before_ = at::get_num_threads();
};

TEST_F(Threads, SameBitsEveryTime) {
  at::set_num_threads(2);
  ASSERT_EQ(at::get_num_threads(), 2);
  for (bool causal : {false, true}) {
    for (const Call& call : large_calls(causal)) {
      SCOPED_TRACE(call.name);
      const Outcome first = outcome(call, at::kFloat);
      for (int again = 0; again < 3; ++again) {
        expect_identical(outcome(call, at::kFloat), first);
      }
    }
  }
}

TEST_F(Threads, OneIsTwo) {
  for (bool causal : {false, true}) {
    for (const Call& call : large_calls(causal)) {
      SCOPED_TRACE(call.name);
      at::set_num_threads(1);
      const Outcome one = outcome(call, at::kFloat);
      const Tensor quiet = apply(call, tensors(call, at::kFloat));
      at::set_num_threads(2);
      const Outcome two = outcome(call, at::kFloat);
      EXPECT_EQ(kernels::first_difference(one.all.y, two.all.y), -1);
      EXPECT_TRUE(at::equal(quiet, apply(call, tensors(call, at::kFloat))));
      expect_close(two, one, 1e-5);
    }
  }
}

// Concurrent callers, each with its own path.
TEST_F(Threads, ManyCallers) {
  at::set_num_threads(1);
  const std::vector<Call> all = calls(true);
  std::vector<Outcome> want;
  for (const Call& call : all) want.push_back(outcome(call, at::kFloat));
  std::vector<std::vector<Outcome>> got(3);
  std::vector<std::thread> callers;
  for (auto& mine : got) {
    callers.emplace_back([&all, &mine, first = &mine == &got[0]] {
      std::optional<CompositeGuard> guard;
      if (first) guard.emplace();
      for (const Call& call : all) mine.push_back(outcome(call, at::kFloat));
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    expect_identical(got[1][i], want[i]);
    expect_identical(got[2][i], want[i]);
    expect_close(got[0][i], want[i], 1e-4);
  }
}

}  // namespace
}  // namespace aft::ops
