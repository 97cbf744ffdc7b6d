// AFT-full and AFT-local by the kernels against the oracle: every shape, every
// window, hostile keys and biases, rows without keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

using testing::cases;
using testing::modes;

Numbers biases(int64_t Tq, int64_t Tk, uint64_t seed) {
  return Random(seed).normals(Tq * Tk);
}

TEST(Full, Shapes) {
  for (const testing::Case& c : cases()) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      check(full(biases(c.Tq, c.Tk, 1)), Data(shape_of(c), mode, 2));
    }
  }
}

TEST(Local, Shapes) {
  for (const testing::Case& c : cases()) {
    const int64_t T = std::max(c.Tq, c.Tk);
    std::set<int64_t> windows = {c.window, 1, 2, 5, T - 1, T + 3};
    windows.erase(0);  // 0 is simple and T is full: see identity_test.cc
    for (int64_t window : windows) {
      for (const Mode& mode : modes()) {
        const Data data(shape_of(c), mode, 3);
        for (bool only : {false, true}) {
          SCOPED_TRACE(::testing::Message() << c << ", " << mode << ", window "
                                            << window << (only ? " only" : ""));
          check(local(biases(c.Tq, c.Tk, 4), window, only), data);
        }
      }
    }
  }
}

// A kernel call processes a strip of 64 channels in tiles of 16.
TEST(Band, ManyChannels) {
  for (int64_t D : {63, 64, 65, 71, 72, 130, 200}) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(::testing::Message() << "D " << D << ", " << mode);
      const Data data({2, 11, 11, D, D}, mode, 5);
      check(full(biases(11, 11, 6)), data);
      check(local(biases(11, 11, 6), 3), data);
    }
  }
}

TEST(Band, HostileKeysAndBiases) {
  uint64_t turn = 0;  // each spike height in turn, then all together
  for (const testing::Case& c : cases()) {
    for (const Mode& mode : modes()) {
      ++turn;
      for (uint64_t kind : {turn % 4, uint64_t{4}}) {
        Data data(shape_of(c), mode, 7);
        Random random(turn);
        const auto& heights = testing::spike_heights();
        const int64_t n = c.B * c.Tk * c.D;
        data.k = kind < 4 ? testing::spiked_keys(random, n, heights[kind])
                          : testing::hostile_keys(random, n);
        SCOPED_TRACE(::testing::Message()
                     << c << ", " << mode << ", kind " << kind);
        const Numbers w = turn % 3 != 0
                              ? testing::hostile_biases(random, c.Tq * c.Tk)
                              : biases(c.Tq, c.Tk, turn);
        const auto some = kind < 2 ? check_here : check;  // to save time
        some(full(w), data, kHostile);
        some(local(w, std::max<int64_t>(c.window, 1)), data, kHostile);
        some(local(w, c.window + 1, true), data, kHostile);
      }
    }
  }
}

TEST(Band, HostileBiasesWithOrdinaryKeys) {
  for (const Mode& mode : modes()) {
    SCOPED_TRACE(mode);
    const Data data({2, 70, 70, 9, 9}, mode, 8);
    Random random(9);
    const Numbers w = testing::hostile_biases(random, 70 * 70);
    check(full(w), data, kHostile);
    for (int64_t window : {1, 2, 11, 70}) {
      for (bool only : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "window " << window);
        check(local(w, window, only), data, kHostile);
      }
    }
  }
}

// Exponents just within and just beyond the limits of the fast path.
TEST(Band, NearTheLimits) {
  for (const Mode& mode : modes()) {
    for (double size : {0.99, 1.01, 3., 5.}) {  // of the limits
      SCOPED_TRACE(::testing::Message() << mode << ", size " << size);
      Data data({1, 50, 50, 9, 9}, mode, 10);
      Random random(11);
      Numbers w(50 * 50);
      for (double& x : data.k) {
        x = static_cast<float>(size * FastPathLimits<float>::key *
                               (2 * random.uniform() - 1));
      }
      for (double& x : w) {
        x = static_cast<float>(size * FastPathLimits<float>::bias *
                               (2 * random.uniform() - 1));
      }
      check(full(w), data, kHostile);
      check(local(w, 7), data, kHostile);
      check(local(w, 7, true), data, kHostile);
      // All keys far from 0, but close to each other.
      for (double& x : data.k)
        x = static_cast<float>(x / (size * FastPathLimits<float>::key) +
                               6 * size * FastPathLimits<float>::key);
      check(local(w, 7), data, kHostile);
      for (double& x : data.k) x = -x;
      check(local(w, 7), data, kHostile);
      check(local(w, 7, true), data, kHostile);
    }
  }
}

// Spikes of keys that are cancelled by the biases: k + w is small, k and w are
// not.
TEST(Band, KeysAndBiasesThatCancel) {
  for (const Mode& mode : modes()) {
    SCOPED_TRACE(mode);
    Data data({2, 40, 40, 9, 9}, mode, 18);
    Numbers w = biases(40, 40, 19);
    for (int64_t j = 3; j < 40; j += 5) {
      for (int64_t t = 0; t < 40; ++t) {
        w[t * 40 + j] = static_cast<float>(w[t * 40 + j] - 1000);
      }
      for (int64_t i = 0; i < 2 * 9; ++i) {
        double& k = data.k[(i / 9 * 40 + j) * 9 + i % 9];
        k = static_cast<float>(k + 1000);
      }
    }
    check(full(w), data, kHostile);
    check(local(w, 6, true), data, kHostile);
    check(local(w, 40), data, kHostile);
  }
}

TEST(Band, SteepSlopes) {
  for (const Mode& mode : modes()) {
    for (double slope : {-100., -1., 1., 100.}) {
      SCOPED_TRACE(::testing::Message() << mode << ", slope " << slope);
      Data data({1, 130, 130, 9, 9}, mode, 12);
      for (size_t i = 0; i < data.k.size(); ++i) {
        data.k[i] = static_cast<float>(slope * static_cast<double>(i / 9));
      }
      const Numbers w = biases(130, 130, 13);
      check(full(w), data, kHostile);
      check(local(w, 9), data, kHostile);
      check(local(w, 9, true), data, kHostile);
    }
  }
}

TEST(Band, RowsWithoutKeys) {
  for (bool causal : {false, true}) {
    for (int64_t window : {-1, 3}) {
      for (bool only : {false, true}) {
        if (only && window < 0) continue;
        Data data({3, 15, 15, 5, 5}, {"", causal, false, true}, 14);
        data.padded.assign(3 * 15, 0);
        for (int64_t j = 15; j < 30; ++j) data.padded[j] = 1;
        for (int64_t j = 30; j < 38; ++j) data.padded[j] = 1;
        for (int64_t i = 0; i < 3 * 15 * 5; ++i) {
          if (data.padded[i / 5] != 0) data.k[i] = data.v[i] = NAN;
        }
        SCOPED_TRACE(::testing::Message()
                     << causal << ", window " << window << ", " << only);
        const Operator op = local(biases(15, 15, 15), window, only);
        check(op, data);
        // With window 3 only: rows up to 35 have at most keys 30 to 37.
        const int64_t end = causal ? 38 : only ? 36 : 30;
        for_each_target([&] {
          const Result out = run<float>(op, data);
          for (int64_t i = 15 * 5; i < end * 5; ++i) {
            EXPECT_EQ(out.y[i], 0.0) << i;
            EXPECT_EQ(out.dq[i], 0.0) << i;
          }
          for (int64_t i = 15 * 5; i < 38 * 5; ++i) {
            EXPECT_EQ(out.dk[i], 0.0) << i;
            EXPECT_EQ(out.dv[i], 0.0) << i;
          }
        });
      }
    }
  }
}

// Biases of -infinity are not finite, but users write them as masks. A key that
// they exclude is absent, as in the oracle.
TEST(Band, MinusInfinityExcludesAKey) {
  for (const Mode& mode : modes()) {
    SCOPED_TRACE(mode);
    const Data data({2, 20, 20, 5, 5}, mode, 16);
    Numbers w = biases(20, 20, 17);
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t j = 0; j < 20; ++j) {
        if ((t + j) % 3 == 0) w[t * 20 + j] = oracle::kMinusInfinity;
      }
    }
    check(full(w), data);
    check(local(w, 4), data);
    check(local(w, 4, true), data);
  }
}

// The product that computes w from its factors.
template <class T>
void check_outer() {
  for (int64_t r : {1, 3, 8, 15, 16, 17, 32, 50}) {
    const int64_t m = 11, n = 13;
    Random random(r);
    const Numbers a = random.normals(m * r), b = random.normals(n * r);
    const Numbers want = oracle::factorised(a.data(), b.data(), m, n, r);
    const auto at = as<T>(a), bt = as<T>(b);
    for_each_target([&] {
      SCOPED_TRACE(r);
      const auto outer = band_kernels<T>().outer;
      auto w = nans<T>(m * n), transposed = nans<T>(n * m);
      outer(m, n, r, at.data(), bt.data(), w.data(), n);
      EXPECT_LE(testing::relative_error(w, want),
                sizeof(T) == 4 ? 1e-6 : 1e-15);
      outer(n, m, r, bt.data(), at.data(), transposed.data(), m);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          T one = NAN;
          outer(1, 1, r, at.data() + i * r, bt.data() + j * r, &one, 1);
          EXPECT_EQ(w[i * n + j], one);
          EXPECT_EQ(w[i * n + j], transposed[j * m + i]);
        }
      }
      // A leading dimension above n: the gaps are not written.
      auto wide = nans<T>(m * (n + 2));
      outer(m, n, r, at.data(), bt.data(), wide.data(), n + 2);
      for (int64_t i = 0; i < m * (n + 2); ++i) {
        if (i % (n + 2) < n) {
          EXPECT_EQ(wide[i], w[i / (n + 2) * n + i % (n + 2)]);
        } else {
          EXPECT_TRUE(std::isnan(wide[i]));
        }
      }
    });
  }
}

TEST(Band, OuterProducts) {
  check_outer<float>();
  check_outer<double>();
}

}  // namespace
}  // namespace aft::kernels
