// How full, local and conv use the log-space path: one tile of channels of a
// batch row, converted to double, with its buffers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "aft/kernels/logspace.h"
#include "aft/kernels/run_buffers.h"

namespace aft::kernels {

/// Where the keys and values of a tile are: lane i has column key[i] of k and
/// column value[i] of v, i < lanes; other entries are 0.
template <class T>
struct LogspaceSource {
  const T *k, *v;  // rows k_stride and v_stride apart
  int64_t k_stride, v_stride;
  const uint8_t* padded;  // or null
  int lanes;
  int64_t key[kTile], value[kTile];
};

template <class T>
class LogspaceChannels {
 public:
  LogspaceChannels(const Exec& exec, const LogspaceWindow& window)
      : exec_(exec), window_(window) {}

  /// Converts the keys [begin, end), all by default.
  void load(const LogspaceSource<T>& source, int64_t begin = 0,
            int64_t end = std::numeric_limits<int64_t>::max()) {
    source_ = source;
    begin_ = begin, end_ = std::min(end, window_.all_keys());
    keys_.grow(exec_, window_.all_keys() * 2 * kTile);
    tile_ = {keys_.get(), source.padded};
    const auto copy = [&](const T* from, const int64_t* column, double* to) {
      const bool ordered = column[kTile - 1] - column[0] == kTile - 1;
      for (int i = 0; ordered && i < kTile; ++i) to[i] = from[column[0] + i];
      if (ordered) return;
      for (int i = 0; i < kTile; ++i)
        to[i] = i < source.lanes ? from[column[i]] : 0;
    };
    for (int64_t j = begin_; j < end_; ++j) {
      double *key = keys_.get() + j * 2 * kTile, *value = key + kTile;
      if (source.padded && source.padded[j]) {
        std::fill_n(key, kTile, -std::numeric_limits<double>::infinity());
        std::fill_n(value, kTile, 0.);
      } else {
        copy(source.k + j * source.k_stride, source.key, key);
        copy(source.v + j * source.v_stride, source.value, value);
      }
    }
  }

  /// After load: replaces keys and values by marks (nonfinite_run.h): 0, or
  /// -infinity for keys that are masked, NaN for keys that make a weight NaN
  /// and their values, and values that are not finite. Returns whether there
  /// are any of the last two kinds.
  bool mark() {
    constexpr double inf = std::numeric_limits<double>::infinity();
    bool any = false;
    for (int64_t j = begin_; j < end_; ++j) {
      double *key = keys_.get() + j * 2 * kTile, *value = key + kTile;
      for (int i = 0; i < kTile; ++i) {
        const bool masked = key[i] == -inf, known = key[i] < inf;
        if (!known) value[i] = std::numeric_limits<double>::quiet_NaN();
        if (masked || std::isfinite(value[i])) value[i] = 0;
        if (!masked) key[i] = known ? 0 : value[i];
        any = any || !(value[i] == 0);
      }
    }
    return any;
  }
  /// After mark: keeps only the marks of masked keys.
  void keep_masks() {
    for (int64_t j = 0; j < window_.all_keys(); ++j) {
      double *key = keys_.get() + j * 2 * kTile, *value = key + kTile;
      for (int i = 0; i < kTile; ++i) {
        if (!(key[i] < 0)) key[i] = 0;
        value[i] = 0;
      }
    }
  }

  /// After load: the sums over the keys outside of the windows, for row().
  void sum_keys() {
    if (!window_.has_outside()) return;
    outside_.grow(exec_, window_.outside_size());
    logspace_kernels().sum_keys(window_, tile_, outside_.get());
  }
  void row(int64_t t, const LogspaceBias& bias, double* row) const {
    logspace_kernels().row(window_, tile_, t, bias, outside_.get(), row);
  }

  void clear_gradients() {
    grads_.grow(exec_, window_.all_keys() * 2 * kTile);
    std::fill_n(grads_.get(), window_.all_keys() * 2 * kTile, 0.);
  }
  /// Adds the contribution of a row to the gradients of the keys in its window,
  /// and to dw (may be null).
  void row_gradient(int64_t t, const LogspaceBias& bias, const double* row,
                    double* dw) {
    logspace_kernels().row_gradient(window_, tile_, t, bias, row, grads_.get(),
                                    dw);
  }
  /// Adds the contribution of a row to dw only.
  void bias_gradient(int64_t t, const LogspaceBias& bias, const double* row,
                     double* dw) const {
    logspace_kernels().row_gradient(window_, tile_, t, bias, row, nullptr, dw);
  }
  /// Adds the contributions of all rows to the gradients of the keys outside of
  /// their windows; then adds all gradients to dk and dv, which are laid out as
  /// k and v. Overwrites the sums that row() reads.
  void add_gradients(const double* rows, T* dk, T* dv) {
    for_gradients(rows, dk, dv,
                  [](T& to, double grad) { to += static_cast<T>(grad); });
  }
  /// The same with rows of marks: sets those that depend on a non-finite
  /// element to NaN, and leaves the others unchanged.
  void overwrite_gradients(const double* rows, T* dk, T* dv) {
    keep_masks();
    for_gradients(rows, dk, dv, [](T& to, double mark) {
      if (std::isnan(mark)) to = static_cast<T>(mark);
    });
  }

 private:
  template <class F>
  void for_gradients(const double* rows, T* dk, T* dv, const F& f) {
    if (window_.has_outside()) {
      const LogspaceWindow transposed = window_.transposed();
      outside_.grow(exec_, transposed.outside_size());
      logspace_kernels().sum_rows(transposed, rows, outside_.get());
      logspace_kernels().outside_gradient(transposed, tile_, outside_.get(),
                                          grads_.get());
    }
    const double* grad = grads_.get();
    for (int64_t j = 0; j < window_.all_keys(); ++j, grad += 2 * kTile) {
      for (int i = 0; i < source_.lanes; ++i) {
        f(dk[j * source_.k_stride + source_.key[i]], grad[i]);
        f(dv[j * source_.v_stride + source_.value[i]], grad[kTile + i]);
      }
    }
  }

  const Exec& exec_;
  const LogspaceWindow window_;
  int64_t begin_ = 0, end_ = 0;  // keys that are loaded
  LogspaceSource<T> source_{};
  LogspaceTile tile_{};
  Buffer<double> keys_, outside_, grads_;
};

/// y = gate(q) r of lane i of a row; q may be null.
template <class T>
T logspace_output(const double* row, int i, const T* q) {
  const double r = row[2 * kTile + i];
  return static_cast<T>(q ? r * sigmoid(*q) : r);
}

/// Sets a = dy gate(q) of lane i of a row, and dq if q is not null.
template <class T>
void logspace_query_gradient(double* row, int i, T dy, const T* q, T* dq) {
  const double x = q ? *q : 0, gate = q ? sigmoid(x) : 1;
  if (q) *dq = static_cast<T>(dy * gate * sigmoid(-x) * row[2 * kTile + i]);
  const bool any = row[kTile + i] > -std::numeric_limits<double>::infinity();
  row[i] = any ? dy * gate : 0;
}

}  // namespace aft::kernels
