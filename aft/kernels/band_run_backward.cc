// AFT-full and AFT-local backward: dk and dv are the forward product with W
// transposed over the panel of rows, dw a product of the two panels.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "aft/kernels/band_run.h"
#include "aft/kernels/band_run_nonfinite.h"
#include "aft/kernels/kernels.h"
#include "aft/kernels/run.h"

namespace aft::kernels {

namespace {

/// The phases of the backward pass: run, then biases.
template <class T>
class Backward {
 public:
  Backward(const Exec& exec, const Problem<T>& p, const BandBias<T>& bias,
           const T* dy, const Saved<T>& saved, const Gradients<T>& grad)
      : exec_(exec),
        p_(p),
        bias_(bias),
        dy_(dy),
        saved_(saved),
        grad_(grad),
        l_(exec, p, bias),
        band_(l_.band),
        row_panel_(band_.rows * kBandPanel),
        key_panel_(panel_step(band_.keys * kBandPanel)),
        side_(blocks(band_.keys) * kBandPanel),
        row_step_(panel_step(row_panel_ + side_ * (l_.before + l_.after))),
        flags_(exec, l_.all_tiles * band_.rows),
        rows_of_(l_.all_tiles) {}

  void run() {
    if (narrow()) {
      strips();
    } else {
      keys_.grow(exec_, l_.all_tiles * key_panel_);
      rows_.grow(exec_, l_.all_tiles * row_step_);
      exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          pack_panels(task, keys_panel(l_.first_tile(task)),
                      rows_panel(l_.first_tile(task)));
        }
      });
      keys();
    }
    exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
      LogspaceChannels<T> channels(exec_, l_.logspace_window());
      for (int64_t task = begin; task < end; ++task) logspace(task, channels);
    });
  }
  /// Whether all rows took the fast path, which implies that all inputs and
  /// saved results are finite, except for keys of -infinity and queries.
  bool all_fast() const {
    return !std::memchr(flags_.get(), 1,
                        static_cast<size_t>(l_.all_tiles * band_.rows));
  }

 private:
  uint8_t* flags(int64_t tile) const {
    return flags_.get() + tile * band_.rows;
  }
  Panel<T> keys_panel(int64_t tile) const {
    return {keys_.get() + tile * key_panel_, nullptr, nullptr, key_panel_};
  }
  Panel<T> rows_panel(int64_t tile) const {
    return rows_panel(rows_.get() + tile * row_step_);
  }
  /// From a key's point of view: rows after its window are included if keys
  /// before a row's window are, and vice versa.
  Panel<T> rows_panel(T* rows) const {
    return {rows, l_.after ? rows + row_panel_ + side_ : nullptr,
            l_.before ? rows + row_panel_ : nullptr, row_step_};
  }

  /// Size of the piece of dw of rows [s * kSub, (s + 1) * kSub).
  int64_t piece() const { return kSub * (l_.width(band_.keys) + kSub); }
  int64_t subs() const { return (band_.rows + kSub - 1) / kSub; }
  /// Calls f(t0, t1, j0, j1) for piece s, if it has keys.
  template <class F>
  void with_piece(int64_t s, const F& f) const {
    const int64_t t0 = s * kSub, t1 = std::min(t0 + kSub, band_.rows);
    const int64_t j0 = band_.key_begin(t0), j1 = band_.key_end(t1);
    if (j0 < j1) f(t0, t1, j0, j1);
  }

  /// Whether all weights, and per thread all of dw, fit into the cache: then
  /// panels need not outlive their strip.
  bool narrow() const {
    const int64_t n_blocks = blocks(band_.keys);
    return chunk_blocks(l_.width(band_.rows), n_blocks) >= n_blocks &&
           subs() * piece() <= kDwSize;
  }

  /// The narrow case: processes each strip from its panels to its gradients,
  /// and adds its part of dw to the sum of the thread.
  void strips() {
    const int64_t n_blocks = blocks(band_.keys), width = l_.width(band_.rows),
                  pieces = bias_.take ? subs() : 0;
    Buffer<T> packed(exec_, n_blocks * width * kBlockRows);
    pack_transposed(exec_, band_, bias_, 0, n_blocks, width, packed.get());
    sum_dw(l_.tasks, pieces, [&](int64_t begin, int64_t end, T* dw) {
      Buffer<T> keys(exec_, l_.strip_tiles * key_panel_),
          rows(exec_, l_.strip_tiles * row_step_);
      const Panel<T> key_panel{keys.get(), nullptr, nullptr, key_panel_},
          row_panel = rows_panel(rows.get());
      for (int64_t task = begin; task < end; ++task) {
        const Strip<T> strip = l_.strip(p_, task);
        const int64_t at = l_.key_offset(task);
        pack_panels(task, key_panel, row_panel);
        band_kernels<T>().backward(band_, 0, n_blocks, strip, key_panel,
                                   row_panel, packed.get(), width,
                                   grad_.dk + at, grad_.dv + at);
        for (int64_t s = 0; s < pieces; ++s) {
          with_piece(s, [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
            band_kernels<T>().dw(band_, t0, t1, j0, j1, strip.tiles(),
                                 keys.get(), key_panel_, rows.get(), row_step_,
                                 dw + s * piece(), j1 - j0);
          });
        }
      }
    });
  }

  /// Sets dw_, `pieces` pieces of dw, to the sum over [0, n) of what f(begin,
  /// end, dw) adds to them. Each call of f has its own buffer.
  template <class F>
  void sum_dw(int64_t n, int64_t pieces, const F& f) {
    const int64_t size = pieces * piece();
    std::map<int64_t, Buffer<T>> sums;  // by `begin`, for a deterministic
                                        // order
    std::mutex mutex;
    exec_.parallel(n, [&](int64_t begin, int64_t end) {
      Buffer<T> dw(exec_, size);
      std::fill_n(dw.get(), size, T(0));
      f(begin, end, dw.get());
      const std::lock_guard<std::mutex> lock(mutex);
      sums[begin] = std::move(dw);
    });
    dw_ = std::move(sums.begin()->second);
    for (auto part = std::next(sums.begin()); part != sums.end(); ++part) {
      for (int64_t i = 0; i < size; ++i) dw_.get()[i] += part->second.get()[i];
    }
  }

  /// Computes both panels of a task and dq, and flags the rows that need the
  /// log-space path.
  void pack_panels(int64_t task, const Panel<T>& keys, const Panel<T>& rows) {
    const Strip<T> strip = l_.strip(p_, task);
    const int64_t first = l_.first_tile(task), at = l_.row_offset(task);
    int64_t safe[kStrip / kTile];
    band_kernels<T>().pack_keys(band_, strip, keys, safe);
    for (int i = 0; i < strip.tiles(); ++i)
      set_flags(band_.rows, saved_.unsafe, safe[i], flags(first + i));
    const BandGrad<T> g{dy_ + at, saved_.r + at, saved_.den + at,
                        grad_.dq ? grad_.dq + at : nullptr, flags(first)};
    band_kernels<T>().pack_rows(band_, strip, g, rows);
  }

  /// Computes the contributions of the fast rows to dk and dv.
  void keys() {
    const int64_t n_blocks = blocks(band_.keys), width = l_.width(band_.rows),
                  chunk = chunk_blocks(width, n_blocks);
    Buffer<T> packed(exec_, chunk * width * kBlockRows);
    for (int64_t b0 = 0; b0 < n_blocks; b0 += chunk) {
      const int64_t b1 = std::min(b0 + chunk, n_blocks);
      pack_transposed(exec_, band_, bias_, b0, b1, width, packed.get());
      exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t at = l_.key_offset(task), first = l_.first_tile(task);
          band_kernels<T>().backward(band_, b0, b1, l_.strip(p_, task),
                                     keys_panel(first), rows_panel(first),
                                     packed.get(), width, grad_.dk + at,
                                     grad_.dv + at);
        }
      });
    }
  }

  /// Adds the gradients of the log-space rows of a task to dk and dv, and
  /// writes their dq.
  void logspace(int64_t task, LogspaceChannels<T>& channels) {
    const Strip<T> strip = l_.strip(p_, task);
    const int64_t at = l_.row_offset(task), key_at = l_.key_offset(task);
    for (int i = 0; i < strip.tiles(); ++i) {
      const int64_t tile = l_.first_tile(task) + i, c0 = i * kTile;
      const uint8_t* f = flags(tile);
      if (std::find(f, f + band_.rows, 1) == f + band_.rows) continue;
      rows_of_[tile].grow(exec_, band_.rows * kLogSum);
      double* rows = rows_of_[tile].get();
      std::fill_n(rows, band_.rows * kLogSum, 0.);
      channels.load(l_.logspace_source(strip, i));
      channels.sum_keys();
      channels.clear_gradients();
      for_logspace_rows(exec_, l_, bias_, f, 0, band_.rows,
                        [&](int64_t t, const LogspaceBias& w) {
                          double* row = rows + t * kLogSum;
                          channels.row(t, w, row);
                          for (int c = 0; c < strip.lanes(i); ++c) {
                            const int64_t x = t * l_.D + c0 + c;
                            logspace_query_gradient(
                                row, c, dy_[at + x],
                                strip.q ? strip.q + x : nullptr,
                                strip.q ? grad_.dq + at + x : nullptr);
                          }
                          channels.row_gradient(t, w, row, nullptr);
                        });
      channels.add_gradients(rows, grad_.dk + key_at, grad_.dv + key_at);
    }
  }

 public:
  /// Computes dw in pieces of kSub rows, several in parallel, and passes them
  /// to `take` in order.
  void biases() {
    if (!bias_.take) return;
    const bool summed = dw_.get();  // by strips()
    const int64_t batch =
        summed ? subs()
               : std::min(subs(), std::max<int64_t>(1, kDwSize / piece()));
    for (int64_t s0 = 0; s0 < subs(); s0 += batch) {
      const int64_t s1 = std::min(s0 + batch, subs());
      if (!summed) multiply_panels(s0, s1);
      exec_.parallel(s1 - s0, [&](int64_t begin, int64_t end) {
        Buffer<T> w(exec_, piece());
        for (int64_t s = s0 + begin; s < s0 + end; ++s) {
          with_piece(s, [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
            T* dw = dw_.get() + (s - s0) * piece();
            const int64_t ld = j1 - j0;
            bias_.rows(t0, t1, j0, j1, w.get(), ld);
            band_kernels<T>().scale_dw(band_, t0, t1, j0, j1, w.get(), dw, ld);
            logspace_biases(t0, t1, j0, j1, w.get(), dw);
          });
        }
      });
      const auto take = [&](BandSide side) {
        for (int64_t s = s0; s < s1; ++s) {
          with_piece(s, [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
            bias_.take(t0, t1, j0, j1, dw_.get() + (s - s0) * piece(), j1 - j0,
                       side);
          });
        }
      };
      // Many small pieces: one thread per side, rather than all threads per
      // piece.
      if (summed) {
        exec_.parallel(2, [&](int64_t begin, int64_t end) {
          if (begin == 0) take(BandSide::kRows);
          if (end == 2) take(BandSide::kKeys);
        });
      } else {
        take(BandSide::kRows);
        take(BandSide::kKeys);
      }
    }
  }

 private:
  /// Sets dw_ to pieces [s0, s1) of the product of all panels. Processes a few
  /// panels at a time, which stay in the cache for all pieces.
  void multiply_panels(int64_t s0, int64_t s1) {
    constexpr int64_t kFew = 8;
    sum_dw((l_.all_tiles + kFew - 1) / kFew, s1 - s0,
           [&](int64_t begin, int64_t end, T* dw) {
             for (int64_t few = begin * kFew; few < end * kFew; few += kFew) {
               const int64_t n = std::min(kFew, l_.all_tiles - few);
               for (int64_t s = s0; s < s1; ++s) {
                 with_piece(s, [&](int64_t t0, int64_t t1, int64_t j0,
                                   int64_t j1) {
                   band_kernels<T>().dw(
                       band_, t0, t1, j0, j1, n, keys_.get() + few * key_panel_,
                       key_panel_, rows_.get() + few * row_step_, row_step_,
                       dw + (s - s0) * piece(), j1 - j0);
                 });
               }
             }
           });
  }

  /// Adds the contributions of the log-space rows of [t0, t1) to their piece of
  /// dw, which has keys [j0, j1); w is laid out as dw.
  void logspace_biases(int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                       const T* w, T* dw) {
    const int64_t ld = j1 - j0;
    LogspaceChannels<T> channels(exec_, l_.logspace_window());
    Buffer<double> taps, dw_taps;
    for (int64_t task = 0; task < l_.tasks; ++task) {
      const Strip<T> strip = l_.strip(p_, task);
      for (int i = 0; i < strip.tiles(); ++i) {
        const int64_t tile = l_.first_tile(task) + i;
        const uint8_t* f = flags(tile);
        if (!rows_of_[tile].get() || std::find(f + t0, f + t1, 1) == f + t1)
          continue;
        taps.grow(exec_, l_.logspace_window().taps());
        dw_taps.grow(exec_, l_.logspace_window().taps());
        int64_t first = t0, last = t1 - 1;
        while (!f[first]) ++first;
        while (!f[last]) --last;
        channels.load(l_.logspace_source(strip, i), band_.key_begin(first),
                      band_.key_end(last + 1));
        for (int64_t t = first; t <= last; ++t) {
          const int64_t begin = band_.key_begin(t), end = band_.key_end(t + 1);
          if (!f[t] || begin >= end) continue;
          const int64_t row = (t - t0) * ld - j0;
          double* sums = dw_taps.get() + l_.tap(t, begin);
          l_.taps_of(t, w + (t - t0) * ld, j0, taps.get());
          std::fill_n(sums, end - begin, 0.);
          channels.bias_gradient(t, {taps.get(), false},
                                 rows_of_[tile].get() + t * kLogSum,
                                 dw_taps.get());
          for (int64_t j = begin; j < end; ++j)
            dw[row + j] += static_cast<T>(sums[j - begin]);
        }
      }
    }
  }

  const Exec& exec_;
  const Problem<T>& p_;
  const BandBias<T>& bias_;
  const T* dy_;
  const Saved<T>& saved_;
  const Gradients<T>& grad_;
  const BandTasks<T> l_;
  const Band& band_;
  const int64_t row_panel_, key_panel_, side_, row_step_;
  Buffer<T> keys_, rows_;  // panels of all tiles
  Buffer<T> dw_;           // pieces of dw
  Buffer<uint8_t> flags_;
  std::vector<Buffer<double>>
      rows_of_;  // of tiles with log-space rows: [rows, kLogSum]
};

}  // namespace

template <class T>
void run_band_backward(const Exec& exec, const Problem<T>& p,
                       const BandBias<T>& bias, const T* dy,
                       const Saved<T>& saved, const Gradients<T>& grad) {
  if (nothing(p, grad)) return;
  if (bias.window == 0) {
    run_simple_backward<T>(exec, p, dy, nullptr, grad);
    return;
  }
  Backward<T> pass(exec, p, bias, dy, saved, grad);
  pass.run();
  if (pass.all_fast()) return pass.biases();
  const BandTasks<T> l(exec, p, bias);
  const FiniteInputs<T> finite(exec, p, dy, saved);
  BandMarks<T> marks(exec, l, bias, saved.unsafe);
  if (!finite.changed && !marks.any) return pass.biases();

  GradientOverwrite<T> overwrite(exec, p, l, marks, dy, grad);
  if (bias.take) {
    marks.finite.take = [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                            const T* dw, int64_t ld, BandSide side) {
      std::vector<T> piece(dw, dw + (t1 - t0) * ld);
      overwrite.biases(t0, t1, j0, j1, piece.data(), ld);
      bias.take(t0, t1, j0, j1, piece.data(), ld, side);
    };
  }
  std::vector<uint8_t> unsafe(saved.unsafe, saved.unsafe + p.Tq);
  for (uint8_t& row : unsafe) row &= ~kNonFiniteBias;
  const Saved<T> finite_saved{finite.r.get(), finite.den.get(), unsafe.data()};
  Backward<T> again(exec, finite.problem, marks.finite, finite.dy.get(),
                    finite_saved, grad);
  again.run();
  overwrite.run();
  again.biases();
}

template void run_band_backward(const Exec&, const Problem<float>&,
                                const BandBias<float>&, const float*,
                                const Saved<float>&, const Gradients<float>&);
template void run_band_backward(const Exec&, const Problem<double>&,
                                const BandBias<double>&, const double*,
                                const Saved<double>&, const Gradients<double>&);

}  // namespace aft::kernels
