// What the two passes of conv share: the window, exp(w) of a group of channels,
// the keys of the heads, and the channels that take the exact path.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "aft/kernels/kernels.h"
#include "aft/kernels/logspace.h"
#include "aft/kernels/run-inl.h"
#include "aft/kernels/run.h"

namespace aft::kernels {

inline int64_t panels(int64_t channels) {
  return (channels + kPanel - 1) / kPanel;
}

/// The problem with its window, the way from taps of the window to taps of the
/// kernel, and exp(w).
template <class T>
class Conv {
 public:
  Conv(const Exec& exec, const Problem<T>& p, const ConvBias<T>& bias)
      : exec(exec),
        p(p),
        bias(bias),
        B(p.B),
        T_(p.Tk),
        D(p.D),
        H(p.H),
        per_head(p.D / p.H),
        kernel(conv_kernels<T>()) {
    const int64_t *g = bias.grid, *s = bias.kernel;
    centre_[0] = s[0] / 2, centre_[1] = s[1] / 2,
    centre_[2] = p.causal ? s[2] - 1 : s[2] / 2;
    window = {g[0],
              g[1],
              g[2],
              std::min(centre_[0], g[0] - 1),
              std::min(centre_[1], g[1] - 1),
              -std::min(centre_[2], g[2] - 1),
              p.causal ? 0 : std::min(centre_[2], g[2] - 1),
              !bias.window_only,
              !bias.window_only && !p.causal};
    kernel_taps = s[0] * s[1] * s[2];
    unsafe.assign(H, 0);
    weights = Buffer<T>(exec, H * kernel_taps);
    std::copy(bias.w, bias.w + H * kernel_taps, weights.get());
    for (int64_t i = 0; i < H * kernel_taps; ++i) {
      T& w = weights.get()[i];
      // Taps that never meet a key do not matter, but a hostile value there
      // costs nothing more than the exact path.
      if (!(std::abs(w) <= FastPathLimits<T>::bias))
        unsafe[i / kernel_taps] = 1, w = T(0);
    }
    simple_kernels<T>().exp(weights.get(), weights.get(), H * kernel_taps);
  }

  /// The number, in the kernel, of a tap of the window.
  int64_t kernel_tap(int64_t dz, int64_t dy, int64_t dx) const {
    return ((dz + centre_[0]) * bias.kernel[1] + dy + centre_[1]) *
               bias.kernel[2] +
           dx + centre_[2];
  }
  template <class F>
  void for_taps(const F& f) const {  // f(tap of the window, tap of the kernel)
    int64_t tap = 0;
    for (int64_t z = -window.reach_z; z <= window.reach_z; ++z) {
      for (int64_t y = -window.reach_y; y <= window.reach_y; ++y) {
        for (int64_t x = window.lo; x <= window.hi; ++x)
          f(tap++, kernel_tap(z, y, x));
      }
    }
  }
  /// exp(w) of kPanel channels from c0 on, [taps, kPanel]; channels of heads
  /// where `of_heads`. Transposed: for window.transposed(), whose tap i is the
  /// window's tap taps - 1 - i.
  void tile_weights(int64_t c0, bool of_heads, bool transposed, T* out) const {
    const int64_t n = std::min<int64_t>(kPanel, (of_heads ? H : D) - c0),
                  each = of_heads ? 1 : per_head, taps = window.taps();
    const T* heads[kPanel];
    for (int64_t i = 0; i < n; ++i)
      heads[i] = weights.get() + (c0 + i) / each * kernel_taps;
    for_taps([&](int64_t tap, int64_t from) {
      T* row = out + (transposed ? taps - 1 - tap : tap) * kPanel;
      for (int64_t i = 0; i < n; ++i) row[i] = heads[i][from];
      for (int64_t i = n; i < kPanel; ++i) row[i] = T(0);
    });
  }
  template <class U>
  Lanes<U> lanes(U* x, int64_t b, int64_t c0, int64_t channels) const {
    return {x ? x + b * T_ * channels + c0 : nullptr, channels,
            static_cast<int>(std::min<int64_t>(kPanel, channels - c0))};
  }
  void heads_of(int64_t c0, int64_t* index) const {
    for (int64_t i = 0; i < kPanel; ++i)
      index[i] = std::min(c0 + i, D - 1) / per_head;
  }
  const uint8_t* padded(int64_t b) const {
    return p.padded ? p.padded + b * T_ : nullptr;
  }

  /// e [B, T, H] = exp(k - ref); safe [B, H]: from which row on a head needs
  /// the exact path. Calls each(b, c0, panel).
  template <class F>
  void pack_heads(T* e, int64_t* safe, const F& each) const {
    exec.parallel(B * panels(H), [&](int64_t begin, int64_t end) {
      Buffer<T> panel(exec, window.panel_size());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / panels(H), c0 = i % panels(H) * kPanel;
        int64_t rows[kPanel];
        kernel.pack_keys(window, lanes(p.k, b, c0, H), padded(b), p.causal,
                         bias.window_only, panel.get(), lanes(e, b, c0, H),
                         rows);
        for (int64_t c = 0; c < kPanel && c0 + c < H; ++c)
          safe[b * H + c0 + c] = unsafe[c0 + c] ? 0 : rows[c];
        each(b, c0, panel.get());
      }
    });
  }
  /// From which row on channel c of batch row b needs the exact path: its
  /// head's, or earlier where a value is too large.
  int64_t safe_rows(int64_t b, int64_t c, const int64_t* safe) const {
    int64_t rows = safe[b * H + c / per_head];
    for (int64_t t = 0; t < rows; ++t) {
      if (std::abs(p.v[(b * T_ + t) * D + c]) > FastPathLimits<T>::value &&
          !(p.padded && padded(b)[t])) {
        rows = p.causal ? t : 0;
      }
    }
    return rows;
  }

  /// The tap of the kernel that joins row t and key j, or -1.
  int64_t tap_of(int64_t t, int64_t j) const {
    const int64_t Y = window.Y, X = window.X;
    const int64_t d[3] = {j / (Y * X) - t / (Y * X), j / X % Y - t / X % Y,
                          j % X - t % X};
    for (int i = 0; i < 3; ++i) {
      const int64_t at = d[i] + centre_[i];
      if (at < 0 || at >= bias.kernel[i]) return -1;
    }
    return kernel_tap(d[0], d[1], d[2]);
  }
  /// The bias of row t and key j for the exact path: 0 or -inf outside of the
  /// window.
  double exact_bias(int64_t h, int64_t t, int64_t j) const {
    const int64_t tap = tap_of(t, j);
    if (tap < 0) return bias.window_only ? -INFINITY : 0;
    return bias.w[h * kernel_taps + tap];
  }
  /// 1d windows are bands; on grids the exact path looks at every key.
  Band band() const {
    const bool line = window.Z == 1 && window.Y == 1;
    return {T_, T_,
            line ? (p.causal ? bias.kernel[2] : bias.kernel[2] / 2 + 1) : -1,
            p.causal, bias.window_only};
  }
  LogspaceChannel<T> exact(int64_t b, int64_t c,
                           std::vector<LogSum>& scratch) const {
    scratch.resize(exact_scratch(T_));
    return {band(),
            p.k + b * T_ * H + c / per_head,
            H,
            p.v + b * T_ * D + c,
            D,
            padded(b),
            scratch.data()};
  }

  const Exec& exec;
  const Problem<T>& p;
  const ConvBias<T>& bias;
  const int64_t B, T_, D, H, per_head;
  const ConvKernels<T>& kernel;
  int64_t kernel_taps;
  Window window;
  std::vector<uint8_t> unsafe;  // [H]
  Buffer<T> weights;            // exp(w) [H, kernel taps]

 private:
  int64_t centre_[3];
};

}  // namespace aft::kernels
