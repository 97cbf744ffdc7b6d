// Tests of the oracle: worked examples, direct sums in long double, the
// identities between the variants, step = forward.
#include "aft/kernels/reference.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cases.h"
#include "tests/kernels/oracle_problem.h"

namespace aft::reference {
namespace {

// Eq. 2 literally, in long double, where exp(+-11000) is within range and no
// maximum is subtracted; the gradients by the quotient rule on num and den.
OracleProblem direct(const OracleProblem& p, const Bias& bias) {
  using Real = long double;
  const Shape& s = p.shape;
  OracleProblem out = p;
  std::vector<Real> dk(p.k.size()), dv(p.v.size()), dw(s.Tq * s.Tk), e(s.Tk);
  for (int64_t i = 0; i < s.B * s.Tq * s.D; ++i) {
    const int64_t c = i % s.D, t = i / s.D % s.Tq, b = i / s.D / s.Tq;
    const int64_t h = c / (s.D / s.H);
    Real num = 0, den = 0;
    for (int64_t j = 0; j < s.Tk; ++j) {
      const int64_t row = b * s.Tk + j;
      const bool absent = !p.padded.empty() && p.padded[row] != 0;
      const Real x = Real(p.k[row * s.H + h]) + Real(bias(t, j, h));
      e[j] = absent || (s.causal && j > t) ? 0 : std::exp(x);
      num += e[j] * p.v[row * s.D + c];
      den += e[j];
    }
    const Real r = den == 0 ? 0 : num / den;
    const Real gate = p.q.empty() ? 1 : 1 / (1 + std::exp(-Real(p.q[i])));
    out.y[i] = static_cast<double>(gate * r);
    if (!p.q.empty()) {
      out.dq[i] = static_cast<double>(p.dy[i] * r * gate * (1 - gate));
    }
    if (den == 0) continue;
    const Real dnum = p.dy[i] * gate / den, dden = -dnum * r;
    for (int64_t j = 0; j < s.Tk; ++j) {
      const int64_t row = b * s.Tk + j;
      const Real g = e[j] * (p.v[row * s.D + c] * dnum + dden);
      dv[row * s.D + c] += e[j] * dnum;
      dk[row * s.H + h] += g;
      dw[t * s.Tk + j] += g;
    }
  }
  out.dk.assign(dk.begin(), dk.end());
  out.dv.assign(dv.begin(), dv.end());
  out.dw.assign(dw.begin(), dw.end());
  return out;
}

// Checked at run time: valgrind emulates long double as double, in which
// LDBL_MAX is inf.
bool wide_long_double() {
  volatile long double x = std::numeric_limits<double>::max(), square = x * x;
  return LDBL_MAX_EXP >= 16384 && square / x == x;
}

TEST(Reference, WorkedExample) {
  // exp(k) = 1, 3, 6 and v = 4, 8, 2; q = 0 halves.
  const Numbers q(3, 0.0), v = {4, 8, 2};
  const Numbers k = {0, std::log(3.0), std::log(6.0)};
  Numbers y(3);
  forward({1, 3, 3, 1, 1}, {q.data(), k.data(), v.data()}, simple_bias(),
          y.data());
  for (double value : y) EXPECT_NEAR(value, 0.5 * 40 / 10, 1e-14);
  forward({1, 3, 3, 1, 1, true}, {q.data(), k.data(), v.data()}, simple_bias(),
          y.data());
  EXPECT_NEAR(y[0], 0.5 * 4, 1e-14);
  EXPECT_NEAR(y[1], 0.5 * (4 + 3 * 8) / (1 + 3), 1e-14);
  EXPECT_NEAR(y[2], 0.5 * 40 / 10, 1e-14);
  // exp(w) = 2 everywhere, of which window 1 reads the diagonal; no gate.
  const Numbers w(9, std::log(2.0));
  const Shape ungated = {1, 3, 3, 1, 1, false, Gate::kNone};
  forward(ungated, {q.data(), k.data(), v.data()},
          local_bias(w.data(), 3, 1, false), y.data());
  EXPECT_NEAR(y[0], (2 * 4 + 3 * 8 + 6 * 2.0) / (2 + 3 + 6), 1e-14);
  EXPECT_NEAR(y[1], (4 + 6 * 8 + 6 * 2.0) / (1 + 6 + 6), 1e-14);
  EXPECT_NEAR(y[2], (4 + 3 * 8 + 12 * 2.0) / (1 + 3 + 12), 1e-14);
  forward(ungated, {nullptr, k.data(), v.data()},
          local_bias(w.data(), 3, 2, true), y.data());
  EXPECT_NEAR(y[0], (4 + 3 * 8.0) / (1 + 3), 1e-14);
}

TEST(Reference, ConvTapsAreThoseOfTorch) {
  for (const ConvCase& c : testing::conv_cases()) {
    SCOPED_TRACE(c);
    const Grid grid = grid_of(c);
    // Pad to three axes, iterate over positions and taps, and check each pair.
    std::vector<int64_t> size(3, 1), kernel(3, 1);
    std::copy_backward(c.grid.begin(), c.grid.end(), size.end());
    std::copy_backward(c.kernel.begin(), c.kernel.end(), kernel.end());
    std::vector<int64_t> expected(c.T() * c.T(), -1);
    for (int64_t t = 0; t < c.T(); ++t) {
      for (int64_t tap = 0; tap < c.taps(); ++tap) {
        const int64_t a[] = {tap / kernel[2] / kernel[1],
                             tap / kernel[2] % kernel[1], tap % kernel[2]};
        const int64_t at[] = {t / size[2] / size[1], t / size[2] % size[1],
                              t % size[2]};
        int64_t j = 0;
        bool inside = true;
        for (int axis = 0; axis < 3; ++axis) {
          const int64_t left =
              c.causal && axis == 2 ? kernel[axis] - 1 : (kernel[axis] - 1) / 2;
          const int64_t x = at[axis] - left + a[axis];
          inside = inside && x >= 0 && x < size[axis];
          j = j * size[axis] + x;
        }
        if (inside) expected[t * c.T() + j] = tap;
      }
    }
    for (int64_t t = 0; t < c.T(); ++t) {
      for (int64_t j = 0; j < c.T(); ++j) {
        ASSERT_EQ(conv_tap(grid, t, j), expected[t * c.T() + j])
            << "t " << t << ", j " << j;
      }
    }
  }
}

// w: dense, of the problem's own [Tq, Tk].
std::vector<Bias> dense_biases(const Case& c, const Numbers& w) {
  return {simple_bias(), full_bias(w.data(), c.Tk),
          local_bias(w.data(), c.Tk, c.window, false),
          local_bias(w.data(), c.Tk, c.window + 1, true)};
}

TEST(Reference, DirectSums) {
  for (const Case& c : testing::cases()) {
    for (const Mode& mode : testing::modes()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      OracleProblem p(shape_of(c), mode, 1);
      const Numbers w = Random(2).normals(c.Tq * c.Tk);
      for (const Bias& bias : dense_biases(c, w)) {
        p.run(bias);
        expect_same(p, direct(p, bias), 1e-13);
      }
    }
  }
  for (const ConvCase& c : testing::conv_cases()) {
    for (const Mode& mode : testing::modes()) {
      if (!fits(c, mode)) continue;
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      OracleProblem p(shape_of(c), mode, 1);
      const Numbers w = Random(2).normals(c.H * c.taps());
      for (bool only : {false, true}) {
        const Bias bias = conv_bias(w.data(), grid_of(c, only));
        p.run(bias);
        expect_same(p, direct(p, bias), 1e-13);
      }
    }
  }
}

TEST(Reference, HugeKeysAndBiases) {
  if (!wide_long_double()) GTEST_SKIP() << "needs a long double of wide range";
  size_t turn = 0;  // each spike height in turn, then all together
  for (const Case& c : testing::cases()) {
    for (const Mode& mode : testing::modes()) {
      SCOPED_TRACE(::testing::Message()
                   << c << ", " << mode << ", turn " << turn);
      OracleProblem p(shape_of(c), mode, 3);
      Random random(turn);
      const Numbers w = testing::hostile_biases(random, c.Tq * c.Tk);
      const int64_t keys = c.B * c.Tk * c.D;
      const auto& heights = testing::spike_heights();
      const size_t kind = turn++ % (heights.size() + 1);
      p.k = kind < heights.size()
                ? testing::spiked_keys(random, keys, heights[kind])
                : testing::hostile_keys(random, keys);
      for (const Bias& bias : dense_biases(c, w)) {
        p.run(bias);
        // k + w of about 1e4 is rounded to 1e-12, which exp makes relative.
        expect_same(p, direct(p, bias), 1e-11);
      }
    }
  }
}

TEST(Reference, LocalEqualsFullAndSimple) {
  for (const Case& c : testing::cases()) {
    for (const Mode& mode : testing::modes()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      OracleProblem full(shape_of(c), mode, 10), local = full;
      const Numbers w = Random(11).normals(c.Tq * c.Tk);
      const int64_t all = std::max(c.Tq, c.Tk);
      full.run(full_bias(w.data(), c.Tk));
      for (bool window_only : {false, true}) {
        local.run(local_bias(w.data(), c.Tk, all, window_only));
        expect_same(local, full, 0);
      }
      OracleProblem simple = full;
      simple.run(simple_bias());
      local.run(local_bias(w.data(), c.Tk, 0, false));
      expect_same(local, simple, 0);
      // Window T - 1 differs from T, and window 1 from 0.
      if (c.Tq == c.Tk && c.Tk > 2 && !mode.padded) {
        local.run(local_bias(w.data(), c.Tk, c.Tk - 1, false));
        EXPECT_GT(relative_error(local.y, full.y), 1e-6);
        local.run(local_bias(w.data(), c.Tk, 1, false));
        EXPECT_GT(relative_error(local.y, simple.y), 1e-6);
      }
    }
  }
}

TEST(Reference, ConvEqualsSimpleAndToeplitzLocal) {
  for (const ConvCase& c : testing::conv_cases()) {
    for (const Mode& mode : testing::modes()) {
      if (!fits(c, mode)) continue;
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      OracleProblem conv(shape_of(c), mode, 12), simple = conv;
      const Numbers zeros(c.H * c.taps(), 0.0);
      conv.run(conv_bias(zeros.data(), grid_of(c)));
      simple.run(simple_bias());
      expect_same(conv, simple, 0);

      if (c.grid.size() != 1) continue;
      // One head for all channels = local with the key repeated D times.
      const int64_t T = c.T(), s = c.taps(), left = c.causal ? s - 1 : s / 2;
      OracleProblem one({c.B, T, T, c.D, 1}, mode, 13);
      OracleProblem local({c.B, T, T, c.D, c.D}, mode, 13);
      local.q = one.q, local.v = one.v, local.dy = one.dy;
      local.padded = one.padded;
      for (size_t i = 0; i < local.k.size(); ++i) local.k[i] = one.k[i / c.D];
      const Numbers w = Random(14).normals(s);
      Numbers toeplitz(T * T, NAN);  // values outside of the band are not read
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t a = 0; a < s; ++a) {
          const int64_t j = t - left + a;
          if (j >= 0 && j < T) toeplitz[t * T + j] = w[a];
        }
      }
      for (bool only : {false, true}) {
        one.run(conv_bias(w.data(), grid_of(c, only)));
        local.run(local_bias(toeplitz.data(), T, left + 1, only));
        Numbers dk(one.k.size(), 0.0);
        for (size_t i = 0; i < local.k.size(); ++i) dk[i / c.D] += local.dk[i];
        local.dk = dk;
        expect_same(one, local, 1e-13);
      }
    }
  }
}

// Runs all batch rows through streams, position by position.
Numbers stream(const OracleProblem& p, int64_t window, bool only,
               const Bias& bias) {
  const Shape& s = p.shape;
  Numbers y(s.B * s.Tq * s.D, NAN);
  for (int64_t b = 0; b < s.B; ++b) {
    Stream one(s.D, s.H, window, only);
    for (int64_t t = 0; t < s.Tq; ++t) {
      const int64_t at = b * s.Tq + t;
      one.step(
          p.q.empty() ? nullptr : &p.q[at * s.D], &p.k[at * s.H],
          &p.v[at * s.D], [&](int64_t j, int64_t h) { return bias(t, j, h); },
          &y[at * s.D]);
    }
  }
  return y;
}

TEST(Reference, StepIsForward) {
  for (const Case& c : testing::cases()) {
    for (const Mode& mode : testing::modes()) {
      if (c.Tq != c.Tk || !mode.causal || mode.padded) continue;
      for (bool hostile : {false, true}) {
        SCOPED_TRACE(::testing::Message() << c << ", " << mode);
        OracleProblem p(shape_of(c), mode, 15);
        Random random(16);
        Numbers w = random.normals(c.Tq * c.Tk);
        if (hostile) {
          p.k = testing::hostile_keys(random, c.B * c.Tk * c.D);
          w = testing::hostile_biases(random, c.Tq * c.Tk);
        }
        const auto biases = dense_biases(c, w);
        const int64_t windows[] = {0, -1, c.window, c.window + 1};
        for (int kind = 0; kind < 4; ++kind) {
          p.run(biases[kind]);
          EXPECT_LE(relative_error(
                        stream(p, windows[kind], kind == 3, biases[kind]), p.y),
                    hostile ? 1e-11 : 1e-14)
              << "kind " << kind;
        }
      }
    }
  }
  for (const ConvCase& c : testing::conv_cases()) {
    if (!c.causal) continue;
    for (bool only : {false, true}) {
      SCOPED_TRACE(c);
      OracleProblem p(shape_of(c), {"causal", true, false, true}, 17);
      const Numbers w = Random(18).normals(c.H * c.taps());
      const Bias bias = conv_bias(w.data(), grid_of(c, only));
      p.run(bias);
      EXPECT_LE(relative_error(stream(p, c.taps(), only, bias), p.y), 1e-14);
    }
  }
}

TEST(Reference, PaddedKeysAreAbsent) {
  // Batch row 0 has the first 5 keys, row 1 none; padded keys are not read.
  for (bool causal : {false, true}) {
    OracleProblem p({2, 7, 7, 4, 2}, {"", causal, false, true}, 19), row = p;
    p.padded = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (size_t j = 0; j < p.padded.size(); ++j) {
      for (size_t c = 0; c < 4 && p.padded[j] != 0; ++c) p.v[j * 4 + c] = NAN;
      for (size_t h = 0; h < 2 && p.padded[j] != 0; ++h) p.k[j * 2 + h] = NAN;
    }
    p.run(simple_bias());
    row.shape.B = 1;
    row.shape.Tk = 5;
    row.run(simple_bias());
    for (int64_t i = 0; i < 2 * 7 * 4; ++i) {
      EXPECT_EQ(p.y[i], i < 7 * 4 ? row.y[i] : 0.0);
      EXPECT_EQ(p.dq[i], i < 7 * 4 ? row.dq[i] : 0.0);
      EXPECT_EQ(p.dv[i], i < 5 * 4 ? row.dv[i] : 0.0);
    }
    for (int64_t i = 0; i < 2 * 7 * 2; ++i) {
      EXPECT_EQ(p.dk[i], i < 5 * 2 ? row.dk[i] : 0.0);
    }
    EXPECT_GT(std::abs(p.y[0]), 0.0);
  }
}

TEST(Reference, RowsWithoutAKeyInTheWindow) {
  // Of 13 queries over 7 keys with window 2, those from t = 8 on have no key.
  OracleProblem p({1, 13, 7, 3, 3}, {"", false, false, true}, 20);
  const Numbers w = Random(21).normals(13 * 7);
  p.run(local_bias(w.data(), 7, 2, true));
  for (int64_t i = 0; i < 13 * 3; ++i) {
    EXPECT_EQ(p.y[i] == 0.0, i >= 8 * 3) << i;
    EXPECT_EQ(p.dq[i] == 0.0, i >= 8 * 3) << i;
  }
  Stream forgetful(1, 1, 0, true);  // an empty window: no keys
  const double one = 1;
  double y = NAN;
  forgetful.step(
      &one, &one, &one, [](int64_t, int64_t) { return 0.0; }, &y);
  EXPECT_EQ(y, 0.0);
}

TEST(Reference, CausalityIsBitExact) {
  OracleProblem p({1, 13, 13, 5, 5}, {"", true, false, true}, 22), changed = p;
  for (size_t i = 9 * 5; i < 13 * 5; ++i) changed.k[i] = 1e4, changed.v[i] = -7;
  const Numbers w = Random(23).normals(13 * 13);
  p.run(full_bias(w.data(), 13));
  changed.run(full_bias(w.data(), 13));
  for (size_t i = 0; i < p.y.size(); ++i) {
    EXPECT_EQ(p.y[i] == changed.y[i], i < 9 * 5) << i;
  }
}

TEST(Reference, RejectsInvalidArguments) {
  const double x[4] = {};
  double y[4];
  EXPECT_THROW(forward({1, 1, 1, 4, 3}, {x, x, x}, simple_bias(), y),
               std::invalid_argument);
  EXPECT_THROW(Stream(4, 3, 0), std::invalid_argument);
  EXPECT_THROW(local_bias(x, 2, -1, false), std::invalid_argument);
  EXPECT_THROW(local_bias(x, 2, 0, true), std::invalid_argument);
  EXPECT_THROW(conv_bias(x, {{4}, {2}}), std::invalid_argument);
  EXPECT_THROW(conv_bias(x, {{4, 4}, {3}}), std::invalid_argument);
  EXPECT_THROW(conv_bias(x, {{2, 2}, {1, 1}, true}), std::invalid_argument);
  EXPECT_THROW(conv_bias(x, {{2, 2, 2, 2}, {1, 1, 1, 1}}),
               std::invalid_argument);
  EXPECT_NO_THROW(conv_bias(x, {{4}, {2}, true}));
}

// Non-finite inputs by the formula: r = sum_j exp(k_j) v_j / sum_j exp(k_j).
TEST(Reference, NonFiniteInputs) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Numbers w(9, 0.0);
  const auto forward_of = [&](const Numbers& q, const Numbers& k,
                              const Numbers& v, const Numbers& bias,
                              bool causal) {
    Numbers y(3);
    forward({1, 3, 3, 1, 1, causal},
            {q.empty() ? nullptr : q.data(), k.data(), v.data(), nullptr},
            full_bias(bias.data(), 3), y.data());
    return y;
  };
  const auto same = [](const Numbers& got, const Numbers& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i])) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], want[i]) << i;
      }
    }
  };
  const Numbers zero(3, 0.0), v = {2, 4, 6};
  for (double bad : {static_cast<double>(NAN), inf}) {
    same(forward_of({}, {0, bad, 0}, v, w, true), {2, NAN, NAN});
    same(forward_of({}, {0, bad, 0}, v, w, false), {NAN, NAN, NAN});
    same(forward_of({}, {bad, -inf, -inf}, v, w, true), {NAN, NAN, NAN});
    Numbers of_row = w;
    of_row[1 * 3 + 0] = bad;
    same(forward_of({}, zero, v, of_row, true), {2, NAN, 4});
    of_row[1 * 3 + 2] = bad, of_row[1 * 3 + 0] = 0;  // in the future
    same(forward_of({}, zero, v, of_row, true), {2, 3, 4});
  }
  same(forward_of({0, NAN, inf}, zero, v, w, true), {1, NAN, 4});
  same(forward_of({0, 0, -inf}, zero, v, w, true), {1, 1.5, 0});
  same(forward_of({}, zero, {2, NAN, 6}, w, true), {2, NAN, NAN});
  same(forward_of({}, zero, {2, inf, 6}, w, true), {2, inf, inf});
  same(forward_of({}, zero, {2, inf, -inf}, w, true), {2, inf, NAN});
  // A weight that rounds to 0 is not 0.
  same(forward_of({}, {0, -1e4, 0}, {2, NAN, 6}, w, true), {2, NAN, NAN});
  same(forward_of({}, {0, -1e4, 0}, {2, -inf, 6}, w, true), {2, -inf, -inf});
  // -infinity masks.
  same(forward_of({}, {0, -inf, 0}, {2, NAN, 6}, w, true), {2, 2, 4});
  same(forward_of({}, {-inf, -inf, 0}, {NAN, inf, 6}, w, true), {0, 0, 6});
  Numbers masks = w;
  masks[0] = masks[3] = masks[7] = -inf;
  same(forward_of({}, {NAN, 0, inf}, {NAN, 4, 6}, masks, true), {0, 4, NAN});

  // Gradients of causal rows: NaN in dy_1 reaches keys 0 and 1.
  const auto backward_of = [&](const Numbers& k, const Numbers& values,
                               const Numbers& dy) {
    Numbers dk(3), dv(3), dw(9);
    backward({1, 3, 3, 1, 1, true}, {nullptr, k.data(), values.data(), nullptr},
             full_bias(w.data(), 3), dy.data(),
             {nullptr, dk.data(), dv.data(), full_gradient(dw.data(), 3)});
    Numbers all = dk;
    all.insert(all.end(), dv.begin(), dv.end());
    all.insert(all.end(), dw.begin(), dw.end());
    std::string bad;
    for (double x : all) bad += std::isfinite(x) ? '.' : 'N';
    return bad;  // dk, dv, rows of dw
  };
  EXPECT_EQ(backward_of(zero, v, {0, NAN, 0}), "NN.NN....NN....");
  EXPECT_EQ(backward_of({0, 0, NAN}, v, {1, 1, 1}), "NNNNNN......NNN");
  EXPECT_EQ(backward_of({0, -inf, NAN}, v, {1, 1, 1}), "N.NN.N......N.N");
  EXPECT_EQ(backward_of(zero, {2, inf, 6}, {1, 1, 1}), "NNN......NN.NNN");
}

}  // namespace
}  // namespace aft::reference
