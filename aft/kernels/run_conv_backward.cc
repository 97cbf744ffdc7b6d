// AFT-conv backward: the window transposed over a / den gives dv, over the sums
// of a r / den of a head the rest of dk, and correlations give dw.
#include <algorithm>
#include <atomic>

#include "aft/kernels/run_conv-inl.h"

namespace aft::kernels {
namespace {

/// The backward pass, phase by phase.
template <class T>
class Backward {
 public:
  Backward(const Exec& exec, const Problem<T>& p, const ConvBias<T>& bias,
           const T* dy, const Saved<T>& saved, const Gradients<T>& grad)
      : exec_(exec),
        p_(p),
        bias_(bias),
        dy_(dy),
        saved_(saved),
        grad_(grad),
        conv_(exec, p, bias),
        back_(conv_.window.transposed()),
        n_(conv_.T_),
        B_(conv_.B),
        D_(conv_.D),
        H_(conv_.H),
        per_(conv_.per_head),
        e_(exec, B_ * n_ * H_),
        a_(exec, B_ * n_ * D_),
        c_(exec, B_ * n_ * H_),
        vdv_(exec, B_ * n_ * D_),
        safe_(B_ * D_, n_) {}

  void run() {
    std::vector<int64_t> heads(B_ * H_);
    conv_.pack_heads(e_.get(), heads.data(), [](int64_t, int64_t, const T*) {});
    for (int64_t i = 0; i < B_ * D_; ++i) {
      if (!saved_.unsafe || saved_.unsafe[i]) {
        safe_[i] = conv_.safe_rows(i / D_, i % D_, heads.data());
      }
    }
    rows();
    values();
    keys();
    if (bias_.dw) biases();
    exact();
  }

 private:
  Lanes<const T> lanes(const Buffer<T>& x, int64_t b, int64_t c0,
                       int64_t channels) const {
    return conv_.lanes(static_cast<const T*>(x.get()), b, c0, channels);
  }

  /// a = dy gate(q) / den, dq, and c = sum over the head of a r. a is 0 where
  /// the exact path takes over: rows from safe_ on, all where dy is beyond
  /// FastPathLimits.
  void rows() {
    std::atomic<bool> safe{true};
    exec_.parallel(B_ * n_, [&](int64_t begin, int64_t end) {
      Buffer<T> spread(exec_, D_);
      for (int64_t i = begin; i < end; ++i) {
        const T* den = saved_.den + i * H_;
        for (int64_t h = 0; per_ > 1 && h < H_; ++h) {
          std::fill_n(spread.get() + h * per_, per_, den[h]);
        }
        const int64_t at = i * D_;
        if (!conv_.kernel.row(D_, p_.q ? p_.q + at : nullptr, dy_ + at,
                              saved_.r + at, per_ > 1 ? spread.get() : den,
                              a_.get() + at,
                              grad_.dq ? grad_.dq + at : nullptr)) {
          safe = false;
        }
      }
    });
    for (int64_t i = 0; !safe && i < B_ * n_ * D_; ++i) {
      if (!(std::abs(dy_[i]) <= FastPathLimits<T>::value)) {
        safe_[i / (n_ * D_) * D_ + i % D_] = 0;
      }
    }
    any_exact_ = *std::min_element(safe_.begin(), safe_.end()) < n_;
    exec_.parallel(B_ * n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* a = a_.get() + i * D_;
        for (int64_t x = 0; any_exact_ && x < D_; ++x) {
          if (i % n_ >= safe_[i / n_ * D_ + x]) a[x] = T(0);
        }
        const T* r = saved_.r + i * D_;
        T* c = c_.get() + i * H_;
        for (int64_t h = 0; per_ == 1 && h < H_; ++h) c[h] = a[h] * r[h];
        for (int64_t h = 0; per_ > 1 && h < H_; ++h) {
          T sum = 0;
          for (int64_t x = h * per_; x < (h + 1) * per_; ++x)
            sum += a[x] * r[x];
          c[h] = sum;
        }
      }
    });
  }

  /// The window transposed over x [B, T, channels], kPanel channels at a time;
  /// each(b, c0, sums) gets [T, kPanel].
  template <class F>
  void transposed(const Buffer<T>& x, int64_t channels, const F& each) {
    exec_.parallel(B_ * panels(channels), [&](int64_t begin, int64_t end) {
      Buffer<T> panel(exec_, back_.panel_size()),
          weights(exec_, back_.taps() * kPanel), far(exec_, back_.far_size()),
          sums(exec_, n_ * kPanel);
      int64_t spread = -1;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i % B_, c0 = i / B_ * kPanel;
        if (spread != c0) {
          conv_.tile_weights(spread = c0, channels == H_, true, weights.get());
        }
        conv_.kernel.pack(back_, lanes(x, b, c0, channels), nullptr, 0, nullptr,
                          panel.get());
        conv_.kernel.convolve(back_, panel.get(), weights.get(), far.get(),
                              sums.get());
        each(b, c0, sums.get());
      }
    });
  }

  /// dv = e A, A the window transposed over a; and v dv, the first part of dk.
  void values() {
    transposed(a_, D_, [&](int64_t b, int64_t c0, const T* sums) {
      int64_t index[kPanel];
      conv_.heads_of(c0, index);
      conv_.kernel.values(n_, sums, e_.get() + b * n_ * H_, H_, index,
                          conv_.lanes(p_.v, b, c0, D_),
                          conv_.lanes(grad_.dv, b, c0, D_),
                          conv_.lanes(vdv_.get(), b, c0, D_));
    });
  }

  /// dk = sum over the head of v dv - e C, C the window transposed over c.
  void keys() {
    transposed(c_, H_, [&](int64_t b, int64_t c0, const T* sums) {
      const int64_t end = std::min(c0 + kPanel, H_);
      for (int64_t i = b * n_; i < (b + 1) * n_; ++i, sums += kPanel) {
        const T *e = e_.get() + i * H_, *vdv = vdv_.get() + i * D_;
        T* dk = grad_.dk + i * H_;
        for (int64_t h = c0; per_ == 1 && h < end; ++h)
          dk[h] = vdv[h] - e[h] * sums[h - c0];
        for (int64_t h = c0; per_ > 1 && h < end; ++h) {
          T sum = vdv[h * per_];
          for (int64_t x = 1; x < per_; ++x) sum += vdv[h * per_ + x];
          dk[h] = sum - e[h] * sums[h - c0];
        }
      }
    });
  }

  /// sums[tap] of each group of channels = sum over batch and t of rows_t times
  /// (e v)_{t + tap}, or e_{t + tap} for heads; batch rows in order.
  Buffer<T> correlations(const Buffer<T>& rows, int64_t channels, bool values) {
    const Window& window = conv_.window;
    const int64_t size = window.taps() * kPanel;
    Buffer<T> all(exec_, panels(channels) * size);
    exec_.parallel(panels(channels), [&](int64_t begin, int64_t end) {
      Buffer<T> panel(exec_, window.panel_size()), flat(exec_, n_ * kPanel);
      for (int64_t g = begin; g < end; ++g) {
        const int64_t c0 = g * kPanel;
        std::fill_n(all.get() + g * size, size, T(0));
        int64_t index[kPanel];
        conv_.heads_of(c0, index);
        for (int64_t b = 0; b < B_; ++b) {
          const Lanes<const T> from = lanes(rows, b, c0, channels);
          for (int64_t t = 0; t < n_; ++t) {
            T* to = flat.get() + t * kPanel;
            std::copy_n(from.at + t * from.stride, from.lanes, to);
            std::fill(to + from.lanes, to + kPanel, T(0));
          }
          conv_.kernel.pack(
              window,
              values ? conv_.lanes(p_.v, b, c0, D_) : lanes(e_, b, c0, H_),
              values ? e_.get() + b * n_ * H_ : nullptr, H_, index,
              panel.get());
          conv_.kernel.correlate(window, panel.get(), flat.get(),
                                 all.get() + g * size);
        }
      }
    });
    return all;
  }

  /// dw = exp(w) (sum_t a_t (e v)_{t + tap} - sum_t c_t e_{t + tap}).
  void biases() {
    const Buffer<T> of_values = correlations(a_, D_, true);
    const Buffer<T> of_keys = correlations(c_, H_, false);
    std::fill_n(bias_.dw, H_ * conv_.kernel_taps, T(0));
    conv_.for_taps([&](int64_t tap, int64_t to) {
      const auto at = [&](const Buffer<T>& x, int64_t i) {
        return x.get()[(i / kPanel * conv_.window.taps() + tap) * kPanel +
                       i % kPanel];
      };
      for (int64_t h = 0; h < H_; ++h) {
        T sum = -at(of_keys, h);
        for (int64_t x = h * per_; x < (h + 1) * per_; ++x) {
          sum += at(of_values, x);
        }
        const int64_t i = h * conv_.kernel_taps + to;
        bias_.dw[i] = sum * conv_.weights.get()[i];
      }
    });
  }

  /// Adds what the exact path takes; one thread a head, so that nothing is
  /// added to from two sides.
  void exact() {
    if (!any_exact_) return;
    exec_.parallel(H_, [&](int64_t begin, int64_t end) {
      std::vector<LogSum> scratch;
      std::vector<LogspaceShare> shares(n_);
      for (int64_t c = begin * per_; c < end * per_; ++c) {
        for (int64_t b = 0; b < B_; ++b) {
          if (safe_[b * D_ + c] < n_) exact_channel(b, c, scratch, shares);
        }
      }
    });
  }

  void exact_channel(int64_t b, int64_t c, std::vector<LogSum>& scratch,
                     std::vector<LogspaceShare>& shares) {
    const auto channel = conv_.exact(b, c, scratch);
    const Band band = conv_.band();
    const int64_t h = c / per_;
    std::fill(shares.begin(), shares.end(), LogspaceShare{0, 0, 0});
    T *dk = grad_.dk + b * n_ * H_ + h, *dv = grad_.dv + b * n_ * D_ + c;
    for (int64_t t = safe_[b * D_ + c]; t < n_; ++t) {
      const auto w = [&](int64_t j) { return conv_.exact_bias(h, t, j); };
      const LogspaceRow row = channel.forward(t, w);
      const int64_t at = (b * n_ + t) * D_ + c;
      const double q = p_.q ? p_.q[at] : 0, gate = p_.q ? sigmoid(q) : 1;
      if (p_.q) {
        grad_.dq[at] = static_cast<T>(dy_[at] * gate * sigmoid(-q) * row.r);
      }
      if (!row.any) continue;
      shares[t] = {dy_[at] * gate, row.lse, row.r};
      channel.backward_window(t, shares[t], w, dk, dv);
      for (int64_t j = band.key_begin(t); bias_.dw && j < band.key_end(t + 1);
           ++j) {
        const int64_t tap = conv_.tap_of(t, j);
        if (tap < 0 || (p_.padded && conv_.padded(b)[j])) continue;
        const double k = p_.k[(b * n_ + j) * H_ + h];
        const double v = p_.v[(b * n_ + j) * D_ + c];
        bias_.dw[h * conv_.kernel_taps + tap] += static_cast<T>(
            shares[t].a * std::exp(k + w(j) - row.lse) * (v - row.r));
      }
    }
    channel.backward_outside(shares.data(), dk, dv);
  }

  const Exec& exec_;
  const Problem<T>& p_;
  const ConvBias<T>& bias_;
  const T* dy_;
  const Saved<T>& saved_;
  const Gradients<T>& grad_;
  const Conv<T> conv_;
  const Window back_;
  const int64_t n_, B_, D_, H_, per_;
  Buffer<T> e_, a_, c_, vdv_;
  std::vector<int64_t> safe_;  // [B, D] rows of the fast path
  bool any_exact_ = false;
};

}  // namespace

template <class T>
void run_conv_backward(const Exec& exec, const Problem<T>& p,
                       const ConvBias<T>& bias, const T* dy,
                       const Saved<T>& saved, const Gradients<T>& grad) {
  if (nothing(p, grad)) {
    const int64_t* s = bias.kernel;
    if (bias.dw) std::fill_n(bias.dw, p.H * s[0] * s[1] * s[2], T(0));
    return;
  }
  Backward<T>(exec, p, bias, dy, saved, grad).run();
}

template void run_conv_backward(const Exec&, const Problem<float>&,
                                const ConvBias<float>&, const float*,
                                const Saved<float>&, const Gradients<float>&);
template void run_conv_backward(const Exec&, const Problem<double>&,
                                const ConvBias<double>&, const double*,
                                const Saved<double>&, const Gradients<double>&);

}  // namespace aft::kernels
