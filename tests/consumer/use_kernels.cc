// An installed aft::kernels, without torch: AFT-simple by the SIMD kernel and
// by the paper's equations must agree.
#include <cmath>
#include <cstdio>

#include "aft/kernels/reference.h"
#include "aft/kernels/run.h"

int main() {
  constexpr int64_t T = 3, D = 2;
  const double q[T * D] = {0.5, -1, 2, 0, -0.25, 1};
  const double k[T * D] = {1, 0, -2, 3, 0.5, 0.5};
  const double v[T * D] = {4, -3, 2, -1, 0.5, 6};

  double fast[T * D], exact[T * D];
  aft::kernels::Problem<double> problem{};
  problem.B = 1;
  problem.Tq = problem.Tk = T;
  problem.D = problem.H = D;
  problem.causal = true;
  problem.q = q;
  problem.k = k;
  problem.v = v;
  aft::kernels::run_simple(aft::kernels::Exec::serial(), problem, fast);

  aft::reference::Shape shape;
  shape.Tq = shape.Tk = T;
  shape.D = shape.H = D;
  shape.causal = true;
  aft::reference::Inputs inputs;
  inputs.q = q;
  inputs.k = k;
  inputs.v = v;
  aft::reference::forward(shape, inputs, aft::reference::simple_bias(), exact);

  for (int64_t i = 0; i < T * D; ++i) {
    if (!(std::abs(fast[i] - exact[i]) <= 1e-12 * std::abs(exact[i]))) {
      std::printf("use_kernels: y[%d] must be %g, got %g\n",
                  static_cast<int>(i), exact[i], fast[i]);
      return 1;
    }
  }
  std::puts("use_kernels: ok");
}
