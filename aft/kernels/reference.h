// START HERE. The Attention Free Transformer as the paper writes it, in plain
// double loops. Per channel, over all keys j, or j <= t when causal (Eq. 2):
//
//                        sum_j exp(k_j + w_tj) v_j                   num_t
//   y_t = sigmoid(q_t) * -------------------------  = sigmoid(q_t) * -----
//                          sum_j exp(k_j + w_tj)                     den_t
//
// The four variants differ in the position bias w alone:
//   simple  w = 0                                                       (Eq. 5)
//   full    w [Tq, Tk], dense or factorised as u v_pos^T                (Eq. 7)
//   local   w_tj where |t - j| < window, 0 elsewhere                    (Eq. 4)
//   conv    w by position of j relative to t on a grid, per head        (Eq. 6)
// The oracle of every test: correct for every finite input (keys of 1e4, biases
// of +-1e3), O(B Tq Tk D), not optimised. For the fast kernels, see kernels.h.
// Non-finite inputs follow from the formula: a key or bias of -inf masks the
// key, whatever its value and the other term are; all results that depend on a
// NaN, or on a key or bias of +inf, are NaN; an infinite value makes the rows
// that see it infinite, or NaN if they see both signs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace aft::reference {

inline constexpr double kMinusInfinity =
    -std::numeric_limits<double>::infinity();

/// The nonlinearity on the query. kNone: q is ignored, y = num / den.
enum class Gate { kSigmoid, kNone };

/// B rows of Tq queries and Tk keys, D channels, H key channels ("heads"):
/// channel c is in head c / (D / H). H = D in every variant but conv.
struct Shape {
  int64_t B = 1, Tq = 1, Tk = 1, D = 1, H = 1;
  bool causal = false;
  Gate gate = Gate::kSigmoid;
};

/// Row-major and contiguous.
struct Inputs {
  const double* q = nullptr;        ///< [B, Tq, D]; null: as Gate::kNone
  const double* k = nullptr;        ///< [B, Tk, H]
  const double* v = nullptr;        ///< [B, Tk, D]
  const uint8_t* padded = nullptr;  ///< [B, Tk], nonzero: key is masked
};

// ---- The position biases ----------------------------------------------------

/// w_tj of head h; -infinity excludes key j.
using Bias = std::function<double(int64_t t, int64_t j, int64_t h)>;

/// Receives a summand of the gradient of w_tj of head h, one per batch row.
using BiasGradient =
    std::function<void(int64_t t, int64_t j, int64_t h, double dw)>;

inline Bias simple_bias() {
  return [](int64_t, int64_t, int64_t) { return 0.0; };
}

/// full: dense w [Tq, Tk].
inline Bias full_bias(const double* w, int64_t Tk) {
  return [=](int64_t t, int64_t j, int64_t) { return w[t * Tk + j]; };
}

/// local: dense w [Tq, Tk], of which only |t - j| < window is read. Outside the
/// bias is 0, or -infinity with window_only (the paper's ablation).
inline Bias local_bias(const double* w, int64_t Tk, int64_t window,
                       bool window_only) {
  if (window < (window_only ? 1 : 0)) {
    throw std::invalid_argument(
        "aft::reference::local_bias: window must be >= 0, or >= 1 with "
        "window_only, got " +
        std::to_string(window));
  }
  const double outside = window_only ? kMinusInfinity : 0.0;
  return [=](int64_t t, int64_t j, int64_t) {
    return std::abs(t - j) < window ? w[t * Tk + j] : outside;
  };
}

/// conv: the positions are the cells of a grid of 1, 2 or 3 axes in row-major
/// order. Kernel sizes are odd, or any size >= 1 if causal (1 axis only).
struct Grid {
  std::vector<int64_t> size;
  std::vector<int64_t> kernel;
  bool causal = false;
  bool window_only = false;  ///< -infinity outside the window instead of 0
};

/// Number of taps of one head.
inline int64_t conv_taps(const Grid& grid) {
  int64_t taps = 1;
  for (int64_t kernel : grid.kernel) taps *= kernel;
  return taps;
}

/// The flat tap through which t sees j, or -1 if j is outside t's window. On
/// each axis, tap a is position t - kernel / 2 + a (cross-correlation, as torch
/// does it); when causal it is t - (kernel - 1) + a, so that the last tap is t.
inline int64_t conv_tap(const Grid& grid, int64_t t, int64_t j) {
  int64_t tap = 0, stride = 1;
  for (size_t axis = grid.size.size(); axis-- > 0;) {
    const int64_t size = grid.size[axis], kernel = grid.kernel[axis];
    const int64_t centre = grid.causal ? kernel - 1 : kernel / 2;
    const int64_t a = j % size - t % size + centre;
    if (a < 0 || a >= kernel) return -1;
    tap += a * stride;
    stride *= kernel;
    t /= size;
    j /= size;
  }
  return tap;
}

/// conv: w [H, kernel...].
inline Bias conv_bias(const double* w, const Grid& grid) {
  const size_t axes = grid.size.size();
  bool good = axes >= 1 && axes <= (grid.causal ? 1 : 3);
  good = good && grid.kernel.size() == axes;
  for (int64_t size : grid.size) good = good && size >= 1;
  for (int64_t kernel : grid.kernel) {
    good = good && kernel >= 1 && (grid.causal || kernel % 2 == 1);
  }
  if (!good) {
    std::string got = grid.causal ? "causal, sizes" : "sizes";
    for (int64_t size : grid.size) got += " " + std::to_string(size);
    got += ", kernel";
    for (int64_t kernel : grid.kernel) got += " " + std::to_string(kernel);
    throw std::invalid_argument(
        "aft::reference::conv_bias: the grid must have 1, 2 or 3 sizes (1 when "
        "causal) and as many kernel sizes, odd unless causal, got " +
        got);
  }
  const int64_t taps = conv_taps(grid);
  const double outside = grid.window_only ? kMinusInfinity : 0.0;
  return [=](int64_t t, int64_t j, int64_t h) {
    const int64_t tap = conv_tap(grid, t, j);
    return tap < 0 ? outside : w[h * taps + tap];
  };
}

/// Dense w [Tq, Tk] = u [Tq, r] times v_pos [Tk, r] transposed.
inline std::vector<double> factorised(const double* u, const double* v_pos,
                                      int64_t Tq, int64_t Tk, int64_t r) {
  std::vector<double> w(Tq * Tk, 0.0);
  for (int64_t t = 0; t < Tq; ++t) {
    for (int64_t j = 0; j < Tk; ++j) {
      for (int64_t i = 0; i < r; ++i) {
        w[t * Tk + j] += u[t * r + i] * v_pos[j * r + i];
      }
    }
  }
  return w;
}

// ---- Forward and backward ---------------------------------------------------

inline double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

inline void check_heads(int64_t D, int64_t H) {
  if (D >= 1 && H >= 1 && D % H == 0) return;
  throw std::invalid_argument("aft::reference: H must divide D, got H = " +
                              std::to_string(H) + ", D = " + std::to_string(D));
}

/// k + w, or -infinity (masked) if either is.
inline double exponent(double k, double w) {
  return k == kMinusInfinity || w == kMinusInfinity ? kMinusInfinity : k + w;
}

/// x, but never rounded to 0: a NaN or an infinite value has an effect through
/// the smallest weight, too.
inline double not_zero(double x) {
  return std::max(x, std::numeric_limits<double>::denorm_min());
}

/// p_tj = exp(k_j + w_tj) / den_t, j = 0 .. Tk - 1: the weight of each key in
/// the output of position t; 0 for a masked key, and only for those.
/// Subtracting the largest exponent of the row keeps every exp in [0, 1] and
/// their sum in [1, Tk], for keys of any size.
inline std::vector<double> shares(const Shape& s, const Inputs& in,
                                  const Bias& bias, int64_t b, int64_t t,
                                  int64_t h) {
  std::vector<double> p(s.Tk, kMinusInfinity);
  const int64_t end = s.causal ? std::min(t + 1, s.Tk) : s.Tk;
  double largest = kMinusInfinity;
  for (int64_t j = 0; j < end; ++j) {
    if (in.padded != nullptr && in.padded[b * s.Tk + j] != 0) continue;
    p[j] = exponent(in.k[(b * s.Tk + j) * s.H + h], bias(t, j, h));
    largest = std::max(largest, p[j]);  // unchanged by NaN
  }
  double den = 0;
  for (double& x : p) {
    if (x != kMinusInfinity) den += x = std::exp(x - largest);
  }
  for (double& x : p) x = x == kMinusInfinity ? 0 : not_zero(x / den);
  return p;
}

/// r_t = num_t / den_t = sum_j p_tj v_j in channel c.
inline double average(const Shape& s, const Inputs& in,
                      const std::vector<double>& p, int64_t b, int64_t c) {
  double r = 0;
  for (int64_t j = 0; j < s.Tk; ++j) {
    if (p[j] != 0) r += p[j] * in.v[(b * s.Tk + j) * s.D + c];
  }
  return r;
}

/// y [B, Tq, D], overwritten. 0 in rows without any key.
inline void forward(const Shape& s, const Inputs& in, const Bias& bias,
                    double* y) {
  check_heads(s.D, s.H);
  const bool gated = in.q != nullptr && s.gate == Gate::kSigmoid;
  const int64_t per_head = s.D / s.H;
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t t = 0; t < s.Tq; ++t) {
      for (int64_t h = 0; h < s.H; ++h) {
        const std::vector<double> p = shares(s, in, bias, b, t, h);
        for (int64_t c = h * per_head; c < (h + 1) * per_head; ++c) {
          const int64_t at = (b * s.Tq + t) * s.D + c;
          const double r = average(s, in, p, b, c);
          y[at] = gated ? sigmoid(in.q[at]) * r : r;
        }
      }
    }
  }
}

/// dq, dk, dv have the shapes of q, k, v and are overwritten.
struct Gradients {
  double* dq = nullptr;  ///< null if q is
  double* dk = nullptr;
  double* dv = nullptr;
  BiasGradient dw;  ///< empty: not wanted; else one of the makers below
};

/// The gradients of sum(dy * y), dy [B, Tq, D]. With a_t = dy_t sigmoid(q_t):
///   dq_t  = dy_t sigmoid'(q_t) r_t
///   dv_j  = sum_t a_t p_tj
///   dw_tj = sum over the channels of the head of a_t p_tj (v_j - r_t)
///   dk_j  = sum_t dw_tj
inline void backward(const Shape& s, const Inputs& in, const Bias& bias,
                     const double* dy, const Gradients& out) {
  check_heads(s.D, s.H);
  const bool gated = in.q != nullptr && s.gate == Gate::kSigmoid;
  const int64_t per_head = s.D / s.H;
  if (out.dq != nullptr) std::fill_n(out.dq, s.B * s.Tq * s.D, 0.0);
  std::fill_n(out.dk, s.B * s.Tk * s.H, 0.0);
  std::fill_n(out.dv, s.B * s.Tk * s.D, 0.0);
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t t = 0; t < s.Tq; ++t) {
      for (int64_t h = 0; h < s.H; ++h) {
        const std::vector<double> p = shares(s, in, bias, b, t, h);
        std::vector<double> dw(s.Tk, 0.0);
        for (int64_t c = h * per_head; c < (h + 1) * per_head; ++c) {
          const int64_t at = (b * s.Tq + t) * s.D + c;
          const double r = average(s, in, p, b, c);
          const double gate = gated ? sigmoid(in.q[at]) : 1.0;
          // sigmoid(-q), because 1 - sigmoid(q) rounds to 0 for a large q.
          if (gated && out.dq != nullptr) {
            out.dq[at] = dy[at] * gate * sigmoid(-in.q[at]) * r;
          }
          for (int64_t j = 0; j < s.Tk; ++j) {
            if (p[j] == 0) continue;
            const int64_t vj = (b * s.Tk + j) * s.D + c;
            out.dv[vj] += dy[at] * gate * p[j];
            dw[j] += dy[at] * gate * p[j] * (in.v[vj] - r);
          }
        }
        for (int64_t j = 0; j < s.Tk; ++j) {
          if (p[j] == 0) continue;
          out.dk[(b * s.Tk + j) * s.H + h] += dw[j];
          if (out.dw) out.dw(t, j, h, dw[j]);
        }
      }
    }
  }
}

// ---- From dw to gradients of the parameters; these add to their output ------

/// full: dense dw [Tq, Tk].
inline BiasGradient full_gradient(double* dw, int64_t Tk) {
  return [=](int64_t t, int64_t j, int64_t, double g) { dw[t * Tk + j] += g; };
}

/// local: dense dw [Tq, Tk], untouched outside the window.
inline BiasGradient local_gradient(double* dw, int64_t Tk, int64_t window) {
  return [=](int64_t t, int64_t j, int64_t, double g) {
    if (std::abs(t - j) < window) dw[t * Tk + j] += g;
  };
}

/// conv: dw [H, kernel...].
inline BiasGradient conv_gradient(double* dw, const Grid& grid) {
  const int64_t taps = conv_taps(grid);
  return [=](int64_t t, int64_t j, int64_t h, double g) {
    const int64_t tap = conv_tap(grid, t, j);
    if (tap >= 0) dw[h * taps + tap] += g;
  };
}

/// w = u v_pos^T: du = dw v_pos and dv_pos = dw^T u, from dense dw [Tq, Tk].
inline void factorised_backward(const double* dw, const double* u,
                                const double* v_pos, int64_t Tq, int64_t Tk,
                                int64_t r, double* du, double* dv_pos) {
  for (int64_t t = 0; t < Tq; ++t) {
    for (int64_t j = 0; j < Tk; ++j) {
      for (int64_t i = 0; i < r; ++i) {
        du[t * r + i] += dw[t * Tk + j] * v_pos[j * r + i];
        dv_pos[j * r + i] += dw[t * Tk + j] * u[t * r + i];
      }
    }
  }
}

// ---- Step: the causal operator on one sequence, position by position --------

/// Keeps the last `window` keys and values, and of the older ones, whose bias
/// is 0, only m = max k_j, n = sum exp(k_j - m) v_j and d = sum exp(k_j - m).
///   simple                          window = 0
///   local, causal conv of 1 axis    their window; window_only drops the rest
///   full                            window < 0: all keys are kept
struct Stream {
  struct Key {
    std::vector<double> k, v;
  };
  int64_t D, H, window;
  bool window_only;
  Gate gate;
  int64_t length = 0;           // positions seen
  std::vector<double> m, n, d;  // [H], [D], [H]
  std::deque<Key> kept;         // oldest first

  Stream(int64_t channels, int64_t heads, int64_t window_size,
         bool only = false, Gate query_gate = Gate::kSigmoid)
      : D(channels), H(heads), window(window_size) {
    check_heads(D, H);
    window_only = only;
    gate = query_gate;
    m.assign(H, kMinusInfinity);
    n.assign(D, 0.0);
    d.assign(H, 0.0);
  }

  /// One position: q [D] (null: no gate), k [H], v [D] to y [D]. w_t(j, h) is
  /// the bias of position j, counted from 0; it is called only for j in the
  /// window.
  void step(const double* q, const double* k, const double* v,
            const std::function<double(int64_t j, int64_t h)>& w_t, double* y) {
    kept.push_back({{k, k + H}, {v, v + D}});
    ++length;
    if (window >= 0 && static_cast<int64_t>(kept.size()) > window) {
      if (!window_only) add_to_past(kept.front());
      kept.pop_front();
    }
    const int64_t first = length - static_cast<int64_t>(kept.size());
    for (int64_t h = 0; h < H; ++h) {
      double largest = m[h];
      std::vector<double> x(kept.size());  // the exponents in the window
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = exponent(kept[i].k[h], w_t(first + static_cast<int64_t>(i), h));
        largest = std::max(largest, x[i]);
      }
      if (largest == kMinusInfinity) largest = 0;  // no key: den = 0
      for (int64_t c = h * (D / H); c < (h + 1) * (D / H); ++c) {
        const double past = not_zero(std::exp(m[h] - largest));
        double num = n[c] * past, den = d[h] * past;
        for (size_t i = 0; i < x.size(); ++i) {
          if (x[i] == kMinusInfinity) continue;
          const double e = not_zero(std::exp(x[i] - largest));
          num += e * kept[i].v[c];
          den += e;
        }
        y[c] = den == 0 ? 0.0 : num / den;
        if (q != nullptr && gate == Gate::kSigmoid) y[c] *= sigmoid(q[c]);
      }
    }
  }

  void add_to_past(const Key& key) {
    for (int64_t h = 0; h < H; ++h) {
      if (key.k[h] == kMinusInfinity) continue;
      const double larger = std::max(m[h], key.k[h]);
      const double old = not_zero(std::exp(m[h] - larger));
      const double fresh = not_zero(std::exp(key.k[h] - larger));
      m[h] = larger;
      d[h] = d[h] * old + fresh;
      for (int64_t c = h * (D / H); c < (h + 1) * (D / H); ++c) {
        n[c] = n[c] * old + fresh * key.v[c];
      }
    }
  }
};

}  // namespace aft::reference
