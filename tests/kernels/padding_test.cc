// The results of a padded batch are bit-identical to those of its rows alone.
// Padded positions are never read and have gradients of 0.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

/// An operator of T positions; the biases for fewer positions are a part of
/// those for more.
struct Family {
  std::string name;
  bool causal;
  int64_t heads;  // 0: as many as channels
  std::function<Operator(int64_t T)> at;
};

constexpr int64_t kMost = 64;

std::vector<Family> families(int64_t window) {
  static const Numbers w = Random(1).normals(kMost * kMost);
  static const Numbers taps = Random(2).normals(5 * 41);
  const auto square = [](int64_t T) {
    Numbers part(T * T);
    for (int64_t i = 0; i < T * T; ++i) part[i] = w[i / T * kMost + i % T];
    return part;
  };
  std::vector<Family> all;
  for (bool causal : {false, true}) {
    const std::string how = causal ? " causal" : "";
    all.push_back(
        {"simple" + how, causal, 0, [](int64_t) { return simple(); }});
    all.push_back(
        {"full" + how, causal, 0, [=](int64_t T) { return full(square(T)); }});
    for (bool only : {false, true}) {
      all.push_back({"local" + how, causal, 0, [=](int64_t T) {
                       return local(square(T), window, only);
                     }});
      all.push_back(
          {"conv" + how, causal, 5, [=](int64_t T) {
             const int64_t s = causal ? window : 2 * window - 1;
             return conv({taps.begin(), taps.begin() + 5 * s}, {T}, {s}, only);
           }});
    }
  }
  // A grid with lines of 4: padding at the end is whole lines.
  for (bool only : {false, true}) {
    all.push_back({"conv 2d", false, 5, [=](int64_t T) {
                     return conv({taps.begin(), taps.begin() + 5 * 15},
                                 {T / 4, 4}, {5, 3}, only);
                   }});
  }
  return all;
}

/// Batch row b of `data`, its first T positions, without a mask.
Data row_of(const Data& data, int64_t b, int64_t T) {
  const oracle::Shape& s = data.shape;
  Data row = data;
  row.shape.B = 1;
  row.shape.Tq = row.shape.Tk = T;
  row.padded.clear();
  const auto cut = [&](Numbers* x, int64_t width) {
    const auto from = x->begin() + b * s.Tk * width;
    *x = Numbers(from, from + T * width);
  };
  cut(&row.q, s.D), cut(&row.v, s.D), cut(&row.dy, s.D), cut(&row.k, s.H);
  return row;
}

template <class T>
void check_padding(const Family& family, int64_t T_max,
                   const std::vector<int64_t>& lengths, bool hostile) {
  SCOPED_TRACE(::testing::Message()
               << family.name << ", T " << T_max << ", hostile " << hostile);
  const int64_t B = static_cast<int64_t>(lengths.size()), D = 10;
  const int64_t H = family.heads == 0 ? D : family.heads;
  Data data({B, T_max, T_max, D, H}, {"", family.causal, false, true}, 3);
  if (hostile) {
    Random random(4);
    data.k = testing::hostile_keys(random, B * T_max * H);
  }
  data.padded.assign(B * T_max, 0);
  for (int64_t i = 0; i < B * T_max; ++i) {
    if (i % T_max < lengths[i / T_max]) continue;
    data.padded[i] = 1;
    for (int64_t c = 0; c < D; ++c) {
      data.v[i * D + c] = c % 2 == 0 ? NAN : INFINITY;
      data.dy[i * D + c] = 0;  // outputs of padded rows are undefined
    }
    for (int64_t h = 0; h < H; ++h)
      data.k[i * H + h] = h % 2 == 0 ? NAN : INFINITY;
  }
  const Result batch = run<T>(family.at(T_max), data);
  Numbers dw(batch.dw.size(), 0.0);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t n = lengths[b];
    SCOPED_TRACE(::testing::Message() << "length " << n);
    const Data alone = row_of(data, b, n);
    const Result row = run<T>(family.at(n), alone);
    const auto part = [&](const Numbers& x, int64_t width) {
      const auto from = x.begin() + b * T_max * width;
      return Numbers(from, from + n * width);
    };
    EXPECT_EQ(first_difference(part(batch.y, D), row.y), -1);
    const double tolerance = sizeof(T) == 4 ? 4e-6 : 1e-13;
    const double scale = expected(family.at(n), alone).k_scale;
    using testing::relative_error;
    EXPECT_LE(relative_error(part(batch.dq, D), row.dq), tolerance);
    EXPECT_LE(relative_error(part(batch.dv, D), row.dv), tolerance);
    EXPECT_LE(relative_error(part(batch.dk, H), row.dk, scale), tolerance);
    for (int64_t i = b * T_max + n; i < (b + 1) * T_max; ++i) {
      for (int64_t c = 0; c < D; ++c) EXPECT_EQ(batch.dv[i * D + c], 0);
      for (int64_t h = 0; h < H; ++h) EXPECT_EQ(batch.dk[i * H + h], 0);
    }
    for (size_t i = 0; i < row.dw.size(); ++i) {
      const bool dense = family.heads == 0;
      dw[dense ? i / n * T_max + i % n : i] += row.dw[i];
    }
  }
  EXPECT_LE(testing::relative_error(batch.dw, dw, 10), 4e-6);
}

TEST(Padding, BatchEqualsItsRowsBitExactly) {
  for_each_target([] {
    for (const Family& family : families(4)) {
      for (bool hostile : {false, true}) {
        check_padding<float>(family, 24, {24, 12, 4, 20, 8}, hostile);
        check_padding<double>(family, 24, {24, 12, 4}, hostile);
        check_padding<float>(family, 64, {60, 36}, hostile);
        if (family.name == "conv 2d") continue;
        check_padding<float>(family, 25, {1, 13, 24, 7}, hostile);
      }
    }
    // A window longer than the rows, but not than the padded sequence.
    for (const Family& family : families(21)) {
      check_padding<float>(family, 24, {24, 12, 4, 20, 8}, false);
    }
  });
}

// The number of queries stays the same while keys are padded.
TEST(Padding, MoreMaskedKeys) {
  for (bool causal : {false, true}) {
    for (int64_t keys : {5, 12, 19}) {
      SCOPED_TRACE(::testing::Message() << causal << ", keys " << keys);
      Data data({2, 13, 30, 9, 9}, {"", causal, false, true}, 5), fewer = data;
      data.padded.assign(2 * 30, 0);
      fewer.shape.Tk = keys;
      fewer.k.clear(), fewer.v.clear();
      for (int64_t i = 0; i < 2 * 30 * 9; ++i) {
        const int64_t j = i / 9 % 30;
        if (j < keys) {
          fewer.k.push_back(data.k[i]), fewer.v.push_back(data.v[i]);
        } else {
          data.padded[i / 9] = 1, data.k[i] = data.v[i] = NAN;
        }
      }
      const Numbers w = Random(6).normals(13 * 30);
      Numbers w_fewer;
      for (int64_t i = 0; i < 13 * 30; ++i) {
        if (i % 30 < keys) w_fewer.push_back(w[i]);
      }
      const auto same = [&](const Operator& a, const Operator& b) {
        EXPECT_EQ(
            first_difference(run<float>(a, data).y, run<float>(b, fewer).y),
            -1);
      };
      for_each_target([&] {
        same(simple(), simple());
        same(full(w), full(w_fewer));
        for (bool only : {false, true}) {
          same(local(w, 4, only), local(w_fewer, 4, only));
          same(local(w, 40, only), local(w_fewer, 40, only));
        }
      });
    }
  }
}

}  // namespace
}  // namespace aft::kernels
