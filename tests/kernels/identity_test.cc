// Identities between the operators: local with the widest window is full, with
// window 0 simple; conv with biases of 0 is simple, and conv on a line is local
// with Toeplitz w.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

using testing::modes;

/// Compares two operators, run by the kernels in both types on every target; dw
/// is not compared if their biases have different shapes.
void expect_same(const Operator& a, const Operator& b, const Data& data) {
  Result scale = expected(a, data);
  for_each_target([&] {
    const auto compare = [&](const Result& x, Result y, double tolerance) {
      y.k_scale = scale.k_scale, y.w_scale = scale.w_scale;
      Result z = x;
      if (z.dw.size() != y.dw.size()) z.dw.clear(), y.dw.clear();
      expect_close(z, y, tolerance);
    };
    {
      SCOPED_TRACE("float");
      compare(run<float>(a, data), run<float>(b, data), 4e-6);
    }
    SCOPED_TRACE("double");
    compare(run<double>(a, data), run<double>(b, data), 1e-13);
  });
}

TEST(Identity, LocalOfTheWidestWindowIsFull) {
  for (const testing::Case& c : testing::cases()) {
    for (const Mode& mode : modes()) {
      const Data data(shape_of(c), mode, 1);
      const Numbers w = Random(2).normals(c.Tq * c.Tk);
      const int64_t T = std::max(c.Tq, c.Tk);
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      for (bool only : {false, true}) {
        expect_same(full(w), local(w, T, only), data);
      }
    }
  }
}

TEST(Identity, LocalWithWindow0IsSimple) {
  for (const testing::Case& c : testing::cases()) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      const Numbers w = Random(3).normals(c.Tq * c.Tk);
      expect_same(simple(), local(w, 0), Data(shape_of(c), mode, 4));
    }
  }
}

TEST(Identity, BiasesOfZeroAreSimple) {
  for (const testing::Case& c : testing::cases()) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      const Data data(shape_of(c), mode, 5);
      const Numbers zeros(c.Tq * c.Tk, 0.0);
      expect_same(simple(), full(zeros), data);
      expect_same(simple(), local(zeros, 2), data);
    }
  }
  for (const testing::ConvCase& c : testing::conv_cases()) {
    for (const Mode& mode : modes()) {
      if (c.causal != mode.causal) continue;
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      const oracle::Shape shape{c.B, c.T(), c.T(), c.D, c.D};
      expect_same(simple(),
                  conv(Numbers(c.D * c.taps(), 0.0), c.grid, c.kernel),
                  Data(shape, mode, 6));
    }
  }
}

// One head as the input of local: keys are repeated for each channel.
TEST(Identity, ConvOnALineIsLocalWithToeplitzBiases) {
  for (bool hostile : {false, true}) {
    for (const testing::ConvCase& c : testing::conv_cases()) {
      if (c.grid.size() != 1) continue;
      for (const Mode& mode : modes()) {
        if (c.causal != mode.causal) continue;
        SCOPED_TRACE(::testing::Message() << c << ", " << mode);
        const int64_t T = c.T(), s = c.taps(), left = c.causal ? s - 1 : s / 2;
        Data one({c.B, T, T, c.D, 1}, mode, 7);
        Random random(8);
        if (hostile) one.k = testing::hostile_keys(random, c.B * T);
        Data many = one;
        many.shape.H = c.D;
        many.k.resize(c.B * T * c.D);
        for (size_t i = 0; i < many.k.size(); ++i) many.k[i] = one.k[i / c.D];
        const Numbers w = random.normals(s);
        Numbers toeplitz(T * T, NAN);
        for (int64_t i = 0; i < T * T; ++i) {
          const int64_t tap = i % T - i / T + left;
          if (tap >= 0 && tap < s) toeplitz[i] = w[tap];
        }
        for (bool only : {false, true}) {
          const Operator line = conv(w, c.grid, c.kernel, only);
          const Operator band = local(toeplitz, left + 1, only);
          const Result scale = expected(line, one);
          for_each_target([&] {
            const Result got = run<double>(line, one);
            Result want = run<double>(band, many);
            Numbers dk(got.dk.size(), 0.0), dw(s, 0.0);
            for (size_t i = 0; i < want.dk.size(); ++i) {
              dk[i / c.D] += want.dk[i];
            }
            for (int64_t i = 0; i < T * T; ++i) {
              const int64_t tap = i % T - i / T + left;
              if (tap >= 0 && tap < s) dw[tap] += want.dw[i];
            }
            want.dk = dk, want.dw = dw;
            want.k_scale = scale.k_scale, want.w_scale = scale.w_scale;
            expect_close(got, want, hostile ? 1e-11 : 2e-13);
          });
        }
      }
    }
  }
}

// Grids of one line, in any orientation, equal the line.
TEST(Identity, GridsOfOneLineAreLines) {
  const int64_t T = 23, D = 6, H = 3;
  const Numbers w = Random(9).normals(H * 7);
  for (const Mode& mode : modes()) {
    if (mode.causal) continue;
    const Data data({2, T, T, D, H}, mode, 10);
    for (bool only : {false, true}) {
      const Operator line = conv(w, {T}, {7}, only);
      expect_same(line, conv(w, {1, T}, {1, 7}, only), data);
      expect_same(line, conv(w, {T, 1}, {7, 1}, only), data);
      expect_same(line, conv(w, {1, 1, T}, {1, 1, 7}, only), data);
      expect_same(line, conv(w, {1, T, 1}, {1, 7, 1}, only), data);
      expect_same(line, conv(w, {T, 1, 1}, {7, 1, 1}, only), data);
    }
  }
}

}  // namespace
}  // namespace aft::kernels
