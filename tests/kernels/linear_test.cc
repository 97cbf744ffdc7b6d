// Packed linear layers against a double loop, on every target: sizes that are
// not multiples of a tile, strides, and all epilogues.
#include "aft/kernels/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/targets.h"

namespace aft::kernels {
namespace {

template <class T>
void check(int64_t rows, int64_t outputs, int64_t inputs, bool biased,
           Then then) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(inputs) + " to " +
               std::to_string(outputs) + (biased ? ", bias" : "") + ", then " +
               std::to_string(static_cast<int>(then)));
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const int64_t x_stride = inputs + 3, y_stride = outputs + 5;
  std::vector<T> x(rows * x_stride), w(outputs * inputs), b(outputs),
      y(rows * y_stride, T(7)),
      packed(static_cast<size_t>(packed_size(outputs, inputs)) + 16);
  for (auto* values : {&x, &w, &b})
    for (T& v : *values) v = static_cast<T>(normal(random));
  for (T& v : y) v = static_cast<T>(normal(random));
  const std::vector<T> before = y;
  T* aligned = packed.data();
  while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
  const auto& kernel = linear_kernels<T>();
  kernel.pack(outputs, inputs, w.data(), aligned);
  kernel.run(rows, outputs, inputs, x.data(), x_stride, aligned,
             biased ? b.data() : nullptr, then, y.data(), y_stride);
  const double eps = std::numeric_limits<T>::epsilon();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < y_stride; ++o) {
      const size_t at = static_cast<size_t>(r * y_stride + o);
      if (o >= outputs) {  // gaps between the rows are not written
        ASSERT_EQ(y[at], before[at]);
        continue;
      }
      double sum = biased ? b[o] : 0, size = std::abs(sum);
      for (int64_t k = 0; k < inputs; ++k) {
        const double term = static_cast<double>(x[r * x_stride + k]) *
                            static_cast<double>(w[o * inputs + k]);
        sum += term, size += std::abs(term);
      }
      if (then == Then::kGelu)
        sum = 0.5 * sum * std::erfc(-sum * std::sqrt(0.5));
      if (then == Then::kAdd) sum += before[at], size += std::abs(before[at]);
      const double gelu = sizeof(T) == 4 ? 1e-6 : 1e-12;
      ASSERT_NEAR(y[at], sum,
                  (4 + 0.5 * std::sqrt(inputs)) * eps * size +
                      (then == Then::kGelu ? gelu * (1 + std::abs(sum)) : 0))
          << r << ", " << o;
    }
  }
}

TEST(Linear, AgainstADoubleLoop) {
  for_each_target([] {
    for (const Then then : {Then::kStore, Then::kGelu, Then::kAdd}) {
      for (const bool biased : {false, true}) {
        for (const int64_t rows : {0, 1, 2, 3, 5, 6, 7, 12, 13, 25}) {
          check<float>(rows, 16, 9, biased, then);
          check<double>(rows, 33, 5, biased, then);
        }
        for (const int64_t outputs : {1, 7, 15, 17, 31, 48}) {
          check<float>(7, outputs, 20, biased, then);
          check<double>(7, outputs, 20, biased, then);
        }
        for (const int64_t inputs : {0, 1, 2, 64, 1000}) {
          check<float>(14, 18, inputs, biased, then);
          check<double>(14, 18, inputs, biased, then);
        }
        check<float>(400, 20, 192, biased, then);  // more than one block
      }
    }
  });
}

TEST(Linear, RowsDoNotDependOnTheirNeighbours) {
  for_each_target([] {
    const int64_t inputs = 37, outputs = 21, rows = 29;
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> x(rows * inputs), w(outputs * inputs),
        packed(static_cast<size_t>(packed_size(outputs, inputs)) + 16),
        all(rows * outputs), one(outputs);
    for (float& v : x) v = normal(random);
    for (float& v : w) v = normal(random);
    float* aligned = packed.data();
    while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
    const auto& kernel = linear_kernels<float>();
    kernel.pack(outputs, inputs, w.data(), aligned);
    kernel.run(rows, outputs, inputs, x.data(), inputs, aligned, nullptr,
               Then::kStore, all.data(), outputs);
    for (int64_t r = 0; r < rows; ++r) {
      kernel.run(1, outputs, inputs, x.data() + r * inputs, inputs, aligned,
                 nullptr, Then::kStore, one.data(), outputs);
      for (int64_t o = 0; o < outputs; ++o)
        ASSERT_EQ(one[o], all[r * outputs + o]) << r << ", " << o;
    }
  });
}

// A NaN makes its row NaN, and no other.
TEST(Linear, NaN) {
  for_each_target([] {
    const int64_t inputs = 37, outputs = 21, rows = 29;
    std::vector<float> x(rows * inputs, 1.f), w(outputs * inputs, 1.f),
        packed(static_cast<size_t>(packed_size(outputs, inputs)) + 16);
    float* aligned = packed.data();
    while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
    const auto& kernel = linear_kernels<float>();
    kernel.pack(outputs, inputs, w.data(), aligned);
    for (const int64_t bad : {0, 13, 28}) {
      for (const Then then : {Then::kStore, Then::kGelu, Then::kAdd}) {
        std::vector<float> in = x, y(rows * outputs, 0.f);
        in[bad * inputs + 36] = NAN;
        kernel.run(rows, outputs, inputs, in.data(), inputs, aligned, nullptr,
                   then, y.data(), outputs);
        for (int64_t i = 0; i < rows * outputs; ++i)
          ASSERT_EQ(std::isnan(y[i]), i / outputs == bad) << i;
      }
    }
  });
}

}  // namespace
}  // namespace aft::kernels
