// The loader returns the right batches in any order, prepares batches ahead,
// and passes errors on.
#include "aft/data/loader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace aft::data {
namespace {

/// Example i is i, i + 0.5, with the label 3 i.
int64_t example(int64_t i, float* to) {
  to[0] = static_cast<float>(i), to[1] = static_cast<float>(i) + 0.5f;
  return 3 * i;
}

void expect(const LabelledBatch& batch, int64_t first, int64_t count) {
  ASSERT_EQ(batch.values.size(0), count);
  ASSERT_EQ(static_cast<int64_t>(batch.labels.size()), count);
  for (int64_t i = 0; i < count; ++i) {
    const float* row = batch.values.data_ptr<float>() + 2 * i;
    EXPECT_EQ(row[0], static_cast<float>(first + i));
    EXPECT_EQ(row[1], static_cast<float>(first + i) + 0.5f);
    EXPECT_EQ(batch.labels[static_cast<size_t>(i)], 3 * (first + i));
  }
}

TEST(Loader, InOrderAndOutOfOrder) {
  for (const int64_t threads : {1, 4}) {
    Loader loader(2, example, threads);
    for (int64_t first = 0; first < 100; first += 5)
      expect(loader.get(first, 5), first, 5);
    expect(loader.get(40, 5), 40, 5);  // backwards
    expect(loader.get(45, 7), 45, 7);  // another size
    expect(loader.get(1000000007, 3), 1000000007, 3);
    expect(loader.get(0, 1), 0, 1);
  }
}

TEST(Loader, RequestsNothingBeyondTheEnd) {
  std::atomic<int64_t> most{0};
  Loader loader(
      2,
      [&](int64_t i, float* to) {
        int64_t seen = most;
        while (i > seen && !most.compare_exchange_weak(seen, i)) {
        }
        return example(i, to);
      },
      3, /*end=*/10);
  expect(loader.get(0, 4), 0, 4);
  expect(loader.get(4, 4), 4, 4);
  expect(loader.get(8, 2), 8, 2);
  EXPECT_EQ(most, 9);
}

TEST(Loader, PreparesTheNextBatchesInTheBackground) {
  std::atomic<int64_t> made{0};
  Loader loader(
      2,
      [&](int64_t i, float* to) {
        ++made;
        return example(i, to);
      },
      2);
  loader.get(0, 4);
  for (int i = 0; i < 1000 && made < 12; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(made, 12);  // this batch and two ahead
  expect(loader.get(4, 4), 4, 4);
}

TEST(Loader, LearnsTheStrideBetweenBatches) {
  std::atomic<int64_t> right{0}, wrong{0};
  Loader loader(
      2,
      [&](int64_t i, float* to) {
        ++(i % 16 < 4 ? right : wrong);
        return example(i, to);
      },
      2);
  const auto await = [&](int64_t all) {
    for (int i = 0; i < 1000 && right + wrong < all; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  loader.get(0, 4);
  await(12);  // the stride is not known yet: 0 to 11
  wrong = 0;
  expect(loader.get(16, 4), 16, 4);
  await(4 + 3 * 4);  // 0, 16, 32 and 48
  EXPECT_EQ(right, 4 + 3 * 4);
  EXPECT_EQ(wrong, 0);
  expect(loader.get(32, 4), 32, 4);
}

TEST(Loader, ErrorsReachTheCaller) {
  Loader loader(
      2,
      [](int64_t i, float* to) {
        if (i == 9) throw std::runtime_error("nine.png: broken");
        return example(i, to);
      },
      2);
  expect(loader.get(0, 4), 0, 4);  // example 9 is only prepared
  expect(loader.get(4, 4), 4, 4);
  try {
    loader.get(8, 4);
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_EQ(std::string(e.what()), "nine.png: broken");
  }
  expect(loader.get(12, 4), 12, 4);
  expect(loader.get(4, 4), 4, 4);
}

TEST(Loader, CanBeDestroyedWhileThreadsWork) {
  for (int i = 0; i < 20; ++i) {
    Loader loader(
        2,
        [](int64_t n, float* to) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return example(n, to);
        },
        4);
    if (i % 2 == 0) loader.get(0, 2);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The sanitizers map more memory than any limit allows.
TEST(Loader, TooLittleMemoryForAllThreads) {
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  ASSERT_GT(pages, 0u);
  const rlimit small = {
      pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (100 << 20),
      old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  EXPECT_THROW(Loader(2, example, 1000), std::system_error);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &old), 0);
  Loader loader(2, example, 4);
  expect(loader.get(0, 5), 0, 5);
}
#endif

}  // namespace
}  // namespace aft::data
