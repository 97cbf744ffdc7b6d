// AFT with one biased key per head: batch rows and panels of channels are
// independent.
#include <algorithm>

#include "aft/kernels/one_tap.h"
#include "aft/kernels/run_buffers.h"

namespace aft::kernels {

template <class T>
void run_one_tap(const Exec& exec, const Problem<T>& p,
                 const OneTapBias<T>& bias, T* y) {
  if (nothing(p, y)) return;
  const int64_t groups = (p.D + kPanel - 1) / kPanel, n = p.Tk;
  exec.parallel(p.B * groups, [&](int64_t begin, int64_t end) {
    const Buffer<T> scratch(
        exec, one_tap_scratch(bias.grid[0] * bias.grid[1], bias.grid[2]));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / groups, c0 = i % groups * kPanel;
      const OneTap<T> piece{bias.grid[0],
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
      one_tap_kernels<T>().forward(piece, scratch.get());
    }
  });
}

template void run_one_tap(const Exec&, const Problem<float>&,
                          const OneTapBias<float>&, float*);
template void run_one_tap(const Exec&, const Problem<double>&,
                          const OneTapBias<double>&, double*);

}  // namespace aft::kernels
