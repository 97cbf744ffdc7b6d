// AFT-conv as a whole: keys (one for each head) and values (d / h for each
// head) are convolved apart, kPanel channels of a batch row at a time; channels
// that the fast path may not take go through exact.h.
#include <algorithm>
#include <cmath>

#include "aft/kernels/exact.h"
#include "aft/kernels/kernels.h"
#include "aft/kernels/run-inl.h"
#include "aft/kernels/run.h"

namespace aft::kernels {
namespace {

int64_t panels(int64_t channels) { return (channels + kPanel - 1) / kPanel; }

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
      if (!(std::abs(w) <= Safe<T>::exponent))
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
    const int64_t n = of_heads ? H : D, each = of_heads ? 1 : per_head,
                  taps = window.taps();
    for_taps([&](int64_t tap, int64_t from) {
      T* row = out + (transposed ? taps - 1 - tap : tap) * kPanel;
      for (int64_t i = 0; i < kPanel; ++i) {
        row[i] = c0 + i < n
                     ? weights.get()[(c0 + i) / each * kernel_taps + from]
                     : T(0);
      }
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
      if (std::abs(p.v[(b * T_ + t) * D + c]) > Safe<T>::value &&
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
  ExactChannel<T> exact(int64_t b, int64_t c,
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

}  // namespace

template <class T>
void run_conv(const Exec& exec, const Problem<T>& p, const ConvBias<T>& bias,
              T* y, const Saved<T>& saved) {
  const Conv<T> conv(exec, p, bias);
  const Window& window = conv.window;
  const int64_t n = conv.T_;
  Buffer<T> e(exec, conv.B * n * conv.H), den_here;
  if (!saved.den) den_here.grow(exec, conv.B * n * conv.H);
  T* den = saved.den ? saved.den : den_here.get();
  std::vector<int64_t> safe(conv.B * conv.H);

  conv.pack_heads(
      e.get(), safe.data(), [&](int64_t b, int64_t c0, const T* panel) {
        Buffer<T> weights(exec, window.taps() * kPanel),
            far(exec, window.far_size()), out(exec, n * kPanel);
        conv.tile_weights(c0, true, false, weights.get());
        conv.kernel.convolve(window, panel, weights.get(), far.get(),
                             out.get());
        const Lanes<T> to = conv.lanes(den, b, c0, conv.H);
        for (int64_t t = 0; t < n; ++t)
          std::copy_n(out.get() + t * kPanel, to.lanes, to.at + t * to.stride);
      });

  const int64_t groups = panels(conv.D);
  exec.parallel(conv.B * groups, [&](int64_t begin, int64_t end) {
    Buffer<T> panel(exec, window.panel_size()),
        weights(exec, window.taps() * kPanel), far(exec, window.far_size()),
        out(exec, n * kPanel);
    std::vector<LogSum> scratch;
    int64_t packed = -1;
    // Batch rows inside: the weights of a group of channels are spread once.
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i % conv.B, c0 = i / conv.B * kPanel;
      if (packed != c0)
        conv.tile_weights(packed = c0, false, false, weights.get());
      int64_t index[kPanel];
      conv.heads_of(c0, index);
      conv.kernel.pack(window, conv.lanes(p.v, b, c0, conv.D),
                       e.get() + b * n * conv.H, conv.H, index, panel.get());
      conv.kernel.convolve(window, panel.get(), weights.get(), far.get(),
                           out.get());
      conv.kernel.finish(n, out.get(), den + b * n * conv.H, conv.H, index,
                         conv.lanes(p.q, b, c0, conv.D),
                         conv.lanes(y, b, c0, conv.D),
                         conv.lanes(saved.r, b, c0, conv.D));
      for (int64_t c = c0; c < std::min(c0 + kPanel, conv.D); ++c) {
        const int64_t rows = conv.safe_rows(b, c, safe.data());
        if (rows >= n) continue;
        const auto channel = conv.exact(b, c, scratch);
        for (int64_t t = rows; t < n; ++t) {
          const int64_t h = c / conv.per_head, at = (b * n + t) * conv.D + c;
          const ExactRow row = channel.forward(
              t, [&](int64_t j) { return conv.exact_bias(h, t, j); });
          y[at] = static_cast<T>(p.q ? row.r * sigmoid(p.q[at]) : row.r);
          if (saved.r) saved.r[at] = static_cast<T>(row.r);
        }
      }
    }
  });
}

template <class T>
void run_conv_backward(const Exec& exec, const Problem<T>& p,
                       const ConvBias<T>& bias, const T* dy,
                       const Saved<T>& saved, const Gradients<T>& grad) {
  const Conv<T> conv(exec, p, bias);
  const Window &window = conv.window, back = window.transposed();
  const int64_t n = conv.T_, B = conv.B, D = conv.D, H = conv.H,
                groups = panels(D), per = conv.per_head;
  Buffer<T> e(exec, B * n * H), a(exec, B * n * D), c(exec, B * n * H),
      vda(exec, B * n * D);
  std::vector<int64_t> safe(B * H), safe_c(B * D);
  conv.pack_heads(e.get(), safe.data(), [](int64_t, int64_t, const T*) {});

  // What the fast path takes of each channel. dy beyond Safe: nothing.
  exec.parallel(B * D, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      safe_c[i] = conv.safe_rows(i / D, i % D, safe.data());
  });
  exec.parallel(B, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t i = 0; i < D; ++i) {
          if (!(std::abs(dy[(b * n + t) * D + i]) <= Safe<T>::value))
            safe_c[b * D + i] = 0;
        }
      }
    }
  });
  bool any_exact = false;
  for (int64_t rows : safe_c) any_exact |= rows < n;

  // a = dy gate(q) / den, c = sum over the head of a r, dq.
  exec.parallel(B * n, [&](int64_t begin, int64_t end) {
    Buffer<T> den(exec, D);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / n, t = i % n, at = i * D;
      for (int64_t h = 0; h < H; ++h)
        std::fill_n(den.get() + h * per, per, saved.den[i * H + h]);
      conv.kernel.row(D, p.q ? p.q + at : nullptr, dy + at, saved.r + at,
                      den.get(), a.get() + at,
                      grad.dq ? grad.dq + at : nullptr);
      for (int64_t x = 0; any_exact && x < D; ++x) {
        if (t >= safe_c[b * D + x]) a.get()[at + x] = T(0);
      }
      for (int64_t h = 0; h < H; ++h) {
        T sum = 0;
        for (int64_t x = h * per; x < (h + 1) * per; ++x)
          sum += a.get()[at + x] * saved.r[at + x];
        c.get()[i * H + h] = sum;
      }
    }
  });

  // dv = e A with A = the transposed window over a, and vda = v dv, the first
  // part of dk.
  exec.parallel(B * groups, [&](int64_t begin, int64_t end) {
    Buffer<T> panel(exec, back.panel_size()),
        weights(exec, back.taps() * kPanel), far(exec, back.far_size()),
        out(exec, n * kPanel);
    int64_t packed = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i % B, c0 = i / B * kPanel;
      if (packed != c0)
        conv.tile_weights(packed = c0, false, true, weights.get());
      conv.kernel.pack(back,
                       conv.lanes(static_cast<const T*>(a.get()), b, c0, D),
                       nullptr, 0, nullptr, panel.get());
      conv.kernel.convolve(back, panel.get(), weights.get(), far.get(),
                           out.get());
      for (int64_t t = 0; t < n; ++t) {
        const int64_t at = (b * n + t) * D;
        for (int64_t x = c0; x < std::min(c0 + kPanel, D); ++x) {
          const T et = e.get()[(b * n + t) * H + x / per],
                  g = et * out.get()[t * kPanel + x - c0];
          grad.dv[at + x] = g;
          vda.get()[at + x] = et == T(0) ? T(0) : g * p.v[at + x];
        }
      }
    }
  });
  exec.parallel(B * panels(H), [&](int64_t begin, int64_t end) {
    Buffer<T> panel(exec, back.panel_size()),
        weights(exec, back.taps() * kPanel), far(exec, back.far_size()),
        out(exec, n * kPanel);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / panels(H), c0 = i % panels(H) * kPanel;
      conv.tile_weights(c0, true, true, weights.get());
      conv.kernel.pack(back,
                       conv.lanes(static_cast<const T*>(c.get()), b, c0, H),
                       nullptr, 0, nullptr, panel.get());
      conv.kernel.convolve(back, panel.get(), weights.get(), far.get(),
                           out.get());
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t h = c0; h < std::min(c0 + kPanel, H); ++h) {
          T sum =
              -e.get()[(b * n + t) * H + h] * out.get()[t * kPanel + h - c0];
          const T* row = vda.get() + (b * n + t) * D + h * per;
          for (int64_t x = 0; x < per; ++x) sum += row[x];
          grad.dk[(b * n + t) * H + h] = sum;
        }
      }
    }
  });

  // dw = exp(w) (sum_t a_t (e v)_{t + tap} - sum_t c_t e_{t + tap}), batch rows
  // in order.
  const int64_t taps = window.taps();
  if (bias.dw) {
    Buffer<T> of_channels(exec, groups * taps * kPanel),
        of_heads(exec, panels(H) * taps * kPanel);
    const auto sums = [&](int64_t channels, const T* rows, bool values, T* to) {
      exec.parallel(panels(channels), [&](int64_t begin, int64_t end) {
        Buffer<T> panel(exec, window.panel_size()), flat(exec, n * kPanel);
        for (int64_t g = begin; g < end; ++g) {
          const int64_t c0 = g * kPanel;
          T* sum = to + g * taps * kPanel;
          std::fill_n(sum, taps * kPanel, T(0));
          int64_t index[kPanel];
          conv.heads_of(c0, index);
          for (int64_t b = 0; b < B; ++b) {
            const Lanes<const T> from = conv.lanes(rows, b, c0, channels);
            for (int64_t t = 0; t < n; ++t) {
              for (int x = 0; x < kPanel; ++x) {
                flat.get()[t * kPanel + x] =
                    x < from.lanes ? from.at[t * from.stride + x] : T(0);
              }
            }
            if (values) {
              conv.kernel.pack(window, conv.lanes(p.v, b, c0, D),
                               e.get() + b * n * H, H, index, panel.get());
            } else {
              conv.kernel.pack(
                  window, conv.lanes(static_cast<const T*>(e.get()), b, c0, H),
                  nullptr, 0, nullptr, panel.get());
            }
            conv.kernel.correlate(window, panel.get(), flat.get(), sum);
          }
        }
      });
    };
    sums(D, a.get(), true, of_channels.get());
    sums(H, c.get(), false, of_heads.get());
    std::fill_n(bias.dw, H * conv.kernel_taps, T(0));
    conv.for_taps([&](int64_t tap, int64_t to) {
      const auto at = [&](const Buffer<T>& x, int64_t i) {
        return x.get()[(i / kPanel * taps + tap) * kPanel + i % kPanel];
      };
      for (int64_t h = 0; h < H; ++h) {
        T sum = -at(of_heads, h);
        for (int64_t x = h * per; x < (h + 1) * per; ++x)
          sum += at(of_channels, x);
        bias.dw[h * conv.kernel_taps + to] =
            sum * conv.weights.get()[h * conv.kernel_taps + to];
      }
    });
  }

  // The exact path: one thread a head, so that nothing is added to from two
  // sides.
  if (!any_exact) return;
  exec.parallel(H, [&](int64_t begin, int64_t end) {
    std::vector<LogSum> scratch;
    std::vector<ExactShare> shares(n);
    for (int64_t h = begin; h < end; ++h) {
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t x = h * per; x < (h + 1) * per; ++x) {
          if (safe_c[b * D + x] >= n) continue;
          const auto channel = conv.exact(b, x, scratch);
          const Band band = conv.band();
          std::fill(shares.begin(), shares.end(), ExactShare{0, 0, 0});
          T *dk = grad.dk + b * n * H + h, *dv = grad.dv + b * n * D + x;
          for (int64_t t = safe_c[b * D + x]; t < n; ++t) {
            const auto w = [&](int64_t j) { return conv.exact_bias(h, t, j); };
            const ExactRow row = channel.forward(t, w);
            const int64_t at = (b * n + t) * D + x;
            const double g = dy[at], gate = p.q ? sigmoid(p.q[at]) : 1;
            if (p.q)
              grad.dq[at] = static_cast<T>(
                  g * gate * sigmoid(-static_cast<double>(p.q[at])) * row.r);
            if (!row.any) continue;
            shares[t] = {g * gate, row.lse, row.r};
            channel.backward_window(t, shares[t], w, dk, dv);
            for (int64_t j = band.key_begin(t);
                 bias.dw && j < band.key_end(t + 1); ++j) {
              const int64_t tap = conv.tap_of(t, j);
              if (tap < 0 || (p.padded && conv.padded(b)[j])) continue;
              const double k = p.k[(b * n + j) * H + h],
                           v = p.v[(b * n + j) * D + x];
              bias.dw[h * conv.kernel_taps + tap] += static_cast<T>(
                  shares[t].a * std::exp(k + w(j) - row.lse) * (v - row.r));
            }
          }
          channel.backward_outside(shares.data(), dk, dv);
        }
      }
    }
  });
}

#define AFT_INSTANTIATE(T)                                                   \
  template void run_conv(const Exec&, const Problem<T>&, const ConvBias<T>&, \
                         T*, const Saved<T>&);                               \
  template void run_conv_backward(const Exec&, const Problem<T>&,            \
                                  const ConvBias<T>&, const T*,              \
                                  const Saved<T>&, const Gradients<T>&);
AFT_INSTANTIATE(float)
AFT_INSTANTIATE(double)
#undef AFT_INSTANTIATE

}  // namespace aft::kernels
