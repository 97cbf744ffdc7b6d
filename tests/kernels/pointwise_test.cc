// GELU, dropout, AdamW and softmax against plain double loops, on every SIMD
// target.
#include "aft/kernels/pointwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/targets.h"

namespace aft::kernels {
namespace {

double gelu(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_slope(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
         x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}

template <class T>
std::vector<T> ramp(int64_t n, double from, double to) {
  std::vector<T> x;
  for (int64_t i = 0; i < n; ++i)
    x.push_back(static_cast<T>(from + (to - from) * static_cast<double>(i) /
                                          static_cast<double>(n)));
  return x;
}

template <class T>
void check_gelu(double tolerance) {
  const int64_t rows = 301, n = 37;
  const std::vector<T> x = ramp<T>(rows * n, -30, 30), b = ramp<T>(n, -1, 1),
                       dy = ramp<T>(rows * n, 2, -2);
  std::vector<T> y(x.size()), dx(x.size()), db(n, T(1));
  pointwise_kernels<T>().gelu(rows, n, x.data(), b.data(), y.data());
  pointwise_kernels<T>().gelu_backward(rows, n, x.data(), b.data(), dy.data(),
                                       dx.data(), db.data());
  std::vector<double> sums(n, 1);
  for (size_t i = 0; i < x.size(); ++i) {
    const double z = static_cast<double>(x[i] + b[i % n]);
    EXPECT_NEAR(y[i], gelu(z), tolerance * (1 + std::abs(z))) << z;
    EXPECT_NEAR(dx[i], dy[i] * gelu_slope(z), 4 * tolerance) << z;
    sums[i % n] += dx[i];
  }
  for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(db[i], sums[i], 400 * tolerance);
}

TEST(Pointwise, Gelu) {
  for_each_target([] {
    check_gelu<float>(5e-7);
    check_gelu<double>(1e-14);
  });
}

TEST(Pointwise, GeluOfHugeValues) {
  for_each_target([] {
    const float x[] = {-3e38f, -1e4f, 1e4f, 3e38f}, b[] = {0, 0, 0, 0};
    float y[4];
    pointwise_kernels<float>().gelu(1, 4, x, b, y);
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], 0);
    EXPECT_EQ(y[2], x[2]);
    EXPECT_EQ(y[3], x[3]);
  });
}

template <class T>
std::vector<T> dropped(const Dropout& d, int64_t first, int64_t n) {
  const std::vector<T> ones(n, T(1));
  std::vector<T> y(n);
  pointwise_kernels<T>().dropout(d, first, n, ones.data(), nullptr, y.data());
  return y;
}

TEST(Pointwise, DropoutKeepsItsShare) {
  for_each_target([] {
    const int64_t n = 200000;
    for (double p : {0.1, 0.5, 0.9}) {
      const std::vector<float> y = dropped<float>({7, p}, 3, n);
      double kept = 0, pairs = 0;
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_TRUE(y[i] == 0 || y[i] == static_cast<float>(1 / (1 - p)));
        kept += y[i] != 0;
        if (i > 0) pairs += y[i] != 0 && y[i - 1] != 0;
      }
      // Five standard deviations; neighbours are independent.
      const double q = 1 - p, count = static_cast<double>(n);
      EXPECT_NEAR(kept / count, q, 5 * std::sqrt(p * q / count));
      EXPECT_NEAR(pairs / count, q * q, 8 * std::sqrt(q * q / count));
    }
  });
}

TEST(Pointwise, DropoutDependsOnlyOnSeedAndIndex) {
  const std::vector<float> all = dropped<float>({1, 0.5}, 0, 1000);
  for_each_target([&] {
    EXPECT_EQ(dropped<float>({1, 0.5}, 0, 1000), all);
    const std::vector<float> part = dropped<float>({1, 0.5}, 313, 37);
    for (int64_t i = 0; i < 37; ++i) EXPECT_EQ(part[i], all[313 + i]);
    const std::vector<double> wide = dropped<double>({1, 0.5}, 0, 1000);
    for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(wide[i], all[i]);
    EXPECT_NE(dropped<float>({2, 0.5}, 0, 1000), all);
    // Across the boundary of 32 bits.
    const int64_t edge = (int64_t{1} << 32) - 5;
    const std::vector<float> over = dropped<float>({1, 0.5}, edge, 40);
    const std::vector<float> after = dropped<float>({1, 0.5}, edge + 5, 35);
    for (int64_t i = 0; i < 35; ++i) EXPECT_EQ(over[5 + i], after[i]);
    EXPECT_NE(std::vector<float>(all.begin(), all.begin() + 35), after);
  });
}

TEST(Pointwise, DropoutAddsTheResidual) {
  for_each_target([] {
    const std::vector<float> x = ramp<float>(100, 1, 2),
                             r = ramp<float>(100, -5, 5);
    std::vector<float> y(100), plain(100);
    const Dropout d{9, 0.25};
    pointwise_kernels<float>().dropout(d, 0, 100, x.data(), r.data(), y.data());
    pointwise_kernels<float>().dropout(d, 0, 100, x.data(), nullptr,
                                       plain.data());
    for (int i = 0; i < 100; ++i) EXPECT_EQ(y[i], r[i] + plain[i]);
  });
}

template <class T>
void check_adamw(double tolerance) {
  const int64_t n = 45;
  std::vector<T> p = ramp<T>(n, -1, 1), m(n), v(n), g;
  std::vector<double> wp(p.begin(), p.end()), wm(n), wv(n);
  const double beta1 = 0.9, beta2 = 0.95, lr = 0.01, decay = 0.5, eps = 1e-8,
               scale = 0.5;
  for (int t = 1; t <= 5; ++t) {
    g = ramp<T>(n, -t, 3);
    const double rate = lr / (1 - std::pow(beta1, t)),
                 root = 1 / std::sqrt(1 - std::pow(beta2, t));
    pointwise_kernels<T>().adamw(
        {scale, beta1, beta2, lr, decay, rate, root, eps}, n, g.data(),
        p.data(), m.data(), v.data());
    for (int64_t i = 0; i < n; ++i) {
      const double grad = g[i] * scale;
      wm[i] = beta1 * wm[i] + (1 - beta1) * grad;
      wv[i] = beta2 * wv[i] + (1 - beta2) * grad * grad;
      const double mhat = wm[i] / (1 - std::pow(beta1, t)),
                   vhat = wv[i] / (1 - std::pow(beta2, t));
      wp[i] -= lr * decay * wp[i] + lr * mhat / (std::sqrt(vhat) + eps);
      EXPECT_NEAR(p[i], wp[i], tolerance) << "step " << t << ", " << i;
    }
  }
}

TEST(Pointwise, AdamW) {
  for_each_target([] {
    check_adamw<float>(2e-6);
    check_adamw<double>(1e-14);
  });
}

template <class T>
void check_softmax(int64_t n, double tolerance) {
  const int64_t rows = 3;
  std::vector<T> x = ramp<T>(rows * n, -20, 60);
  std::vector<double> want(x.begin(), x.end());
  pointwise_kernels<T>().softmax(rows, n, x.data());
  for (int64_t row = 0; row < rows; ++row) {
    double* y = want.data() + row * n;
    const double highest = *std::max_element(y, y + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(y[i] - highest);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(x[row * n + i], y[i] / sum, tolerance * y[i] / sum)
          << n << " " << row << " " << i;
  }
}

TEST(Pointwise, Softmax) {
  for_each_target([] {
    for (int64_t n : {1, 2, 15, 16, 17, 31, 64, 1001}) {
      check_softmax<float>(n, 2e-6);
      check_softmax<double>(n, 1e-13);
    }
  });
}

TEST(Pointwise, SoftmaxOfExtremes) {
  const float inf = std::numeric_limits<float>::infinity();
  for_each_target([inf] {
    for (size_t n : {3, 40}) {
      for (size_t at : {size_t{0}, n - 1}) {
        const auto softmax = [&](float others, float value) {
          std::vector<float> x(n, others);
          x[at] = value;
          pointwise_kernels<float>().softmax(1, static_cast<int64_t>(n),
                                             x.data());
          return x;
        };
        std::vector<float> one(n, 0);
        one[at] = 1;
        EXPECT_EQ(softmax(-inf, 5), one);
        EXPECT_EQ(softmax(-3e38f, 3e38f), one);
        EXPECT_EQ(softmax(3, -inf)[at], 0);
        EXPECT_FLOAT_EQ(softmax(3, -inf)[1], 1 / static_cast<float>(n - 1));
        for (const auto& row :
             {softmax(0, NAN), softmax(0, inf), softmax(-inf, -inf)})
          for (const float y : row) EXPECT_TRUE(std::isnan(y));
      }
    }
  });
}

TEST(Pointwise, Squares) {
  for_each_target([] {
    for (int64_t n : {0, 1, 7, 8, 100000}) {
      const std::vector<float> x = ramp<float>(n, -1, 3);
      double want = 0;
      for (float a : x) want += static_cast<double>(a) * a;
      EXPECT_NEAR(pointwise_kernels<float>().squares(n, x.data()), want,
                  1e-5 * want + 1e-12);
    }
  });
}

TEST(Pointwise, NonFinite) {
  for_each_target([] {
    const float inf = std::numeric_limits<float>::infinity(), nan = NAN;
    // In whole vectors and behind them; other elements are not affected.
    std::vector<float> x(37, 1.f), b(37, 0.f), y(37), dx(37), db(37, 0.f);
    x[2] = x[35] = nan, x[3] = inf, b[5] = nan;
    pointwise_kernels<float>().gelu(1, 37, x.data(), b.data(), y.data());
    pointwise_kernels<float>().gelu_backward(1, 37, x.data(), b.data(),
                                             x.data(), dx.data(), db.data());
    for (int i = 0; i < 37; ++i) {
      const bool bad = i == 2 || i == 5 || i == 35;
      EXPECT_EQ(std::isnan(y[i]), bad) << i;
      EXPECT_EQ(std::isfinite(dx[i]), !bad && i != 3) << i;
      EXPECT_EQ(std::isfinite(db[i]), !bad && i != 3) << i;
    }
    EXPECT_EQ(y[3], inf);
    std::vector<float> p(37, 1.f), m(37, 0.f), v(37, 0.f);
    pointwise_kernels<float>().adamw({1, 0.9, 0.95, 0.01, 0, 0.1, 1, 1e-8}, 37,
                                     x.data(), p.data(), m.data(), v.data());
    for (int i = 0; i < 37; ++i)
      EXPECT_EQ(std::isfinite(p[i]), std::isfinite(x[i])) << i;
    EXPECT_TRUE(std::isnan(pointwise_kernels<float>().squares(37, x.data())));
    const Dropout keep{1, 0};
    pointwise_kernels<float>().dropout(keep, 0, 37, x.data(), nullptr,
                                       y.data());
    for (int i = 0; i < 37; ++i) EXPECT_EQ(std::isnan(y[i]), std::isnan(x[i]));
  });
}

}  // namespace
}  // namespace aft::kernels
