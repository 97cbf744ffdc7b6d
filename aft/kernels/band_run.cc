// AFT-full and AFT-local forward: w is computed, packed and multiplied block by
// block and never exists as a whole. Rows that are beyond FastPathLimits take
// the log-space path.
#include "aft/kernels/band_run.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "aft/kernels/band_run_nonfinite.h"
#include "aft/kernels/kernels.h"
#include "aft/kernels/run.h"

namespace aft::kernels {
namespace {

/// Returns whether all rows took the fast path, which implies that all keys,
/// values and biases are finite, except for keys of -infinity.
template <class T>
bool forward(const Exec& exec, const Problem<T>& p, const BandTasks<T>& l,
             const BandBias<T>& bias, T* y, const Saved<T>& saved,
             uint8_t* unsafe) {
  const Band& band = l.band;
  const int64_t n_blocks = blocks(band.rows), width = l.width(band.keys),
                chunk = chunk_blocks(width, n_blocks);
  const bool once =
      chunk >= n_blocks;  // then panels need not outlive their task
  const int64_t panel_size = band.keys * kBandPanel,
                side_size = n_blocks * kBandPanel;
  const int64_t step =
      panel_step(panel_size + side_size * (l.before + l.after));

  Buffer<T> packed(exec, chunk * width * kBlockRows), panels;
  if (!once) panels.grow(exec, l.all_tiles * step);
  std::vector<int64_t> safe_rows(l.all_tiles);
  std::atomic<bool> all_fast{true};

  for (int64_t b0 = 0; b0 < n_blocks; b0 += chunk) {
    const int64_t b1 = std::min(b0 + chunk, n_blocks);
    const int64_t t0 = b0 * kBlockRows,
                  t1 = std::min(b1 * kBlockRows, band.rows);
    pack(exec, band, bias, b0, b1, width, packed.get(), unsafe);
    const bool unsafe_chunk =
        std::find(unsafe + t0, unsafe + t1, 1) != unsafe + t1;
    exec.parallel(l.tasks, [&](int64_t begin, int64_t end) {
      Buffer<T> own;
      if (once) own.grow(exec, l.strip_tiles * step);
      std::vector<uint8_t> flags;
      LogspaceChannels<T> channels(exec, l.logspace_window());
      for (int64_t task = begin; task < end; ++task) {
        const Strip<T> strip = l.strip(p, task);
        const int64_t first = l.first_tile(task), at = l.row_offset(task);
        T* rows = once ? own.get() : panels.get() + first * step;
        const Panel<T> panel{rows, l.before ? rows + panel_size : nullptr,
                             l.after ? rows + panel_size + side_size : nullptr,
                             step};
        int64_t* safe = safe_rows.data() + first;
        if (b0 == 0) band_kernels<T>().pack_keys(band, strip, panel, safe);
        const bool logspace =
            unsafe_chunk || *std::min_element(safe, safe + strip.tiles()) < t1;
        if (logspace) flags.resize(strip.tiles() * band.rows), all_fast = false;
        for (int i = 0; logspace && i < strip.tiles(); ++i) {
          set_flags(band.rows, unsafe, safe[i], flags.data() + i * band.rows);
        }
        const BandOut<T> out{y + at, saved.r ? saved.r + at : nullptr,
                             saved.den ? saved.den + at : nullptr,
                             logspace ? flags.data() : nullptr};
        band_kernels<T>().forward(band, b0, b1, strip, panel, packed.get(),
                                  width, out);
        if (!logspace) continue;
        for (int tile = 0; tile < strip.tiles(); ++tile) {
          const uint8_t* f = flags.data() + tile * band.rows;
          if (std::find(f + t0, f + t1, 1) == f + t1) continue;
          channels.load(l.logspace_source(strip, tile));
          channels.sum_keys();
          for_logspace_rows(
              exec, l, bias, f, t0, t1, [&](int64_t t, const LogspaceBias& w) {
                alignas(64) double row[kLogSum];
                channels.row(t, w, row);
                for (int c = 0; c < strip.lanes(tile); ++c) {
                  const int64_t i = t * l.D + tile * kTile + c;
                  out.y[i] =
                      logspace_output(row, c, strip.q ? strip.q + i : nullptr);
                  if (out.r) out.r[i] = static_cast<T>(row[2 * kTile + c]);
                  if (out.den) out.den[i] = T(1);
                }
              });
        }
      }
    });
  }
  return all_fast;
}

}  // namespace

template <class T>
void run_band(const Exec& exec, const Problem<T>& p, const BandBias<T>& bias,
              T* y, const Saved<T>& saved) {
  if (nothing(p, y)) return;
  if (bias.window == 0) {  // simple; its backward pass needs nothing saved
    run_simple(exec, p, y);
    return;
  }
  const BandTasks<T> l(exec, p, bias);
  std::vector<uint8_t> unsafe_here(saved.unsafe ? 0 : p.Tq);
  uint8_t* unsafe = saved.unsafe ? saved.unsafe : unsafe_here.data();
  if (forward(exec, p, l, bias, y, saved, unsafe)) return;
  const FiniteInputs<T> finite(exec, p);
  const BandMarks<T> marks(exec, l, bias, unsafe);
  if (!finite.changed && !marks.any) return;
  forward(exec, finite.problem, l, marks.finite, y, saved, unsafe);
  overwrite_results(exec, p, l, marks, y, saved);
  // So that backward looks for them; they are safe without these biases.
  for (int64_t t = 0; t < p.Tq; ++t) {
    if (marks.rows[t]) unsafe[t] |= kNonFiniteBias;
  }
}

template void run_band(const Exec&, const Problem<float>&,
                       const BandBias<float>&, float*, const Saved<float>&);
template void run_band(const Exec&, const Problem<double>&,
                       const BandBias<double>&, double*, const Saved<double>&);

}  // namespace aft::kernels
