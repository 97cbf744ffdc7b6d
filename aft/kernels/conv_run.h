// Shared by the two passes of conv: the window, exp(w) of a group of channels,
// the keys of the heads, and the inputs of the log-space path.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "aft/kernels/kernels.h"
#include "aft/kernels/logspace_run.h"
#include "aft/kernels/nonfinite_run.h"
#include "aft/kernels/run.h"
#include "aft/kernels/run_buffers.h"

namespace aft::kernels {

inline int64_t panels(int64_t channels) {
  return (channels + kPanel - 1) / kPanel;
}

/// The kernel with f applied to each element.
template <class T>
struct ReplacedBias {
  ReplacedBias(const Exec& exec, const Problem<T>& p, const ConvBias<T>& from,
               T (*f)(T), bool* changed)
      : w(replaced(exec, from.w,
                   p.H * from.kernel[0] * from.kernel[1] * from.kernel[2], f,
                   changed)),
        bias(from) {
    bias.w = w.get();
  }
  Buffer<T> w;
  ConvBias<T> bias;
};

/// The problem with its window, the mapping from taps of the window to taps of
/// the kernel, and exp(w).
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
      // This includes taps that never meet a key, which only costs time.
      if (!(std::abs(w) <= FastPathLimits<T>::bias))
        unsafe[i / kernel_taps] = 1, w = T(0);
    }
    simple_kernels<T>().exp(weights.get(), weights.get(), H * kernel_taps);
  }

  /// The tap of the kernel for an offset of the window.
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
  /// exp(w) of all panels of channels (of_heads: heads), [panels, taps,
  /// kPanel]. Transposed: for window.transposed(), whose tap i is tap taps - 1
  /// - i of the window.
  Buffer<T> spread_weights(bool of_heads, bool transposed) const {
    const int64_t channels = of_heads ? H : D, each = of_heads ? 1 : per_head,
                  taps = window.taps();
    Buffer<T> all(exec, panels(channels) * taps * kPanel);
    exec.parallel(panels(channels), [&](int64_t begin, int64_t end) {
      for (int64_t c0 = begin * kPanel; c0 < end * kPanel; c0 += kPanel) {
        T* out = all.get() + c0 * taps;
        for (int64_t i = 0; i < kPanel; ++i) {
          const T* head = weights.get() +
                          std::min(c0 + i, channels - 1) / each * kernel_taps;
          for_taps([&](int64_t tap, int64_t from) {
            out[(transposed ? taps - 1 - tap : tap) * kPanel + i] =
                c0 + i < channels ? head[from] : T(0);
          });
        }
      }
    });
    return all;
  }
  template <class U>
  PanelChannels<U> lanes(U* x, int64_t b, int64_t c0, int64_t channels) const {
    return {x ? x + b * T_ * channels + c0 : nullptr, channels,
            static_cast<int>(std::min<int64_t>(kPanel, channels - c0))};
  }
  const uint8_t* padded(int64_t b) const {
    return p.padded ? p.padded + b * T_ : nullptr;
  }

  /// A panel of heads of one batch row, and its channels [begin, end).
  struct Heads {
    int64_t b, h0, begin, end;
    int64_t rows[kPanel];  // first row that needs the log-space path, per head

    bool all_safe(int64_t positions) const {
      return *std::min_element(rows, rows + kPanel) >= positions;
    }
  };
  Heads heads(int64_t b, int64_t panel) const {
    const int64_t h0 = panel * kPanel;
    return {b, h0, h0 * per_head, std::min(h0 + kPanel, H) * per_head, {}};
  }
  /// e [T, kPanel] = exp(k - ref), and its `rows`.
  void pack_keys(Heads& of, T* e) const {
    kernel.pack_keys(window, lanes(p.k, of.b, of.h0, H), padded(of.b), p.causal,
                     bias.window_only, e, of.rows);
    for (int64_t h = of.h0; h < std::min(of.h0 + kPanel, H); ++h)
      if (unsafe[h]) of.rows[h - of.h0] = 0;
  }
  /// The heads of a panel of channels, within their panel of heads; null if
  /// every channel is its own head.
  const int64_t* heads_of(const Heads& of, int64_t c0, int64_t* index) const {
    if (per_head == 1) return nullptr;
    for (int64_t i = 0; i < kPanel; ++i)
      index[i] = std::min(c0 + i, D - 1) / per_head - of.h0;
    return index;
  }
  /// The first row for which channel c needs the log-space path: that of its
  /// head, or an earlier one if a value is too large.
  int64_t safe_rows(const Heads& of, int64_t c) const {
    int64_t rows = of.rows[c / per_head - of.h0];
    for (int64_t t = 0; t < rows; ++t) {
      if (!(std::abs(p.v[(of.b * T_ + t) * D + c]) <=
                FastPathLimits<T>::value ||
            (p.padded && padded(of.b)[t]))) {
        rows = p.causal ? t : 0;
      }
    }
    return rows;
  }

  /// The window in the form that the log-space path uses.
  LogspaceWindow logspace_window() const {
    const ConvWindow& w = window;
    return {w.Z,       w.Y,  w.X,  w.X,      w.reach_z,
            w.reach_y, w.lo, w.hi, w.before, w.after};
  }
  /// At most kTile channels of batch row b, for the log-space path.
  LogspaceSource<T> logspace_source(int64_t b, const int64_t* channels,
                                    int lanes) const {
    LogspaceSource<T> source{
        p.k + b * T_ * H, p.v + b * T_ * D, H, D, padded(b), lanes, {}, {}};
    for (int i = 0; i < lanes; ++i) {
      source.key[i] = channels[i] / per_head;
      source.value[i] = channels[i];
    }
    return source;
  }
  /// w of the heads of the source's channels: [taps of the window, kTile].
  void logspace_weights(const LogspaceSource<T>& source, double* out) const {
    for_taps([&](int64_t tap, int64_t from) {
      for (int i = 0; i < kTile; ++i) {
        out[tap * kTile + i] =
            i < source.lanes ? bias.w[source.key[i] * kernel_taps + from] : 0;
      }
    });
  }

  /// Loads and marks channels [c0, c0 + lanes) of batch row b, and the marks of
  /// their biases; this bias must be marks (nonfinite_run.h). Returns whether
  /// there is any of a non-finite element.
  bool mark(int64_t b, int64_t c0, int lanes, LogspaceChannels<T>& marks,
            double* w) const {
    int64_t channels[kTile];
    for (int i = 0; i < lanes; ++i) channels[i] = c0 + i;
    const LogspaceSource<T> source = logspace_source(b, channels, lanes);
    logspace_weights(source, w);
    marks.load(source);
    const bool any = marks.mark();
    marks.sum_keys();
    const double *begin = w, *end = w + window.taps() * kTile;
    return std::any_of(begin, end, [](double x) { return std::isnan(x); }) ||
           any;
  }

  const Exec& exec;
  const Problem<T>& p;
  const ConvBias<T>& bias;
  const int64_t B, T_, D, H, per_head;
  const ConvKernels<T>& kernel;
  int64_t kernel_taps;
  ConvWindow window;
  std::vector<uint8_t> unsafe;  // [H]
  Buffer<T> weights;            // exp(w) [H, kernel taps]

 private:
  int64_t centre_[3];
};

}  // namespace aft::kernels
