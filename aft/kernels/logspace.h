// The exact path of conv: rows whose exponents are too far apart for products
// of exponentials. One channel at a time, in double, every exponent taken
// relative to its row's own maximum, the keys outside the window through
// running maxima. Slow beside the SIMD path, still O(window) a row, and right
// for every finite input. That of full and local is exact-inl.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "aft/kernels/kernels.h"

namespace aft::kernels {

/// sum_i exp(x_i) (1, v_i), relative to the largest x_i.
struct LogSum {
  double m = -std::numeric_limits<double>::infinity(), n = 0, d = 0;

  void add(double x, double v, double weight = 1) {
    if (!(x > -std::numeric_limits<double>::infinity())) return;
    if (x > m) {
      const double f = std::exp(m - x);
      n *= f, d *= f, m = x;
    }
    const double e = std::exp(x - m) * weight;
    n += e * v, d += e;
  }
  void add(const LogSum& other) {  // other.n / other.d is its mean
    if (other.d > 0) add(other.m, other.n / other.d, other.d);
  }
};

/// log of the denominator, and num / den; `any` is false for a row with no key.
struct LogspaceRow {
  double lse, r;
  bool any;
};

/// What an exact row hands to its keys: a = dy gate(q), with the row's lse and
/// r. a = 0 for every other row.
struct LogspaceShare {
  double a, lse, r;
};

/// One channel of one batch row. `scratch` holds exact_scratch(keys) numbers.
constexpr int64_t exact_scratch(int64_t keys) { return 2 * (keys + 1); }
template <class T>
class LogspaceChannel {
 public:
  LogspaceChannel(const Band& band, const T* k, int64_t k_stride, const T* v,
                  int64_t v_stride, const uint8_t* padded, LogSum* scratch)
      : band_(band),
        k_(k),
        v_(v),
        k_stride_(k_stride),
        v_stride_(v_stride),
        padded_(padded),
        before_(band.window >= 0 && !band.window_only ? scratch : nullptr),
        after_(before_ && !band.causal ? scratch + band.keys + 1 : nullptr) {
    if (before_) {
      before_[0] = LogSum();
      for (int64_t j = 0; j < band_.keys; ++j) {
        before_[j + 1] = before_[j];
        if (takes_part(j)) before_[j + 1].add(k_at(j), v_at(j));
      }
    }
    if (after_) {
      after_[band_.keys] = LogSum();
      for (int64_t j = band_.keys - 1; j >= 0; --j) {
        after_[j] = after_[j + 1];
        if (takes_part(j)) after_[j].add(k_at(j), v_at(j));
      }
    }
  }

  /// w(j): the bias of key j, which lies in row t's window; -infinity leaves it
  /// out.
  template <class W>
  LogspaceRow forward(int64_t t, const W& w) const {
    LogSum sum;
    const int64_t lo = band_.key_begin(t), hi = band_.key_end(t + 1);
    if (before_) sum.add(before_[lo]);
    for (int64_t j = lo; j < hi; ++j) {
      if (takes_part(j)) sum.add(k_at(j) + w(j), v_at(j));
    }
    if (after_) sum.add(after_[hi]);
    return {sum.m + std::log(sum.d), sum.d > 0 ? sum.n / sum.d : 0, sum.d > 0};
  }

  /// Adds the share of row t to the keys in its window.
  template <class W>
  void backward_window(int64_t t, const LogspaceShare& s, const W& w, T* dk,
                       T* dv) const {
    for (int64_t j = band_.key_begin(t); j < band_.key_end(t + 1); ++j) {
      if (!takes_part(j)) continue;
      const double ap = s.a * std::exp(k_at(j) + w(j) - s.lse);
      dv[j * v_stride_] += static_cast<T>(ap);
      dk[j * k_stride_] += static_cast<T>(ap * (v_at(j) - s.r));
    }
  }

  /// Adds the shares of all rows to the keys outside of their windows: dv_j +=
  /// exp(k_j) sum_t a_t exp(-lse_t), and so on.
  void backward_outside(const LogspaceShare* shares, T* dk, T* dv) const {
    if (!before_) return;
    double m = -std::numeric_limits<double>::infinity(), a = 0, c = 0;
    const auto add = [&](const LogspaceShare& s) {
      if (s.a == 0) return;
      if (-s.lse > m) {
        const double f = std::exp(m + s.lse);
        a *= f, c *= f, m = -s.lse;
      }
      const double e = s.a * std::exp(-s.lse - m);
      a += e, c += e * s.r;
    };
    const auto give = [&](int64_t j) {
      if (!takes_part(j) || !(m > -std::numeric_limits<double>::infinity()))
        return;
      const double e = std::exp(k_at(j) + m);
      dv[j * v_stride_] += static_cast<T>(e * a);
      dk[j * k_stride_] += static_cast<T>(e * (v_at(j) * a - c));
    };
    for (int64_t j = band_.keys - 1, t = band_.rows - 1; j >= 0; --j) {
      while (t >= 0 && band_.key_begin(t) > j) add(shares[t--]);
      give(j);
    }
    m = -std::numeric_limits<double>::infinity(), a = c = 0;
    for (int64_t j = 0, t = 0; after_ && j < band_.keys; ++j) {
      while (t < band_.rows && band_.key_end(t + 1) <= j) add(shares[t++]);
      give(j);
    }
  }

 private:
  bool takes_part(int64_t j) const { return !(padded_ && padded_[j]); }
  double k_at(int64_t j) const { return k_[j * k_stride_]; }
  double v_at(int64_t j) const { return v_[j * v_stride_]; }

  Band band_;
  const T *k_, *v_;
  int64_t k_stride_, v_stride_;
  const uint8_t* padded_;
  LogSum *before_, *after_;
};

}  // namespace aft::kernels
