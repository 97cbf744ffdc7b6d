// AFT with one biased key a head as a whole: batch rows and panels of channels
// are independent.
#include <algorithm>

#include "aft/kernels/run-inl.h"
#include "aft/kernels/single.h"

namespace aft::kernels {

template <class T>
void run_single(const Exec& exec, const Problem<T>& p,
                const SingleBias<T>& bias, T* y) {
  if (nothing(p, y)) return;
  const int64_t groups = (p.D + kPanel - 1) / kPanel, n = p.Tk;
  exec.parallel(p.B * groups, [&](int64_t begin, int64_t end) {
    const Buffer<T> scratch(
        exec, single_scratch(bias.grid[0] * bias.grid[1], bias.grid[2]));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / groups, c0 = i % groups * kPanel;
      const Single<T> piece{bias.grid[0],
                            bias.grid[1],
                            bias.grid[2],
                            p.D,
                            p.H,
                            c0,
                            std::min<int64_t>(c0 + kPanel, p.D),
                            p.q ? p.q + b * n * p.D : nullptr,
                            p.k + b * n * p.H,
                            p.v + b * n * p.D,
                            p.padded ? p.padded + b * n : nullptr,
                            bias.w,
                            bias.offsets,
                            y + b * n * p.D};
      single_kernels<T>().forward(piece, scratch.get());
    }
  });
}

template void run_single(const Exec&, const Problem<float>&,
                         const SingleBias<float>&, float*);
template void run_single(const Exec&, const Problem<double>&,
                         const SingleBias<double>&, double*);

}  // namespace aft::kernels
