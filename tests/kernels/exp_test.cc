// The exponential of the kernels: error on a dense sweep, the ends of its
// range, bit-identical results at every position of an array. Also checks that
// the tests reach every SIMD target.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "aft/kernels/kernels.h"
#include "tests/cases.h"
#include "tests/kernels/targets.h"

namespace aft::kernels {
namespace {

TEST(Targets, EachIsReached) {
  std::set<std::string> seen;
  for_each_target([&] { seen.insert(target_name()); });
  EXPECT_EQ(seen.size(), hwy::SupportedAndGeneratedTargets().size());
  EXPECT_GE(seen.size(), 1u);
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    EXPECT_EQ(seen.count(hwy::TargetName(target)), 1u);
  }
  // The function tables differ as well.
  std::set<const void*> tables, functions;
  for_each_target([&] {
    tables.insert(&simple_kernels<float>());
    tables.insert(&band_kernels<double>());
    tables.insert(&conv_kernels<float>());
    functions.insert(reinterpret_cast<const void*>(band_kernels<float>().dw));
  });
  EXPECT_EQ(tables.size(), 3 * seen.size());
  EXPECT_EQ(functions.size(), seen.size());
}

/// The largest relative error over a sweep of [low, high].
template <class T>
double worst(double low, double high, int64_t n, T* at) {
  constexpr int64_t kChunk = 4096;
  std::vector<T> x(kChunk), y(kChunk);
  double most = 0;
  testing::Random random(1);
  for (int64_t i = 0; i < n; i += kChunk) {
    for (int64_t j = 0; j < kChunk; ++j) {
      const double place = (static_cast<double>(i + j) + random.uniform()) /
                           static_cast<double>(n);
      x[j] = static_cast<T>(low + (high - low) * std::min(place, 1.0));
    }
    simple_kernels<T>().exp(x.data(), y.data(), kChunk);
    for (int64_t j = 0; j < kChunk; ++j) {
      const long double want = std::exp(static_cast<long double>(x[j]));
      const double error = static_cast<double>(std::abs((y[j] - want) / want));
      if (!(error <= most)) most = error, *at = x[j];
    }
  }
  return most;
}

TEST(Exp, ErrorBelowTheStatedBound) {
  for_each_target([] {
    float at = 0;
    EXPECT_LE(worst<float>(-87, 88, 1 << 21, &at), kExpError) << "at " << at;
    EXPECT_LE(worst<float>(-1, 1, 1 << 19, &at), kExpError) << "at " << at;
    // Around the changes of the power of two.
    for (int n = -125; n <= 126; ++n) {
      const double edge = (n + 0.5) * std::log(2.0);
      if (edge < -86.99 || edge > 87.99) continue;
      EXPECT_LE(worst<float>(edge - 1e-4, edge + 1e-4, 4096, &at), kExpError)
          << "at " << at;
    }
  });
}

TEST(Exp, DoubleIsAccurate) {
  for_each_target([] {
    double at = 0;
    EXPECT_LE(worst<double>(-700, 700, 1 << 20, &at), 4e-16) << "at " << at;
    EXPECT_LE(worst<double>(-1, 1, 1 << 18, &at), 4e-16) << "at " << at;
  });
}

TEST(Exp, EndsOfTheRange) {
  for_each_target([] {
    const float huge = std::numeric_limits<float>::max();
    const std::vector<float> x = {0.f,   -0.f,   1e-40f, -1e-40f, 88.f,
                                  88.1f, 1e4f,   huge,   -87.1f,  -1e4f,
                                  -huge, -1e30f, 1e30f};
    std::vector<float> y(x.size(), NAN);
    simple_kernels<float>().exp(x.data(), y.data(),
                                static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) < 1) {
        EXPECT_EQ(y[i], 1.f) << x[i];
      } else if (x[i] < -87) {
        EXPECT_EQ(y[i], 0.f) << x[i];
      } else {
        EXPECT_EQ(y[i], y[4]) << x[i];
        EXPECT_NEAR(y[i] / std::exp(88.), 1, kExpError);
      }
    }
    const std::vector<double> far = {-1e4, -1e300, 1e4, 1e300};
    std::vector<double> out(far.size(), NAN);
    simple_kernels<double>().exp(far.data(), out.data(), 4);
    EXPECT_EQ(out[0], 0.0);
    EXPECT_EQ(out[1], 0.0);
    EXPECT_TRUE(std::isfinite(out[2]) && out[2] > 1e300);
    EXPECT_TRUE(std::isfinite(out[3]) && out[3] > 1e300);
  });
}

// A result must not depend on the position in the array: bit-exact causality
// and padding rely on this. Nothing is written beyond n.
template <class T>
void check_places() {
  constexpr int64_t kMost = 40;
  testing::Random random(2);
  std::vector<T> x(kMost), one(kMost);
  for (T& value : x) value = static_cast<T>(20 * random.normal());
  for (int64_t i = 0; i < kMost; ++i) {
    simple_kernels<T>().exp(&x[i], &one[i], 1);
  }
  for (int64_t n = 0; n < kMost; ++n) {
    std::vector<T> y(kMost, T(-1));
    simple_kernels<T>().exp(x.data(), y.data(), n);
    for (int64_t i = 0; i < kMost; ++i) {
      EXPECT_EQ(y[i], i < n ? one[i] : T(-1)) << "n " << n << ", i " << i;
    }
    std::vector<T> in_place = x;
    simple_kernels<T>().exp(in_place.data(), in_place.data(), n);
    for (int64_t i = 0; i < kMost; ++i) {
      EXPECT_EQ(in_place[i], i < n ? one[i] : x[i]) << "n " << n;
    }
  }
}

TEST(Exp, SameBitsEverywhere) {
  for_each_target([] {
    check_places<float>();
    check_places<double>();
  });
}

TEST(Exp, NonFinite) {
  for_each_target([] {
    const double inf = std::numeric_limits<double>::infinity();
    const auto check = [inf](auto type) {
      using T = decltype(type);
      std::vector<T> x(40, T(1)), y(40);
      x[3] = x[39] = static_cast<T>(NAN), x[4] = -x[3];
      memset(&x[6], 0xff, sizeof(T));  // a NaN with all bits
      x[7] = static_cast<T>(inf), x[8] = static_cast<T>(-inf);
      simple_kernels<T>().exp(x.data(), y.data(), 40);
      for (int i : {3, 4, 6, 39}) EXPECT_TRUE(std::isnan(y[i])) << i;
      EXPECT_TRUE(std::isfinite(y[7]));
      EXPECT_EQ(y[8], 0);
      EXPECT_NEAR(y[2], std::exp(1.), 1e-6);
    };
    check(1.f);
    check(1.);
  });
}

}  // namespace
}  // namespace aft::kernels
