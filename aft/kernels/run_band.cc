// AFT-full and AFT-local forward: pieces of w are made, packed and multiplied,
// block by block, so that no more than a block of w exists; rows that the fast
// path may not take go through exact-inl.h.
#include <algorithm>

#include "aft/kernels/kernels.h"
#include "aft/kernels/run.h"
#include "aft/kernels/run_band-inl.h"

namespace aft::kernels {

template <class T>
void run_band(const Exec& exec, const Problem<T>& p, const BandBias<T>& bias,
              T* y, const Saved<T>& saved) {
  if (nothing(p, y)) return;
  if (bias.window == 0) {  // simple; its backward pass needs nothing saved
    run_simple(exec, p, y);
    return;
  }
  const Layout<T> l(exec, p, bias);
  const Band& band = l.band;
  const int64_t n_blocks = blocks(band.rows), width = l.width(band.keys),
                chunk = chunk_blocks(width, n_blocks);
  const bool once =
      chunk >= n_blocks;  // then panels need not outlive their task
  const int64_t panel_size = band.keys * kPanel, side_size = n_blocks * kPanel;
  const int64_t step =
      panel_step(panel_size + side_size * (l.before + l.after));

  Buffer<T> packed(exec, chunk * width * kRows), panels;
  if (!once) panels.grow(exec, l.all_tiles * step);
  std::vector<int64_t> safe_rows(l.all_tiles);
  std::vector<uint8_t> unsafe_here(saved.unsafe ? 0 : band.rows);
  uint8_t* unsafe = saved.unsafe ? saved.unsafe : unsafe_here.data();

  for (int64_t b0 = 0; b0 < n_blocks; b0 += chunk) {
    const int64_t b1 = std::min(b0 + chunk, n_blocks);
    const int64_t t0 = b0 * kRows, t1 = std::min(b1 * kRows, band.rows);
    pack(exec, band, bias, b0, b1, width, packed.get(), unsafe);
    const bool unsafe_chunk =
        std::find(unsafe + t0, unsafe + t1, 1) != unsafe + t1;
    exec.parallel(l.tasks, [&](int64_t begin, int64_t end) {
      Buffer<T> own;
      if (once) own.grow(exec, l.strip_tiles * step);
      std::vector<uint8_t> flags;
      for (int64_t task = begin; task < end; ++task) {
        const Strip<T> strip = l.strip(p, task);
        const int64_t first = l.first_tile(task), at = l.row_offset(task);
        T* rows = once ? own.get() : panels.get() + first * step;
        const Panel<T> panel{rows, l.before ? rows + panel_size : nullptr,
                             l.after ? rows + panel_size + side_size : nullptr,
                             step};
        int64_t* safe = safe_rows.data() + first;
        if (b0 == 0) band_kernels<T>().pack_keys(band, strip, panel, safe);
        const bool exact =
            unsafe_chunk || *std::min_element(safe, safe + strip.tiles()) < t1;
        if (exact) flags.resize(strip.tiles() * band.rows);
        for (int i = 0; exact && i < strip.tiles(); ++i) {
          set_flags(band.rows, unsafe, safe[i], flags.data() + i * band.rows);
        }
        const BandOut<T> out{y + at, saved.r ? saved.r + at : nullptr,
                             saved.den ? saved.den + at : nullptr,
                             exact ? flags.data() : nullptr};
        band_kernels<T>().forward(band, b0, b1, strip, panel, packed.get(),
                                  width, out);
        if (!exact) continue;
        for (int tile = 0; tile < strip.tiles(); ++tile) {
          const uint8_t* f = flags.data() + tile * band.rows;
          if (std::find(f + t0, f + t1, 1) == f + t1) continue;
          const ExactSides<T> sides(exec, l, strip, tile);
          for_exact_rows(
              exec, band, bias, f, t0, t1, [&](int64_t t, const T* w) {
                alignas(64) double row[kExact];
                band_kernels<T>().exact_row(band, strip, tile, sides.before,
                                            sides.after, t, w, row);
                for (int c = 0; c < strip.lanes(tile); ++c) {
                  const int64_t i = t * l.D + tile * kTile + c;
                  const double r = row[2 * kTile + c];
                  out.y[i] =
                      static_cast<T>(strip.q ? r * sigmoid(strip.q[i]) : r);
                  if (out.r) out.r[i] = static_cast<T>(r);
                  if (out.den) out.den[i] = T(1);
                }
              });
        }
      }
    });
  }
}

template void run_band(const Exec&, const Problem<float>&,
                       const BandBias<float>&, float*, const Saved<float>&);
template void run_band(const Exec&, const Problem<double>&,
                       const BandBias<double>&, double*, const Saved<double>&);

}  // namespace aft::kernels
