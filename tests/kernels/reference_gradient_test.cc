// Every gradient of the oracle against central differences of its forward.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "aft/kernels/reference.h"
#include "tests/cases.h"
#include "tests/kernels/oracle_problem.h"

namespace aft::reference {
namespace {

// Compares the derivative of the loss along a random direction of x, by a
// central difference, with the gradient g. A single wrong element of g fails.
template <class Loss>
void expect_gradient(const char* name, Numbers& x, const Numbers& g,
                     const Loss& loss) {
  const double h = 1e-5;
  const Numbers at = x;
  const Numbers direction = Random(17).normals(static_cast<int64_t>(x.size()));
  double along = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    along += g[i] * direction[i];
    size += std::abs(g[i] * direction[i]);
  }
  const auto shifted = [&](double step) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = at[i] + step * direction[i];
    return loss();
  };
  const double slope = (shifted(h) - shifted(-h)) / (2 * h);
  x = at;
  EXPECT_NEAR(along, slope, 1e-7 * size + 1e-7) << name;
}

void expect_input_gradients(OracleProblem& p, const Bias& bias) {
  const auto loss = [&] { return p.loss(bias); };
  if (!p.q.empty()) expect_gradient("q", p.q, p.dq, loss);
  expect_gradient("k", p.k, p.dk, loss);
  expect_gradient("v", p.v, p.dv, loss);
}

TEST(ReferenceGradient, SimpleFullLocal) {
  for (const Case& c : testing::cases()) {
    for (const Mode& mode : testing::modes()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      OracleProblem p(shape_of(c), mode, 6);
      p.run(simple_bias());
      expect_input_gradients(p, simple_bias());

      // full and the two kinds of local: dense w, then u and v_pos.
      for (int kind = 0; kind < 3; ++kind) {
        SCOPED_TRACE(kind == 0 ? "full" : kind == 1 ? "local" : "window only");
        const int64_t window = kind == 2 ? c.window + 1 : c.window;
        Random random(7);
        Numbers u = random.normals(c.Tq * c.rank, 0.5);
        Numbers v_pos = random.normals(c.Tk * c.rank, 0.5);
        Numbers w = factorised(u.data(), v_pos.data(), c.Tq, c.Tk, c.rank);
        Numbers dw(w.size(), 0.0), du(u.size(), 0.0), dv_pos(v_pos.size(), 0.0);
        const auto bias = [&] {
          return kind == 0 ? full_bias(w.data(), c.Tk)
                           : local_bias(w.data(), c.Tk, window, kind == 2);
        };
        p.run(bias(), kind == 0 ? full_gradient(dw.data(), c.Tk)
                                : local_gradient(dw.data(), c.Tk, window));
        expect_input_gradients(p, bias());
        expect_gradient("w", w, dw, [&] { return p.loss(bias()); });
        factorised_backward(dw.data(), u.data(), v_pos.data(), c.Tq, c.Tk,
                            c.rank, du.data(), dv_pos.data());
        const auto factors = [&] {
          w = factorised(u.data(), v_pos.data(), c.Tq, c.Tk, c.rank);
          return p.loss(bias());
        };
        expect_gradient("u", u, du, factors);
        expect_gradient("v_pos", v_pos, dv_pos, factors);
      }
    }
  }
}

TEST(ReferenceGradient, Conv) {
  for (const ConvCase& c : testing::conv_cases()) {
    for (const Mode& mode : testing::modes()) {
      for (bool window_only : {false, true}) {
        if (!fits(c, mode)) continue;
        SCOPED_TRACE(::testing::Message()
                     << c << ", " << mode << (window_only ? ", only" : ""));
        OracleProblem p(shape_of(c), mode, 8);
        Numbers w = Random(9).normals(c.H * c.taps()), dw(w.size(), 0.0);
        const Grid grid = grid_of(c, window_only);
        const Bias bias = conv_bias(w.data(), grid);
        p.run(bias, conv_gradient(dw.data(), grid));
        expect_input_gradients(p, bias);
        expect_gradient("w", w, dw, [&] { return p.loss(bias); });
      }
    }
  }
}

}  // namespace
}  // namespace aft::reference
