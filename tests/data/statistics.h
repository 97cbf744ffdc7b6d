// Expectations on random numbers. Distributions are tested by their moments,
// from fixed seeds, with bounds of five standard errors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "aft/io/safetensors.h"

namespace aft::data {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Expects this mean and variance. kurtosis is E (x - mean)^4 / variance^2,
// which is 1.8 for uniform and 3 for normal values.
inline void expect_moments(const std::vector<double>& values, double mean,
                           double variance, double kurtosis) {
  const auto n = static_cast<double>(values.size());
  double m = 0, v = 0;
  for (const double x : values) m += x / n;
  for (const double x : values) v += (x - mean) * (x - mean) / n;
  EXPECT_NEAR(m, mean, 5 * std::sqrt(variance / n));
  EXPECT_NEAR(v, variance, 5 * variance * std::sqrt((kurtosis - 1) / n));
}

inline void expect_uniform(const std::vector<double>& values, double low,
                           double high) {
  const double width = high - low;
  expect_moments(values, (low + high) / 2, width * width / 12, 1.8);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*least, low);
  EXPECT_LE(*most, high);
}

// Expects a count that agrees with probability p in n trials.
inline void expect_share(int64_t count, int64_t n, double p) {
  const auto all = static_cast<double>(n);
  EXPECT_NEAR(static_cast<double>(count) / all, p,
              5 * std::sqrt(p * (1 - p) / all));
}

inline void expect_error(const std::function<void()>& call,
                         const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "no error: " << part;
  } catch (const io::Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
        << "\"" << e.what() << "\" must have \"" << part << "\"";
  }
}

}  // namespace aft::data
