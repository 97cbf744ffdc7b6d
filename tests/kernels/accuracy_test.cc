// The error of the float kernels against the oracle, compared with the error of
// plain float loops over the same equations: at most twice as large in y.
// Gradients have a slightly larger limit: the kernels factor sums over t into
// v_j A_j - C_j, where the loops sum a_t p_tj (v_j - r_t).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

/// Straightforward forward and backward, all in float: the largest exponent of
/// a row is subtracted, and sums run from the first key to the last.
Result plain_loops(
    const oracle::Bias& bias, const Data& data, int64_t dw_size,
    const std::function<int64_t(int64_t, int64_t, int64_t)>& place) {
  const oracle::Shape& s = data.shape;
  const auto q = as<float>(data.q), k = as<float>(data.k),
             v = as<float>(data.v), dy = as<float>(data.dy);
  const int64_t per_head = s.D / s.H;
  std::vector<float> y(dy.size()), dq(q.size()), dk(k.size()), dv(v.size()),
      dw(dw_size), p(s.Tk);
  for (int64_t i = 0; i < s.B * s.Tq * s.D; ++i) {
    const int64_t c = i % s.D, t = i / s.D % s.Tq, b = i / s.D / s.Tq;
    const int64_t h = c / per_head, end = s.causal ? t + 1 : s.Tk;
    float top = -INFINITY, num = 0, den = 0;
    for (int64_t j = 0; j < end; ++j) {
      p[j] = k[(b * s.Tk + j) * s.H + h] + static_cast<float>(bias(t, j, h));
      top = std::max(top, p[j]);
    }
    for (int64_t j = 0; j < end; ++j) {
      p[j] = std::exp(p[j] - top);
      num += p[j] * v[(b * s.Tk + j) * s.D + c];
      den += p[j];
    }
    const float r = num / den, gate = 1 / (1 + std::exp(-q[i]));
    y[i] = gate * r;
    dq[i] = dy[i] * r * gate * (1 - gate);
    for (int64_t j = 0; j < end; ++j) {
      const int64_t at = (b * s.Tk + j) * s.D + c;
      const float share = dy[i] * gate * p[j] / den, g = share * (v[at] - r);
      dv[at] += share;
      dk[(b * s.Tk + j) * s.H + h] += g;
      const int64_t w = place ? place(t, j, h) : -1;
      if (w >= 0) dw[w] += g;
    }
  }
  const auto numbers = [](const std::vector<float>& x) {
    return Numbers(x.begin(), x.end());
  };
  return {numbers(y), numbers(dq), numbers(dk), numbers(dv), numbers(dw), 1, 1};
}

/// Mean over seeds of the largest error, relative to the largest value.
struct Errors {
  double sum[5] = {};
  void add(const Result& got, const Result& want) {
    using testing::relative_error;
    sum[0] += relative_error(got.y, want.y);
    sum[1] += relative_error(got.dq, want.dq);
    sum[2] += relative_error(got.dk, want.dk);
    sum[3] += relative_error(got.dv, want.dv);
    sum[4] += relative_error(got.dw, want.dw);
  }
};

void compare(const char* name, const std::function<Operator(Random&)>& make,
             const oracle::Shape& shape, bool causal, int64_t dw_columns) {
  constexpr int kSeeds = 6;
  const char* const names[] = {"y", "dq", "dk", "dv", "dw"};
  const size_t targets = hwy::SupportedAndGeneratedTargets().size();
  Errors plain;
  std::vector<Errors> kernels(targets);
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Data data(shape, {"", causal, false, true}, seed);
    Random random(100 + seed);
    const Operator op = make(random);
    const Result want = expected(op, data);
    const oracle::Grid grid{op.grid, op.kernel, causal, op.window_only};
    oracle::Bias bias = oracle::simple_bias();
    std::function<int64_t(int64_t, int64_t, int64_t)> place;
    if (op.kind == Operator::kConv) {
      bias = oracle::conv_bias(op.w.data(), grid);
      place = [&](int64_t t, int64_t j, int64_t h) {
        const int64_t tap = oracle::conv_tap(grid, t, j);
        return tap < 0 ? -1 : h * oracle::conv_taps(grid) + tap;
      };
    } else if (op.kind == Operator::kBand) {
      const int64_t window = op.window < 0 ? shape.Tq + shape.Tk : op.window;
      bias = oracle::local_bias(op.w.data(), shape.Tk, window, op.window_only);
      place = [=](int64_t t, int64_t j, int64_t) {
        return std::abs(t - j) < window ? t * dw_columns + j : -1;
      };
    }
    plain.add(plain_loops(bias, data, static_cast<int64_t>(op.w.size()), place),
              want);
    size_t target = 0;
    for_each_target([&] { kernels[target++].add(run<float>(op, data), want); });
  }
  size_t target = 0;
  for_each_target([&] {
    for (int i = 0; i < 5; ++i) {
      EXPECT_LE(kernels[target].sum[i], (i == 0 ? 2 : 3) * plain.sum[i])
          << names[i] << " of " << name << (causal ? " causal" : "") << ": "
          << kernels[target].sum[i] / kSeeds << " against "
          << plain.sum[i] / kSeeds;
    }
    ++target;
  });
}

void compare_all(const oracle::Shape& s, int64_t window) {
  for (bool causal : {false, true}) {
    const auto square = [&](Random& random) {
      return random.normals(s.Tq * s.Tk);
    };
    compare(
        "simple", [](Random&) { return simple(); }, s, causal, 0);
    compare(
        "full", [&](Random& x) { return full(square(x)); }, s, causal, s.Tk);
    compare(
        "local", [&](Random& x) { return local(square(x), window); }, s, causal,
        s.Tk);
    compare(
        "window", [&](Random& x) { return local(square(x), window, true); }, s,
        causal, s.Tk);
    const int64_t taps = causal ? window : 2 * window - 1;
    oracle::Shape heads = s;
    heads.H = s.D / 2;
    compare(
        "conv",
        [&](Random& x) {
          return conv(x.normals(heads.H * taps), {s.Tk}, {taps});
        },
        heads, causal, 0);
  }
}

TEST(Accuracy, ShortSequences) { compare_all({2, 16, 16, 16, 16}, 4); }
TEST(Accuracy, Sequences) { compare_all({2, 100, 100, 12, 12}, 8); }
TEST(Accuracy, LongSequences) { compare_all({1, 400, 400, 4, 4}, 40); }

}  // namespace
}  // namespace aft::kernels
