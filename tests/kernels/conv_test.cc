// AFT-conv by the kernels against the oracle: every grid, hostile keys and
// biases, rows without keys.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

using testing::conv_cases;
using testing::ConvCase;
using testing::modes;

/// The kernels support causal sums only with causal kernels; the oracle also
/// supports them with centred ones.
bool runs(const ConvCase& c, const Mode& m) { return c.causal == m.causal; }

Operator conv_of(const ConvCase& c, Numbers w, bool only) {
  return conv(std::move(w), c.grid, c.kernel, only);
}

TEST(Conv, Shapes) {
  for (const ConvCase& c : conv_cases()) {
    for (const Mode& mode : modes()) {
      if (!runs(c, mode)) continue;
      const Data data(shape_of(c), mode, 1);
      for (bool only : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c << ", " << mode << ", " << only);
        check(conv_of(c, Random(2).normals(c.H * c.taps()), only), data);
      }
    }
  }
}

// A panel has 16 channels of values, or 16 heads.
TEST(Conv, ManyChannelsAndHeads) {
  for (auto [D, H] : {std::pair<int64_t, int64_t>{15, 15},
                      {16, 16},
                      {17, 1},
                      {34, 17},
                      {66, 33},
                      {96, 2},
                      {70, 70},
                      {35, 7},
                      {51, 17},
                      {85, 17},
                      {144, 16}}) {
    const ConvCase cases[] = {
        {"1d", 2, {13}, {5}, D, H, false},
        {"1d_causal", 2, {13}, {4}, D, H, true},
        {"2d", 2, {5, 7}, {3, 5}, D, H, false},
    };
    for (const ConvCase& c : cases) {
      for (const Mode& mode : modes()) {
        if (!runs(c, mode)) continue;
        SCOPED_TRACE(::testing::Message() << c << ", " << mode);
        check(conv_of(c, Random(3).normals(c.H * c.taps()), false),
              Data(shape_of(c), mode, 4));
      }
    }
  }
}

// A bit per row of a line, 64 at a time.
TEST(Conv, LongLinesAndKernels) {
  for (int64_t X : {49, 50, 51, 57, 58, 63, 64, 65, 130}) {
    for (bool causal : {false, true}) {
      for (int64_t kernel : {X | 1, int64_t{51}, int64_t{63}}) {
        const ConvCase c = {"1d", 1, {X}, {kernel}, 4, 2, causal};
        const Mode mode{"", causal, false, true};
        SCOPED_TRACE(::testing::Message() << c);
        check(conv_of(c, Random(8).normals(c.H * c.taps()), false),
              Data(shape_of(c), mode, 9));
      }
    }
  }
}

// No later key may be the reference, so the others may underflow.
TEST(Conv, FirstKeyMasked) {
  for (int64_t H : {4, 2}) {
    for (double rest : {-100., -1e4}) {
      const ConvCase c = {"1d_causal", 1, {6}, {3}, 4, H, true};
      Data data(shape_of(c), {"", true, false, true}, 16);
      for (size_t i = 0; i < data.k.size(); ++i) {
        data.k[i] = i < static_cast<size_t>(H)
                        ? -std::numeric_limits<double>::infinity()
                        : static_cast<float>(data.k[i] + rest);
      }
      SCOPED_TRACE(::testing::Message() << c << ", keys of " << rest);
      check(conv_of(c, Random(17).normals(c.H * c.taps()), false), data,
            kHostile);
    }
  }
}

TEST(Conv, HostileKeysAndBiases) {
  uint64_t turn = 0;
  for (const ConvCase& c : conv_cases()) {
    for (const Mode& mode : modes()) {
      if (!runs(c, mode)) continue;
      ++turn;
      for (uint64_t kind : {turn % 4, uint64_t{4}}) {
        Data data(shape_of(c), mode, 5);
        Random random(turn);
        const auto& heights = testing::spike_heights();
        const int64_t n = c.B * c.T() * c.H;
        data.k = kind < 4 ? testing::spiked_keys(random, n, heights[kind])
                          : testing::hostile_keys(random, n);
        SCOPED_TRACE(::testing::Message()
                     << c << ", " << mode << ", kind " << kind);
        const Numbers w = turn % 3 != 0
                              ? testing::hostile_biases(random, c.H * c.taps())
                              : random.normals(c.H * c.taps());
        for (bool only : {false, true}) {
          check(conv_of(c, w, only), data, kHostile);
        }
      }
    }
  }
}

// Batch row b has its largest key at position b. It is in the window of some
// rows; of others it is outside: on the same line, another line, or another
// slice of the grid.
TEST(Conv, LargeKeyAtEveryPosition) {
  const ConvCase cases[] = {
      {"1d", 9, {9}, {3}, 10, 5, false},
      {"1d_causal", 9, {9}, {3}, 10, 5, true},
      {"2d", 30, {5, 6}, {3, 3}, 10, 5, false},
      {"2d_many_heads", 20, {4, 5}, {1, 3}, 17, 17, false},
      {"3d", 48, {4, 3, 4}, {3, 1, 3}, 12, 1, false},
  };
  const auto rounded = [](double x) { return static_cast<float>(x); };
  for (const ConvCase& c : cases) {
    for (auto [height, bias] :
         {std::pair<double, double>{30, 0}, {1e3, 0}, {1e3, -1e3}, {30, 1e3}}) {
      for (bool only : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c << ", height " << height
                                          << ", bias " << bias << ", " << only);
        Data data(shape_of(c), {"", c.causal, bias < 0, true}, 12);
        for (int64_t b = 0; b < c.B; ++b) {
          for (int64_t h = 0; h < c.H; ++h) {
            double& k = data.k[(b * c.T() + b) * c.H + h];
            k = rounded(k + height);
          }
        }
        // In the first head, all taps have this bias; in others, one.
        Numbers w = Random(13).normals(c.H * c.taps());
        for (int64_t i = 0; i < c.H * c.taps(); ++i) {
          const int64_t h = i / c.taps(), tap = i % c.taps();
          if (h == 0 || h % c.taps() == tap) w[i] = rounded(w[i] + bias);
        }
        check(conv_of(c, w, only), data, kHostile);
      }
    }
  }
}

// Channels and rows of one head or tile that take different paths: a large
// value, and a large gradient, in a few channels only.
TEST(Conv, FewChannelsBeyondTheLimits) {
  const ConvCase cases[] = {
      {"1d_causal", 2, {20}, {4}, 33, 3, true},
      {"2d", 2, {5, 6}, {3, 3}, 33, 3, false},
      {"2d_many_heads", 2, {5, 6}, {3, 3}, 21, 21, false},
  };
  for (const ConvCase& c : cases) {
    for (const Mode& mode : modes()) {
      if (!runs(c, mode)) continue;
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      Data data(shape_of(c), mode, 14);
      for (int64_t channel : {1, 2, 9, 20}) {
        data.v[7 * c.D + channel] = 1e6f;
        data.dy[(c.T() + 11) * c.D + channel - 1] = 1e6f;
      }
      for (bool only : {false, true}) {
        check(conv_of(c, Random(15).normals(c.H * c.taps()), only), data);
      }
    }
  }
}

TEST(Conv, NearTheLimits) {
  const ConvCase cases[] = {
      {"1d", 1, {40}, {7}, 10, 5, false},
      {"1d_causal", 1, {40}, {6}, 10, 5, true},
      {"2d", 1, {6, 7}, {3, 5}, 10, 5, false},
  };
  for (const ConvCase& c : cases) {
    for (double size : {0.99, 1.01, 3., 5.}) {  // of the limits
      for (bool only : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c << ", size " << size);
        Data data(shape_of(c), {"", c.causal, true, true}, 6);
        Random random(7);
        Numbers w(c.H * c.taps());
        for (double& x : data.k) {
          x = static_cast<float>(size * FastPathLimits<float>::key *
                                 (2 * random.uniform() - 1));
        }
        for (double& x : w) {
          x = static_cast<float>(size * FastPathLimits<float>::bias *
                                 (2 * random.uniform() - 1));
        }
        check(conv_of(c, w, only), data, kHostile);
        // All keys far from 0, but close to each other.
        for (double& x : data.k)
          x = static_cast<float>(x / (size * FastPathLimits<float>::key) +
                                 6 * size * FastPathLimits<float>::key);
        check(conv_of(c, w, only), data, kHostile);
        for (double& x : data.k) x = -x;
        check(conv_of(c, w, only), data, kHostile);
      }
    }
  }
}

TEST(Conv, RowsWithoutKeys) {
  const ConvCase cases[] = {
      {"1d", 3, {20}, {5}, 6, 2, false},
      {"1d_causal", 3, {20}, {4}, 6, 6, true},
      {"2d", 3, {4, 5}, {3, 3}, 6, 3, false},
      {"3d", 3, {2, 2, 5}, {3, 1, 3}, 6, 1, false},
  };
  for (const ConvCase& c : cases) {
    for (bool only : {false, true}) {
      SCOPED_TRACE(::testing::Message() << c << ", " << only);
      Data data(shape_of(c), {"", c.causal, false, true}, 8);
      data.padded.assign(3 * 20, 0);
      for (int64_t j = 20; j < 40; ++j) data.padded[j] = 1;
      for (int64_t j = 40; j < 48; ++j) data.padded[j] = 1;
      for (int64_t j = 0; j < 3 * 20; ++j) {
        if (data.padded[j] == 0) continue;
        for (int64_t i = 0; i < c.D; ++i) data.v[j * c.D + i] = NAN;
        for (int64_t i = 0; i < c.H; ++i) data.k[j * c.H + i] = NAN;
      }
      const Operator op = conv_of(c, Random(9).normals(c.H * c.taps()), only);
      check(op, data);
      for_each_target([&] {
        const Result out = run<float>(op, data);
        for (int64_t i = 20 * c.D; i < (c.causal ? 48 : 40) * c.D; ++i) {
          EXPECT_EQ(out.y[i], 0.0) << i;
          EXPECT_EQ(out.dq[i], 0.0) << i;
        }
        for (int64_t i = 20 * c.D; i < 48 * c.D; ++i) {
          EXPECT_EQ(out.dv[i], 0.0) << i;
        }
        for (int64_t i = 20 * c.H; i < 48 * c.H; ++i) {
          EXPECT_EQ(out.dk[i], 0.0) << i;
        }
      });
    }
  }
}

TEST(Conv, LongLinesAndLargeGrids) {
  const ConvCase cases[] = {
      {"line", 1, {1200}, {301}, 4, 2, false},
      {"causal_line", 1, {1200}, {300}, 4, 2, true},
      {"grid", 1, {32, 30}, {13, 9}, 5, 5, false},
      {"block", 1, {8, 9, 10}, {5, 3, 7}, 5, 1, false},
  };
  for (const ConvCase& c : cases) {
    for (bool only : {false, true}) {
      SCOPED_TRACE(::testing::Message() << c << ", " << only);
      check(conv_of(c, Random(10).normals(c.H * c.taps()), only),
            Data(shape_of(c), {"", c.causal, true, true}, 11), {1e-5, 1e-12});
    }
  }
}

}  // namespace
}  // namespace aft::kernels
