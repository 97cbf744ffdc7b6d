// One biased key per head against the oracle with the one-hot w, on every
// target: grids, offsets inside and outside of them, hostile keys, values and
// biases, padding.
#include "aft/kernels/one_tap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

using testing::relative_error;

struct Bias {
  std::vector<int64_t> grid;
  Numbers w;                     // [H]
  std::vector<int64_t> offsets;  // [H, sizes of grid]

  int64_t T() const { return testing::ConvCase::product(grid); }
  /// The key of row t in head h, or -1.
  int64_t key(int64_t t, int64_t h) const {
    int64_t j = 0, stride = 1;
    for (size_t i = grid.size(); i-- > 0; t /= grid[i]) {
      const int64_t o = offsets[h * grid.size() + i];
      if (o <= -grid[i] || o >= grid[i]) return -1;
      const int64_t at = t % grid[i] + o;
      if (at < 0 || at >= grid[i]) return -1;
      j += at * stride, stride *= grid[i];
    }
    return j;
  }
  oracle::Bias one_hot() const {
    return [this](int64_t t, int64_t j, int64_t h) {
      return key(t, h) == j ? w[h] : 0.0;
    };
  }
};

/// Offsets of every kind in turn: none, inside, at the edges, beyond.
std::vector<int64_t> offsets_of(Random& random,
                                const std::vector<int64_t>& grid, int64_t H) {
  std::vector<int64_t> out;
  for (int64_t h = 0; h < H; ++h) {
    for (int64_t n : grid) {
      const int64_t all[] = {0, random.below(2 * n - 1) - n + 1,
                             random.below(2 * n - 1) - n + 1, n - 1, 1 - n};
      out.push_back(all[random.below(5)]);
    }
    const int64_t beyond[] = {grid[0], -grid[0], 1000,
                              std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max()};
    if (h % 6 == 5) {
      out[out.size() - 1 - random.below(grid.size())] =
          h % 4 == 1 ? beyond[random.below(5)] : grid.back();
    }
  }
  return out;
}

Numbers expected(const Bias& bias, const Data& data) {
  Numbers y(data.dy.size());
  oracle::forward(data.shape, data.inputs(), bias.one_hot(), y.data());
  return y;
}

template <class T>
Numbers run(const Bias& bias, const Data& data, const Exec& exec = poisoned()) {
  const oracle::Shape& s = data.shape;
  const auto q = as<T>(data.q), k = as<T>(data.k), v = as<T>(data.v),
             w = as<T>(bias.w);
  auto y = nans<T>(data.dy.size());
  OneTapBias<T> one_tap{{1, 1, 1}, w.data(), nullptr};
  const size_t dims = bias.grid.size(), first = 3 - dims;
  std::vector<int64_t> offsets(3 * s.H, 0);
  for (size_t i = 0; i < dims; ++i) {
    one_tap.grid[first + i] = bias.grid[i];
    for (int64_t h = 0; h < s.H; ++h)
      offsets[3 * h + first + i] = bias.offsets[h * dims + i];
  }
  one_tap.offsets = offsets.data();
  run_one_tap<T>(
      exec,
      {s.B, s.Tq, s.Tk, s.D, s.H, false, q.empty() ? nullptr : q.data(),
       k.data(), v.data(), data.padded.empty() ? nullptr : data.padded.data()},
      one_tap, y.data());
  return {y.begin(), y.end()};
}

void check(const Bias& bias, const Data& data,
           const Tolerance& tolerance = {}) {
  const Numbers want = expected(bias, data);
  for_each_target([&] {
    EXPECT_LE(relative_error(run<float>(bias, data), want), tolerance.of_float)
        << "float";
    EXPECT_LE(relative_error(run<double>(bias, data), want),
              tolerance.of_double)
        << "double";
  });
}

const std::vector<std::vector<int64_t>>& grids() {
  static const std::vector<std::vector<int64_t>> all = {
      {1},       {2},    {7},       {13},     {37},     {97},
      {5, 7},    {4, 3}, {1, 13},   {13, 1},  {14, 14}, {3, 4, 5},
      {2, 3, 2}, {1, 9}, {1, 1, 7}, {4, 1, 5}};
  return all;
}
/// Channels and heads: fewer than a vector, tails of a panel, heads whose
/// channels cross panels, and more heads in a panel than a vector has lanes.
const std::vector<std::pair<int64_t, int64_t>>& widths() {
  static const std::vector<std::pair<int64_t, int64_t>> all = {
      {1, 1},   {3, 3},  {5, 1},   {8, 2},   {15, 15}, {16, 16},
      {17, 17}, {17, 1}, {24, 8},  {34, 17}, {36, 6},  {66, 33},
      {70, 70}, {48, 3}, {40, 20}, {96, 4}};
  return all;
}
const Mode kModes[] = {{"plain", false, false, true},
                       {"padded", false, true, true},
                       {"no_query", false, false, false}};

TEST(OneTap, Shapes) {
  Random random(1);
  uint64_t seed = 0;
  for (const auto& grid : grids()) {
    for (const auto& [D, H] : widths()) {
      const Mode& mode = kModes[++seed % 3];
      SCOPED_TRACE(::testing::Message()
                   << ::testing::PrintToString(grid) << ", D " << D << ", H "
                   << H << ", " << mode);
      const Bias bias{grid, random.normals(H, 2), offsets_of(random, grid, H)};
      const int64_t T = bias.T();
      check(bias, Data({T > 50 ? 1 : 2, T, T, D, H}, mode, seed));
    }
  }
}

TEST(OneTap, BiasesUpToTheLimit) {
  for (double w : {0., 1e-3, -1e-3, 0.7, -0.7, 10., -10., 20., -20.}) {
    for (const auto& [D, H] : {std::pair<int64_t, int64_t>{19, 19}, {18, 6}}) {
      SCOPED_TRACE(::testing::Message() << w << ", " << D << ", " << H);
      Random random(2);
      Bias bias{{6, 5}, Numbers(H, w), offsets_of(random, {6, 5}, H)};
      const Data data({2, 30, 30, D, H}, kModes[1], 3);
      check(bias, data);
      for (int64_t h = 0; h < H; h += 2) bias.w[h] = -w;
      check(bias, data);
      // Double has a larger limit.
      for (double& x : bias.w) x *= 10;
      const Numbers want = expected(bias, data);
      for_each_target([&] {
        EXPECT_LE(relative_error(run<double>(bias, data), want), 1e-13);
      });
    }
  }
}

TEST(OneTap, HostileKeys) {
  const Numbers heights = testing::spike_heights();
  for (size_t kind = 0; kind <= heights.size(); ++kind) {
    for (const auto& [D, H] : {std::pair<int64_t, int64_t>{21, 21}, {20, 5}}) {
      SCOPED_TRACE(::testing::Message() << kind << ", " << D << ", " << H);
      Random random(4 + kind);
      Bias bias{{5, 7}, random.normals(H, 6), offsets_of(random, {5, 7}, H)};
      for (double& w : bias.w) w = std::min(std::max(w, -20.), 20.);
      Data data({2, 35, 35, D, H}, kModes[kind % 2], 5);
      data.k = kind < heights.size()
                   ? testing::spiked_keys(random, 70 * H, heights[kind])
                   : testing::hostile_keys(random, 70 * H);
      check(bias, data, kHostile);
      for (double& k : data.k) k = static_cast<float>(k * 3e34);
      check(bias, data, kHostile);
    }
  }
}

// A sum without its largest term is small, and must not be computed as a
// difference. Every element is checked relative to itself.
void check_each(const Bias& bias, const Data& data) {
  const Numbers want = expected(bias, data);
  for_each_target([&] {
    const Numbers got = run<float>(bias, data);
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 4e-6 * (1e-3 + std::abs(want[i]))) << i;
  });
}

TEST(OneTap, BiasedKeyHasMostOfTheSum) {
  for (double w : {-3., -10., -20.}) {
    for (double height : {3., 12., 25.}) {
      for (bool valued : {true, false}) {  // most of both sums, or of den alone
        SCOPED_TRACE(::testing::Message() << w << ", " << height);
        const int64_t T = 24, D = 18;
        Data data({1, T, T, D, D}, {"", false, false, false}, 6);
        for (double& v : data.v) v = static_cast<float>(2 + std::abs(v));
        Bias bias{{T}, Numbers(D, w), {}};
        for (int64_t c = 0; c < D; ++c) {
          data.k[c * D + c] = height;
          if (!valued) data.v[c * D + c] = 0;
          bias.offsets.push_back(c % 5 - 2);
        }
        check_each(bias, data);
      }
    }
  }
}

TEST(OneTap, BiasedValueHasMostOfTheSum) {
  const int64_t T = 24, D = 18;
  Data data({1, T, T, D, D}, {"", false, false, false}, 7);
  for (double& v : data.v) v = static_cast<float>(2 + std::abs(v));
  for (int64_t c = 0; c < D; ++c) data.v[c * D + c] = 1e8;
  Bias bias{{T}, Numbers(D, -20), std::vector<int64_t>(D, 1)};
  check_each(bias, data);
}

TEST(OneTap, LargeValues) {
  for (double w : {20., 0.1, -0.1, -20.}) {
    Random random(8);
    Bias bias{{6, 6}, Numbers(9, w), offsets_of(random, {6, 6}, 9)};
    Data data({2, 36, 36, 18, 9}, kModes[1], 9);
    for (double& v : data.v)
      v = static_cast<float>((2 * random.uniform() - 1) * 2e38);
    for (double& q : data.q) q = static_cast<float>(q * 1e3);
    check(bias, data);
    for (double& v : data.v) v *= 1e269;
    const Numbers want = expected(bias, data);
    for_each_target([&] {
      EXPECT_LE(relative_error(run<double>(bias, data), want), 1e-13);
    });
  }
}

TEST(OneTap, RowsWithoutKeys) {
  for (const auto& [D, H] : {std::pair<int64_t, int64_t>{19, 19}, {18, 6}}) {
    Random random(10);
    const Bias bias{{4, 5}, random.normals(H), offsets_of(random, {4, 5}, H)};
    Data data({3, 20, 20, D, H}, {"", false, false, true}, 11);
    // Batch row 1: all padded; 2: all but one.
    data.padded.assign(60, 0);
    std::fill(data.padded.begin() + 20, data.padded.end(), uint8_t{1});
    data.padded[47] = 0;
    for (int64_t j = 0; j < 60; ++j) {
      if (data.padded[j] == 0) continue;
      std::fill_n(data.v.begin() + j * D, D, NAN);
      std::fill_n(data.k.begin() + j * H, H, NAN);
    }
    check(bias, data);
    for_each_target([&] {
      const Numbers y = run<float>(bias, data);
      for (int64_t i = 20 * D; i < 40 * D; ++i) EXPECT_EQ(y[i], 0.0) << i;
    });
  }
}

// The last panel of a row is read beyond the row, into the keys of the next
// one. If that is padded, its contents must not have an effect.
TEST(OneTap, PaddedKeysAreNotRead) {
  const double inside[] = {NAN, INFINITY, -INFINITY, 3e38, -3e38, 40, -40};
  const std::vector<std::vector<int64_t>> all_grids = {{13}, {5, 7}};
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (const auto& [D, H] : {std::pair<int64_t, int64_t>{17, 17},
                               {17, 1},
                               {19, 19},
                               {34, 17},
                               {36, 6}}) {
      Random random(100 + seed);
      const auto& grid = all_grids[seed % 2];
      const Bias bias{grid, random.normals(H, 4), offsets_of(random, grid, H)};
      const int64_t T = bias.T();
      const Data clean({2, T, T, D, H}, kModes[1], seed);
      Data other = clean;
      for (double& k : other.k) k *= static_cast<double>(1 + seed % 5 * 8);
      const Numbers keys = other.k;
      for_each_target([&] {
        other.k = keys, other.v = clean.v;
        const Numbers in_float = run<float>(bias, other),
                      in_double = run<double>(bias, other);
        for (const double x : inside) {
          SCOPED_TRACE(::testing::Message()
                       << seed << ", D " << D << ", H " << H << ", " << x);
          for (int64_t j = 0; j < 2 * T; ++j) {
            if (clean.padded[j] == 0) continue;
            std::fill_n(other.k.begin() + j * H, H, x);
            std::fill_n(other.v.begin() + j * D, D, x);
          }
          EXPECT_EQ(first_difference(run<float>(bias, other), in_float), -1);
          EXPECT_EQ(first_difference(run<double>(bias, other), in_double), -1);
        }
      });
    }
  }
}

TEST(OneTap, LongLinesAndLargeGrids) {
  for (const std::vector<int64_t>& grid :
       std::vector<std::vector<int64_t>>{{1100}, {32, 30}, {8, 9, 10}}) {
    Random random(12);
    const Bias bias{grid, random.normals(5), offsets_of(random, grid, 5)};
    const int64_t T = bias.T();
    check(bias, Data({1, T, T, 5, 5}, kModes[1], 13), {1e-5, 1e-12});
  }
}

// The error of the float kernel compared with that of a plain float loop.
TEST(OneTap, Accuracy) {
  const int64_t D = 16;
  for (double w : {2., -2., -15.}) {
    double plain = 0;
    Numbers ours(hwy::SupportedAndGeneratedTargets().size(), 0.0);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Random random(seed);
      Bias bias{{12, 12}, Numbers(D, w), offsets_of(random, {12, 12}, D)};
      const int64_t T = bias.T();
      const Data data({1, T, T, D, D}, kModes[0], seed);
      const Numbers want = expected(bias, data);
      Numbers loop(want.size());
      for (int64_t i = 0; i < T * D; ++i) {
        const int64_t t = i / D, c = i % D;
        float top = -INFINITY, num = 0, den = 0;
        const auto exponent = [&](int64_t j) {
          const double b = bias.key(t, c) == j ? w : 0;
          return static_cast<float>(data.k[j * D + c]) + static_cast<float>(b);
        };
        for (int64_t j = 0; j < T; ++j) top = std::max(top, exponent(j));
        for (int64_t j = 0; j < T; ++j) {
          const float p = std::exp(exponent(j) - top);
          num += p * static_cast<float>(data.v[j * D + c]);
          den += p;
        }
        loop[i] = num / den / (1 + std::exp(-static_cast<float>(data.q[i])));
      }
      plain += relative_error(loop, want);
      size_t target = 0;
      for_each_target([&] {
        ours[target++] += relative_error(run<float>(bias, data), want);
      });
    }
    for (double error : ours) EXPECT_LE(error, 2 * plain) << w;
  }
}

TEST(OneTap, AnySplitOfTheWork) {
  Random random(14);
  const Bias bias{{5, 6}, random.normals(50), offsets_of(random, {5, 6}, 50)};
  const Data data({3, 30, 30, 50, 50}, kModes[1], 15);
  Exec apart = poisoned();
  apart.threads = 7;
  apart.parallel = [](int64_t n,
                      const std::function<void(int64_t, int64_t)>& f) {
    for (int64_t i = n - 1; i >= 0; --i) f(i, i + 1);
  };
  for_each_target([&] {
    EXPECT_EQ(
        first_difference(run<float>(bias, data, apart), run<float>(bias, data)),
        -1);
  });
}

TEST(OneTap, NonFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  Random random(20);
  const std::vector<int64_t> grid = {5, 7};
  for (const auto& [D, H] : widths()) {
    for (const Mode& mode : kModes) {
      const Bias clean{grid, random.normals(H, 2), offsets_of(random, grid, H)};
      const Data base({2, clean.T(), clean.T(), D, H}, mode, 21);
      for (int input = 0; input < 4; ++input) {
        for (double value : {static_cast<double>(NAN), inf, -inf}) {
          Bias bias = clean;
          Data data = base;
          Numbers* const inputs[] = {&data.q, &data.k, &data.v, &bias.w};
          Numbers& x = *inputs[input];
          if (x.empty() || (input == 3 && value == -inf)) continue;
          const int64_t at = random.below(static_cast<int64_t>(x.size()));
          x[at] = value;
          if (input == 1 && value == -inf) data.v[at * (D / H)] = NAN;
          SCOPED_TRACE(::testing::Message()
                       << "D " << D << ", H " << H << ", " << mode << ", input "
                       << input << "[" << at << "] = " << value);
          const Numbers want = expected(bias, data);
          for_each_target([&] {
            expect_class("float", run<float>(bias, data), want, 4e-6);
            expect_class("double", run<double>(bias, data), want, 1e-13);
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft::kernels
