// Descriptions of operators and inputs that both the oracle and the kernels can
// run. Everything that a kernel must not read is NaN: new memory, the biases
// outside of the band, the outputs before they are written.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "aft/kernels/kernels.h"
#include "aft/kernels/reference.h"
#include "aft/kernels/run.h"
#include "tests/cases.h"
#include "tests/kernels/oracle_problem.h"
#include "tests/kernels/targets.h"

namespace aft::kernels {

namespace oracle = aft::reference;
using oracle::Numbers;
using oracle::shape_of;
using testing::Mode;
using testing::Random;
using Data = oracle::OracleProblem;  // inputs and shape

/// simple, full and local (band), or conv, with the biases.
struct Operator {
  enum Kind { kSimple, kBand, kConv };
  Kind kind = kSimple;
  Numbers w;            // band: [Tq, Tk], conv: [H, taps]
  int64_t window = -1;  // band; < 0: full
  bool window_only = false;
  std::vector<int64_t> grid, kernel;  // conv
};

inline Operator simple() { return {}; }
inline Operator local(Numbers w, int64_t window, bool only = false) {
  return {Operator::kBand, std::move(w), window, only, {}, {}};
}
inline Operator full(Numbers w) { return local(std::move(w), -1); }
inline Operator conv(Numbers w, std::vector<int64_t> grid,
                     std::vector<int64_t> kernel, bool only = false) {
  return {Operator::kConv, std::move(w),     -1, only,
          std::move(grid), std::move(kernel)};
}

/// The gradients of k and w are sums that may cancel completely (the softmax of
/// one key is always 1), so their errors are relative to k_scale and w_scale,
/// the magnitude of their summands.
struct Result {
  Numbers y, dq, dk, dv, dw;
  double k_scale = 1, w_scale = 1;
};

inline double largest(const Numbers& x) {
  double most = 0;
  for (double value : x) {
    if (std::abs(value) > most) most = std::abs(value);  // false for NaN
  }
  return most;
}

/// The results of the oracle. dw: as w, empty for simple.
inline Result expected(const Operator& op, const Data& data) {
  const oracle::Shape& s = data.shape;
  Result out{Numbers(data.dy.size()),
             Numbers(data.q.size()),
             Numbers(data.k.size()),
             Numbers(data.v.size()),
             Numbers(op.w.size(), 0.0),
             1,
             1};
  oracle::Bias bias = oracle::simple_bias();
  oracle::BiasGradient gradient;
  if (op.kind == Operator::kConv) {
    const oracle::Grid grid{op.grid, op.kernel, s.causal, op.window_only};
    bias = oracle::conv_bias(op.w.data(), grid);
    gradient = oracle::conv_gradient(out.dw.data(), grid);
  } else if (op.kind == Operator::kBand && op.window < 0) {
    bias = oracle::full_bias(op.w.data(), s.Tk);
    gradient = oracle::full_gradient(out.dw.data(), s.Tk);
  } else if (op.kind == Operator::kBand) {
    bias = oracle::local_bias(op.w.data(), s.Tk, op.window, op.window_only);
    gradient = oracle::local_gradient(out.dw.data(), s.Tk, op.window);
  }
  oracle::forward(s, data.inputs(), bias, out.y.data());
  oracle::backward(s, data.inputs(), bias, data.dy.data(),
                   {data.q.empty() ? nullptr : out.dq.data(), out.dk.data(),
                    out.dv.data(), gradient});
  // dk_j: sum over rows t and the channels of a head of |a_t| p_tj |v_j|.
  Numbers size = data.dy, a_p(data.v.size()), unused(data.k.size());
  for (double& x : size) x = std::abs(x);
  oracle::backward(s, data.inputs(), bias, size.data(),
                   {nullptr, unused.data(), a_p.data(), {}});
  Numbers sums(data.k.size(), 0.0);
  for (size_t i = 0; i < a_p.size(); ++i) {
    if (a_p[i] != 0) sums[i / (s.D / s.H)] += a_p[i] * std::abs(data.v[i]);
  }
  out.k_scale = std::max(1.0, largest(sums));
  out.w_scale = std::max(1.0, largest(data.dy) * largest(data.v));
  return out;
}

/// One thread; memory is filled with NaN and has no slack at the end.
inline Exec poisoned() {
  Exec exec = Exec::serial();
  exec.allocate = [](size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) throw std::bad_alloc();
    std::memset(memory, 0xff, bytes);
    return std::shared_ptr<void>(memory, std::free);
  };
  return exec;
}

template <class T>
std::vector<T> as(const Numbers& x) {
  return {x.begin(), x.end()};
}
template <class T>
std::vector<T> nans(size_t n) {
  return std::vector<T>(n, std::numeric_limits<T>::quiet_NaN());
}

/// Pieces of dense w for the kernels, and the sum of the pieces of dw.
template <class T>
BandBias<T> band_bias(const Operator& op, const oracle::Shape& s,
                      std::vector<T>* dw) {
  BandBias<T> bias;
  bias.window = op.window;
  bias.window_only = op.window_only;
  const auto at = [&op, &s](int64_t t, int64_t j) {
    const bool inside = op.window < 0 || std::abs(t - j) < op.window;
    return inside && (!s.causal || j <= t) ? static_cast<T>(op.w[t * s.Tk + j])
                                           : static_cast<T>(NAN);
  };
  bias.rows = [=](int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* w,
                  int64_t ld) {
    for (int64_t t = t0; t < t1; ++t) {
      for (int64_t j = j0; j < j1; ++j) w[(t - t0) * ld + j - j0] = at(t, j);
    }
  };
  bias.keys = [=](int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* w,
                  int64_t ld) {
    for (int64_t j = j0; j < j1; ++j) {
      for (int64_t t = t0; t < t1; ++t) w[(j - j0) * ld + t - t0] = at(t, j);
    }
  };
  bias.take = [&s, dw](int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                       const T* piece, int64_t ld, BandSide side) {
    if (side != BandSide::kRows) return;
    for (int64_t t = t0; t < t1; ++t) {
      for (int64_t j = j0; j < j1; ++j) {
        (*dw)[t * s.Tk + j] += piece[(t - t0) * ld + j - j0];
      }
    }
  };
  return bias;
}

template <class T>
ConvBias<T> conv_bias(const Operator& op, const T* w, T* dw) {
  ConvBias<T> bias{{1, 1, 1}, {1, 1, 1}, op.window_only, w, dw};
  const size_t first = 3 - op.grid.size();
  for (size_t i = 0; i < op.grid.size(); ++i) {
    bias.grid[first + i] = op.grid[i];
    bias.kernel[first + i] = op.kernel[i];
  }
  return bias;
}

/// Forward and backward by the kernels, in T.
template <class T>
Result run(const Operator& op, const Data& data,
           const Exec& exec = poisoned()) {
  const oracle::Shape& s = data.shape;
  const auto q = as<T>(data.q), k = as<T>(data.k), v = as<T>(data.v),
             dy = as<T>(data.dy), w = as<T>(op.w);
  auto y = nans<T>(dy.size()), dq = nans<T>(q.size()), dk = nans<T>(k.size()),
       dv = nans<T>(v.size()), r = nans<T>(dy.size()),
       den = nans<T>(s.B * s.Tq * s.H), dw = nans<T>(w.size());
  std::vector<uint8_t> unsafe(op.kind == Operator::kConv ? s.B * s.D : s.Tq,
                              77);
  const auto same_bits = [](const std::vector<T>& a, const std::vector<T>& b) {
    return a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  };
  const bool gated = !q.empty();
  const Problem<T> p{s.B,
                     s.Tq,
                     s.Tk,
                     s.D,
                     s.H,
                     s.causal,
                     gated ? q.data() : nullptr,
                     k.data(),
                     v.data(),
                     data.padded.empty() ? nullptr : data.padded.data()};
  const Gradients<T> g{gated ? dq.data() : nullptr, dk.data(), dv.data()};
  if (op.kind == Operator::kSimple) {
    std::vector<T> states(p.B * simple_states(p.Tq) * 3 * p.D);
    run_simple(exec, p, y.data(), states.data());
    // Bit-identical with and without the saved states.
    run_simple_backward<T>(exec, p, dy.data(), nullptr, g);
    const std::vector<T> first_dk = dk, first_dv = dv;
    run_simple_backward<T>(exec, p, dy.data(), states.data(), g);
    EXPECT_TRUE(same_bits(first_dk, dk) && same_bits(first_dv, dv));
  } else if (op.kind == Operator::kBand) {
    std::fill(dw.begin(), dw.end(), T(0));
    const BandBias<T> bias = band_bias<T>(op, s, &dw);
    const Saved<T> saved{r.data(), den.data(), unsafe.data()};
    run_band(exec, p, bias, y.data(), saved);
    run_band_backward(exec, p, bias, dy.data(), saved, g);
  } else {
    const Saved<T> saved{r.data(), den.data(), unsafe.data()};
    const ConvBias<T> bias = conv_bias<T>(op, w.data(), dw.data());
    run_conv(exec, p, bias, y.data(), saved);
    // Bit-identical with and without the flags of unsafe channels.
    run_conv_backward(exec, p, bias, dy.data(), {r.data(), den.data(), nullptr},
                      g);
    const std::vector<T> first_dk = dk, first_dv = dv, first_dw = dw;
    run_conv_backward(exec, p, bias, dy.data(), saved, g);
    EXPECT_TRUE(same_bits(first_dk, dk) && same_bits(first_dv, dv) &&
                same_bits(first_dw, dw));
  }
  const auto numbers = [](const std::vector<T>& x) {
    return Numbers(x.begin(), x.end());
  };
  return {numbers(y), numbers(dq), numbers(dk), numbers(dv), numbers(dw), 1, 1};
}

/// `want` comes from expected().
inline void expect_close(const Result& got, const Result& want,
                         double tolerance) {
  using testing::relative_error;
  EXPECT_LE(relative_error(got.y, want.y), tolerance) << "y";
  EXPECT_LE(relative_error(got.dq, want.dq), tolerance) << "dq";
  EXPECT_LE(relative_error(got.dk, want.dk, want.k_scale), tolerance) << "dk";
  EXPECT_LE(relative_error(got.dv, want.dv), tolerance) << "dv";
  EXPECT_LE(relative_error(got.dw, want.dw, want.w_scale), tolerance) << "dw";
}

/// Outputs are NaN or infinite where the oracle's are; gradients are NaN where
/// the oracle's are not finite. Finite values are compared as in expect_close.
inline void expect_class(const char* name, const Numbers& got,
                         const Numbers& want, double tolerance,
                         bool gradient = false, double floor = 0) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double scale = floor;
  for (double x : want) {
    if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
  }
  int64_t wrong = 0, first = -1;
  for (size_t i = 0; i < want.size(); ++i) {
    // A gate of -inf is exp(-88).
    bool good = std::abs(got[i] - want[i]) <=
                tolerance * scale + std::numeric_limits<float>::min();
    if (!std::isfinite(want[i])) {
      good = gradient || std::isnan(want[i]) ? std::isnan(got[i])
                                             : got[i] == want[i];
    }
    if (!good && wrong++ == 0) first = static_cast<int64_t>(i);
  }
  EXPECT_EQ(wrong, 0) << name << "[" << first << "]: got " << got[first]
                      << ", expected " << want[first];
}

/// The default. With keys of 1e4, double (also in the oracle) rounds k + w to
/// 1e-12, which exp turns into a relative error.
struct Tolerance {
  double of_float = 4e-6, of_double = 1e-13;
};
constexpr Tolerance kHostile{4e-6, 2e-11};

/// Compares the kernels with the oracle in both types: check_here on the
/// current target, check on every target.
inline void check_against(const Result& want, const Operator& op,
                          const Data& data, const Tolerance& tolerance) {
  {
    SCOPED_TRACE("float");
    expect_close(run<float>(op, data), want, tolerance.of_float);
  }
  SCOPED_TRACE("double");
  expect_close(run<double>(op, data), want, tolerance.of_double);
}
inline void check_here(const Operator& op, const Data& data,
                       const Tolerance& tolerance = {}) {
  check_against(expected(op, data), op, data, tolerance);
}
inline void check(const Operator& op, const Data& data,
                  const Tolerance& tolerance = {}) {
  const Result want = expected(op, data);
  for_each_target([&] { check_against(want, op, data, tolerance); });
}

/// Index of the first of n values from `at` on that differs in any bit; -1:
/// none.
inline int64_t first_difference(const Numbers& a, const Numbers& b,
                                size_t at = 0, size_t n = SIZE_MAX) {
  if (n == SIZE_MAX) n = a.size() - at;
  if (a.size() < at + n || b.size() < at + n) return -2;
  for (size_t i = at; i < at + n; ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(double)) != 0) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

inline void expect_identical(const Result& a, const Result& b) {
  EXPECT_EQ(first_difference(a.y, b.y), -1) << "y";
  EXPECT_EQ(first_difference(a.dq, b.dq), -1) << "dq";
  EXPECT_EQ(first_difference(a.dk, b.dk), -1) << "dk";
  EXPECT_EQ(first_difference(a.dv, b.dv), -1) << "dv";
  EXPECT_EQ(first_difference(a.dw, b.dw), -1) << "dw";
}

}  // namespace aft::kernels
