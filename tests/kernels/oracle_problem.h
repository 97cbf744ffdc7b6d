// Inputs with the oracle's results for them, shared by the tests of the oracle
// and of the kernels.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "aft/kernels/reference.h"
#include "tests/cases.h"

namespace aft::reference {

using testing::Case;
using testing::ConvCase;
using testing::Mode;
using testing::Random;
using testing::relative_error;
using Numbers = std::vector<double>;

// Inputs, and the results of both passes.
struct OracleProblem {
  Shape shape;
  Numbers q, k, v, dy;
  std::vector<uint8_t> padded;  // empty: no mask
  Numbers y, dq, dk, dv, dw;    // dw [Tq, Tk], all heads together

  OracleProblem(const Shape& s, const Mode& mode, uint64_t seed) : shape(s) {
    Random random(seed);
    shape.causal = mode.causal;
    if (mode.gated) q = random.normals(s.B * s.Tq * s.D);
    k = random.normals(s.B * s.Tk * s.H);
    v = random.normals(s.B * s.Tk * s.D);
    dy = random.normals(s.B * s.Tq * s.D);
    if (mode.padded) padded = testing::padding_mask(random, s.B, s.Tk);
  }

  Inputs inputs() const {
    return {q.empty() ? nullptr : q.data(), k.data(), v.data(),
            padded.empty() ? nullptr : padded.data()};
  }

  void run(const Bias& bias, const BiasGradient& also = {}) {
    dw.assign(shape.Tq * shape.Tk, 0.0);
    y.assign(dy.size(), NAN);
    dq.assign(q.size(), NAN);
    dk.assign(k.size(), NAN);
    dv.assign(v.size(), NAN);
    forward(shape, inputs(), bias, y.data());
    backward(shape, inputs(), bias, dy.data(),
             {q.empty() ? nullptr : dq.data(), dk.data(), dv.data(),
              [&](int64_t t, int64_t j, int64_t h, double g) {
                dw[t * shape.Tk + j] += g;
                if (also) also(t, j, h, g);
              }});
  }

  double loss(const Bias& bias) const {
    Numbers out(dy.size());
    forward(shape, inputs(), bias, out.data());
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dy[i];
    return sum;
  }
};

inline Shape shape_of(const Case& c) { return {c.B, c.Tq, c.Tk, c.D, c.D}; }
inline Shape shape_of(const ConvCase& c) {
  return {c.B, c.T(), c.T(), c.D, c.H};
}
inline Grid grid_of(const ConvCase& c, bool window_only = false) {
  return {c.grid, c.kernel, c.causal, window_only};
}

// A causal grid needs a causal sum; others work with both kinds.
inline bool fits(const ConvCase& c, const Mode& m) {
  return !c.causal || m.causal;
}

inline void expect_same(const OracleProblem& a, const OracleProblem& b,
                        double tolerance) {
  EXPECT_LE(relative_error(a.y, b.y), tolerance);
  EXPECT_LE(relative_error(a.dq, b.dq), tolerance);
  EXPECT_LE(relative_error(a.dk, b.dk, 1), tolerance);
  EXPECT_LE(relative_error(a.dv, b.dv), tolerance);
  EXPECT_LE(relative_error(a.dw, b.dw, 1), tolerance);
}

}  // namespace aft::reference
