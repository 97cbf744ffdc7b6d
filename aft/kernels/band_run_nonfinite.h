// NaN and infinities in full and local (nonfinite_run.h): the biases, and what
// is overwritten after each pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "aft/kernels/band_run.h"
#include "aft/kernels/nonfinite_run.h"

namespace aft::kernels {

/// The bias with f applied to each element.
template <class T>
BandBias<T> map_bias(const BandBias<T>& bias, T (*f)(T)) {
  const auto apply = [f](int64_t m, int64_t n, T* w, int64_t ld) {
    for (int64_t i = 0; i < m; ++i)
      std::transform(w + i * ld, w + i * ld + n, w + i * ld, f);
  };
  BandBias<T> mapped = bias;
  mapped.rows = [apply, &bias](int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                               T* w, int64_t ld) {
    bias.rows(t0, t1, j0, j1, w, ld);
    apply(t1 - t0, j1 - j0, w, ld);
  };
  mapped.keys = [apply, &bias](int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                               T* w, int64_t ld) {
    bias.keys(t0, t1, j0, j1, w, ld);
    apply(j1 - j0, t1 - t0, w, ld);
  };
  return mapped;
}

/// The bit in Saved::unsafe of rows that have a bias of NaN or +infinity.
inline constexpr uint8_t kNonFiniteBias = 2;

/// Non-finite biases (nonfinite_run.h): the bias without them, its marks, and
/// flags of the rows that have any, which are among the rows with `unsafe` set.
template <class T>
struct BandMarks {
  BandMarks(const Exec& exec, const BandTasks<T>& tasks,
            const BandBias<T>& bias, const uint8_t* unsafe)
      : finite(map_bias(bias, finite_exponent<T>)),
        marks(map_bias(bias, mark_of_exponent<T>)),
        rows(tasks.band.rows, 0),
        all(tasks.band.rows, 1) {
    const Band& band = tasks.band;
    exec.parallel(band.rows, [&](int64_t begin, int64_t end) {
      for_logspace_rows(
          exec, tasks, bias, unsafe, begin, end,
          [&](int64_t t, const LogspaceBias& w) {
            for (int64_t j = band.key_begin(t); j < band.key_end(t + 1); ++j)
              rows[t] |= std::isnan(mark_of_exponent(w.w[tasks.tap(t, j)]));
          });
    });
    any = std::find(rows.begin(), rows.end(), 1) != rows.end();
  }
  BandBias<T> finite, marks;
  std::vector<uint8_t> rows, all;  // all: every row
  bool any = false;
};

/// Overwrites y and what forward saved where they depend on a non-finite
/// element.
template <class T>
void overwrite_results(const Exec& exec, const Problem<T>& p,
                       const BandTasks<T>& l, const BandMarks<T>& bias, T* y,
                       const Saved<T>& saved) {
  exec.parallel(l.tasks, [&](int64_t begin, int64_t end) {
    LogspaceChannels<T> marks(exec, l.logspace_window());
    for (int64_t task = begin; task < end; ++task) {
      const Strip<T> strip = l.strip(p, task);
      for (int i = 0; i < strip.tiles(); ++i) {
        marks.load(l.logspace_source(strip, i));
        const bool any = marks.mark();
        if (!any && !bias.any) continue;
        marks.sum_keys();
        for_logspace_rows(
            exec, l, bias.marks, any ? bias.all.data() : bias.rows.data(), 0,
            l.band.rows, [&](int64_t t, const LogspaceBias& w) {
              alignas(64) double row[kLogSum];
              marks.row(t, w, row);
              const int64_t at = l.row_offset(task) + t * l.D + i * kTile;
              for (int c = 0; c < strip.lanes(i); ++c) {
                if (overwrite_output(row, c, at + c, p.q, y, saved.r) &&
                    saved.den)
                  saved.den[at + c] = std::numeric_limits<T>::quiet_NaN();
              }
            });
      }
    }
  });
}

/// Overwrites the gradients that depend on a non-finite element.
template <class T>
class GradientOverwrite {
 public:
  GradientOverwrite(const Exec& exec, const Problem<T>& p,
                    const BandTasks<T>& l, const BandMarks<T>& bias,
                    const T* dy, const Gradients<T>& grad)
      : exec_(exec),
        p_(p),
        l_(l),
        bias_(bias),
        dy_(dy),
        grad_(grad),
        rows_of_(l.all_tiles) {}

  void run() {
    exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
      LogspaceChannels<T> marks(exec_, l_.logspace_window());
      for (int64_t task = begin; task < end; ++task) {
        const Strip<T> strip = l_.strip(p_, task);
        for (int i = 0; i < strip.tiles(); ++i) tile(task, strip, i, marks);
      }
    });
  }

  /// Overwrites a piece of dw, in the layout of BandBias::take.
  void biases(int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* dw,
              int64_t ld) const {
    LogspaceChannels<T> marks(exec_, l_.logspace_window());
    Buffer<T> w(exec_, (t1 - t0) * ld);
    const int64_t taps_size = l_.logspace_window().taps();
    Buffer<double> taps(exec_, taps_size), sums(exec_, taps_size);
    bias_.marks.rows(t0, t1, j0, j1, w.get(), ld);
    for (int64_t task = 0; task < l_.tasks; ++task) {
      const Strip<T> strip = l_.strip(p_, task);
      for (int i = 0; i < strip.tiles(); ++i) {
        const double* rows = rows_of_[l_.first_tile(task) + i].get();
        bool loaded = false;
        for (int64_t t = t0; rows && t < t1; ++t) {
          const int64_t begin = l_.band.key_begin(t),
                        end = l_.band.key_end(t + 1);
          if (begin >= end || !has_marks(rows + t * kLogSum)) continue;
          if (!loaded) {
            marks.load(l_.logspace_source(strip, i), j0, j1);
            marks.mark();
            loaded = true;
          }
          double* sum = sums.get() + l_.tap(t, begin);
          std::fill_n(sum, end - begin, 0.);
          l_.taps_of(t, w.get() + (t - t0) * ld, j0, taps.get());
          marks.bias_gradient(t, {taps.get(), false}, rows + t * kLogSum,
                              sums.get());
          for (int64_t j = begin; j < end; ++j) {
            if (std::isnan(sum[j - begin]))
              dw[(t - t0) * ld + j - j0] = std::numeric_limits<T>::quiet_NaN();
          }
        }
      }
    }
  }

 private:
  void tile(int64_t task, const Strip<T>& strip, int i,
            LogspaceChannels<T>& marks) {
    const int64_t at = l_.row_offset(task) + i * kTile;
    marks.load(l_.logspace_source(strip, i));
    std::vector<uint8_t> flags = marks.mark() ? bias_.all : bias_.rows;
    for (int64_t t = 0; t < l_.band.rows; ++t) {
      for (int64_t x = at + t * l_.D; x < at + t * l_.D + strip.lanes(i); ++x)
        flags[t] |= !std::isfinite(dy_[x]) || (p_.q && std::isnan(p_.q[x]));
    }
    if (std::find(flags.begin(), flags.end(), 1) == flags.end()) return;
    Buffer<double>& rows = rows_of_[l_.first_tile(task) + i];
    rows.grow(exec_, l_.band.rows * kLogSum);
    std::fill_n(rows.get(), l_.band.rows * kLogSum, 0.);
    marks.sum_keys();
    marks.clear_gradients();
    for_logspace_rows(exec_, l_, bias_.marks, flags.data(), 0, l_.band.rows,
                      [&](int64_t t, const LogspaceBias& w) {
                        double* row = rows.get() + t * kLogSum;
                        marks.row(t, w, row);
                        mark_gradients(row, strip.lanes(i), at + t * l_.D, dy_,
                                       p_.q, grad_.dq);
                        if (has_marks(row))
                          marks.row_gradient(t, w, row, nullptr);
                      });
    const int64_t key_at = l_.key_offset(task);
    marks.overwrite_gradients(rows.get(), grad_.dk + key_at, grad_.dv + key_at);
  }

  const Exec& exec_;
  const Problem<T>& p_;
  const BandTasks<T>& l_;
  const BandMarks<T>& bias_;
  const T* dy_;
  const Gradients<T>& grad_;
  std::vector<Buffer<double>> rows_of_;  // marks of tiles that have any
};

}  // namespace aft::kernels
