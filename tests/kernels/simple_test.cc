// AFT-simple by the kernels against the oracle: every shape, hostile keys, rows
// without keys, large values.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

using testing::cases;
using testing::modes;

TEST(Simple, Shapes) {
  for (const testing::Case& c : cases()) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      check(simple(), Data(shape_of(c), mode, 1));
    }
  }
}

// A kernel call has up to 512 channels, a tile 8; backward has chunks of 16
// rows.
TEST(Simple, ManyChannels) {
  for (int64_t D : {63, 64, 65, 130, 511, 520}) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(::testing::Message() << "D " << D << ", " << mode);
      check(simple(), Data({2, 17, 17, D, D}, mode, 2));
    }
  }
}

TEST(Simple, LongSequences) {
  for (bool causal : {false, true}) {
    SCOPED_TRACE(causal);
    check(simple(), Data({1, 1500, 1500, 3, 3}, {"", causal, true, true}, 3),
          {1e-5, 1e-12});
  }
}

TEST(Simple, HostileKeys) {
  for (const testing::Case& c : cases()) {
    uint64_t seed = 0;
    for (const Mode& mode : modes()) {
      for (double height : testing::spike_heights()) {
        SCOPED_TRACE(::testing::Message()
                     << c << ", " << mode << ", height " << height);
        Data data(shape_of(c), mode, 4);
        Random random(++seed);
        data.k = testing::spiked_keys(random, c.B * c.Tk * c.D, height);
        check(simple(), data, kHostile);
      }
    }
  }
}

TEST(Simple, AllHeightsAtOnceAndSteepSlopes) {
  for (const Mode& mode : modes()) {
    SCOPED_TRACE(mode);
    Data data({2, 200, 200, 9, 9}, mode, 5);
    Random random(6);
    data.k = testing::hostile_keys(random, 2 * 200 * 9);
    check(simple(), data, kHostile);
    for (double slope : {-100., -1., 1., 100.}) {
      SCOPED_TRACE(slope);
      for (size_t i = 0; i < data.k.size(); ++i) {
        const double t = static_cast<double>(i / 9 % 200);
        data.k[i] = static_cast<float>(slope * t);
      }
      check(simple(), data, kHostile);
    }
  }
}

TEST(Simple, HugeQueries) {
  for (const Mode& mode : modes()) {
    Data data({2, 13, 13, 5, 5}, mode, 7);
    for (size_t i = 0; i < data.q.size(); ++i) {
      data.q[i] *= i % 3 == 0 ? 1e4 : i % 3 == 1 ? 30 : 1;
      data.q[i] = static_cast<float>(data.q[i]);
    }
    check(simple(), data);
  }
}

// Batch rows that are fully or partly masked; masked keys are NaN.
TEST(Simple, RowsWithoutKeys) {
  for (bool causal : {false, true}) {
    Data data({3, 9, 9, 5, 5}, {"", causal, false, true}, 8);
    data.padded.assign(3 * 9, 0);
    for (int64_t j = 9; j < 18; ++j) data.padded[j] = 1;
    for (int64_t j = 18; j < 22; ++j) data.padded[j] = 1;
    for (int64_t i = 0; i < 3 * 9 * 5; ++i) {
      if (data.padded[i / 5] != 0) data.k[i] = data.v[i] = NAN;
    }
    check(simple(), data);
    for_each_target([&] {
      const Result out = run<float>(simple(), data);
      for (int64_t i = 9 * 5; i < (causal ? 22 : 18) * 5; ++i) {
        EXPECT_EQ(out.y[i], 0.0) << i;
        EXPECT_EQ(out.dq[i], 0.0) << i;
      }
      for (int64_t i = 9 * 5; i < 22 * 5; ++i) {
        EXPECT_EQ(out.dk[i], 0.0) << i;
        EXPECT_EQ(out.dv[i], 0.0) << i;
      }
    });
  }
}

TEST(Simple, LargeValues) {
  for (const Mode& mode : modes()) {
    for (double size : {1e10, 1e20, 1e30}) {
      SCOPED_TRACE(::testing::Message() << mode << ", size " << size);
      Data data({2, 97, 97, 9, 9}, mode, 9);
      for (double& x : data.v) x = static_cast<float>(x * size);
      check(simple(), data);
    }
  }
}

// The first key dominates all others, so that no sum grows with t, and all rows
// contribute with the same sign.
TEST(Simple, LargeValuesBehindOneKey) {
  for (bool causal : {false, true}) {
    Data data({1, 600, 600, 9, 9}, {"", causal, false, true}, 10);
    for (int64_t c = 0; c < 9; ++c) data.k[c] = 12;
    for (double& x : data.v) x = static_cast<float>(1e30 * (2 + x / 8));
    for (double& x : data.dy) x = 1;
    check(simple(), data, {1e-5, 1e-12});
  }
}

TEST(Simple, LargeGradients) {
  for (const Mode& mode : modes()) {
    SCOPED_TRACE(mode);
    Data data({2, 97, 97, 9, 9}, mode, 11);
    for (double& x : data.dy) x = static_cast<float>(x * 1e8);
    check(simple(), data);
    // Products of 1e34: within the range of float.
    for (double& x : data.dy) x = static_cast<float>(x * 1e-4);
    for (double& x : data.v) x = static_cast<float>(x * 1e30);
    check(simple(), data);
  }
}

// The largest floats: the output is an average of them.
TEST(Simple, LargestValuesForward) {
  for (bool causal : {false, true}) {
    Data data({1, 300, 300, 9, 9}, {"", causal, false, true}, 12);
    for (double& x : data.v) x = x < 0 ? -3e38f : 3e38f;
    for (double& x : data.k) x = static_cast<float>(x * 5);
    const Result want = expected(simple(), data);
    for_each_target([&] {
      EXPECT_LE(testing::relative_error(run<float>(simple(), data).y, want.y),
                4e-6);
    });
  }
}

}  // namespace
}  // namespace aft::kernels
