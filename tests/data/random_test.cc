// base::Random: a fixed sequence with the right distributions.
#include <cmath>
#include <string>
#include <vector>

#include "aft/data/augment.h"
#include "tests/data/statistics.h"

namespace aft::data {
namespace {

TEST(RandomTest, SequenceIsFixed) {
  base::Random zero(0), one(1);
  EXPECT_EQ(zero.next(), 0xa706dd2f4d197e6fu);
  EXPECT_EQ(zero.next(), 0xb382a305f4414f5eu);
  EXPECT_EQ(zero.next(), 0x631a9154fbabf717u);
  EXPECT_EQ(one.next(), 0x5e41ab087439611eu);
  EXPECT_EQ(one.uniform(),
            static_cast<double>(0xf18d6ce93d6cf1eeu >> 11) / (1ull << 53));
  EXPECT_EQ(one.below(1000), 0xb95f66d327e8d78 % 1000);
}

TEST(RandomTest, Uniform) {
  base::Random random(2);
  std::vector<double> values, wide, products;
  double last = random.uniform();
  for (int i = 0; i < 100000; ++i) {
    values.push_back(random.uniform());
    products.push_back((values.back() - 0.5) * (last - 0.5));
    last = values.back();
    wide.push_back(random.uniform(-3, 7));
  }
  expect_uniform(values, 0, 1);
  expect_uniform(wide, -3, 7);
  expect_moments(products, 0, 1.0 / 144, 3.24);  // neighbours are uncorrelated
}

TEST(RandomTest, SeedsAreIndependent) {
  std::vector<double> first;
  for (uint64_t seed = 0; seed < 20000; ++seed)
    first.push_back(base::Random(seed).uniform());
  expect_uniform(first, 0, 1);
}

TEST(RandomTest, Below) {
  base::Random random(3);
  std::vector<int64_t> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts.at(random.below(7));
  for (const int64_t count : counts) expect_share(count, 70000, 1.0 / 7);
  // 2^64 is 2 2/3 times this: a plain remainder would be small too often.
  const int64_t large = int64_t{3} << 61;
  int64_t small = 0;
  for (int i = 0; i < 20000; ++i) small += random.below(large) < large / 2;
  expect_share(small, 20000, 0.5);
  EXPECT_EQ(random.below(1), 0);
  expect_error([&] { random.below(0); }, "n must be at least 1");
}

TEST(RandomTest, Normal) {
  base::Random random(4);
  std::vector<double> values, products;
  int64_t near = 0, far = 0;
  const int64_t n = 200000;
  double last = random.normal();
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(random.normal());
    near += std::abs(values.back()) < 1;
    far += std::abs(values.back()) > 3;
    products.push_back(values.back() * last);
    last = values.back();
  }
  expect_moments(values, 0, 1, 3);
  expect_share(near, n, 0.682689);
  expect_share(far, n, 0.0026998);
  expect_moments(products, 0, 1, 9);
}

TEST(RandomTest, Beta) {
  struct Case {
    double a, b;
  };
  for (const auto& [a, b] : {Case{1, 1}, Case{0.8, 0.8}, Case{0.1, 0.1},
                             Case{0.1, 10}, Case{10, 3}, Case{0.5, 2}}) {
    base::Random random(5);
    std::vector<double> values;
    for (int i = 0; i < 50000; ++i) {
      values.push_back(random.beta(a, b));
      ASSERT_GE(values.back(), 0);
      ASSERT_LE(values.back(), 1);
    }
    const double s = a + b, variance = a * b / (s * s * (s + 1));
    const double excess = 6 * ((a - b) * (a - b) * (s + 1) - a * b * (s + 2)) /
                          (a * b * (s + 2) * (s + 3));
    SCOPED_TRACE(std::to_string(a) + ", " + std::to_string(b));
    expect_moments(values, a / s, variance, 3 + excess);
  }
  // Extreme parameters: almost a coin flip, and almost constant.
  base::Random random(6);
  int64_t ones = 0;
  for (int i = 0; i < 5000; ++i) {
    const double v = random.beta(1e-300, 1e-300);
    ASSERT_TRUE(v == 0 || v == 1);
    ones += v == 1;
    ASSERT_NEAR(random.beta(1e300, 1e300), 0.5, 1e-12);
  }
  expect_share(ones, 5000, 0.5);
  for (const double bad : {0.0, -1.0, kNan}) {
    expect_error([&] { random.beta(1, bad); }, "a and b");
    expect_error([&] { random.beta(bad, 1); }, "a and b");
  }
}

}  // namespace
}  // namespace aft::data
