// AFT-conv backward. Convolving a / den with the transposed window gives dv;
// convolving the sums of a r / den per head gives the rest of dk; correlations
// give dw.
#include <algorithm>
#include <atomic>

#include "aft/kernels/conv_run.h"

namespace aft::kernels {
namespace {

/// The phases of the backward pass.
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
    logspace();
  }
  /// Whether all rows took the fast path, which implies that all inputs and
  /// saved results are finite, except for keys of -infinity and queries.
  bool all_fast() const { return !any_logspace_; }

 private:
  PanelChannels<const T> lanes(const Buffer<T>& x, int64_t b, int64_t c0,
                               int64_t channels) const {
    return conv_.lanes(static_cast<const T*>(x.get()), b, c0, channels);
  }

  /// Computes a = dy gate(q) / den, dq, and c = sum over the head of a r. a is
  /// 0 in rows that take the log-space path: those from safe_ on, and all rows
  /// of a channel with dy beyond FastPathLimits.
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
    any_logspace_ = !safe || *std::min_element(safe_.begin(), safe_.end()) < n_;
    exec_.parallel(B_ * n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* a = a_.get() + i * D_;
        for (int64_t x = 0; any_logspace_ && x < D_; ++x) {
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

  /// Convolves x [B, T, channels] with the transposed window, kPanel channels
  /// at a time, and calls each(b, c0, sums) with sums [T, kPanel].
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

  /// dv = e A, where A is the convolution of a with the transposed window; and
  /// v dv, the first part of dk.
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

  /// dk = sum over the head of v dv - e C, where C is the convolution of c with
  /// the transposed window.
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

  /// sums[tap] of each group of channels = sum over the batch (in order) and t
  /// of rows_t times (e v)_{t + tap}, or e_{t + tap} for heads.
  Buffer<T> correlations(const Buffer<T>& rows, int64_t channels, bool values) {
    const ConvWindow& window = conv_.window;
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
          const PanelChannels<const T> from = lanes(rows, b, c0, channels);
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

  /// Adds the gradients of the log-space path. Each thread processes whole
  /// heads, so that no two threads add to the same element.
  void logspace() {
    if (!any_logspace_) return;
    const int64_t heads = std::max<int64_t>(1, kTile / per_);
    exec_.parallel((H_ + heads - 1) / heads, [&](int64_t begin, int64_t end) {
      LogspaceChannels<T> tile(exec_, conv_.logspace_window());
      std::vector<int64_t> channels;
      for (int64_t h = begin * heads; h < std::min(end * heads, H_);
           h += heads) {
        for (int64_t b = 0; b < B_; ++b) {
          channels.clear();
          for (int64_t c = h * per_; c < std::min(h + heads, H_) * per_; ++c)
            if (safe_[b * D_ + c] < n_) channels.push_back(c);
          const int64_t count = static_cast<int64_t>(channels.size());
          for (int64_t first = 0; first < count; first += kTile) {
            logspace_tile(
                b, channels.data() + first,
                static_cast<int>(std::min<int64_t>(count - first, kTile)),
                tile);
          }
        }
      }
    });
  }

  void logspace_tile(int64_t b, const int64_t* channels, int lanes,
                     LogspaceChannels<T>& tile) {
    const LogspaceSource<T> source = conv_.logspace_source(b, channels, lanes);
    const int64_t size = conv_.window.taps() * kTile;
    const Buffer<double> w(exec_, size), rows(exec_, n_ * kLogSum),
        dw(exec_, bias_.dw ? size : 0);
    conv_.logspace_weights(source, w.get());
    std::fill_n(rows.get(), n_ * kLogSum, 0.);
    if (dw.get()) std::fill_n(dw.get(), size, 0.);
    tile.load(source);
    tile.sum_keys();
    tile.clear_gradients();
    int64_t begin = n_;
    for (int i = 0; i < lanes; ++i)
      begin = std::min(begin, safe_[b * D_ + channels[i]]);
    for (int64_t t = begin; t < n_; ++t) {
      double* row = rows.get() + t * kLogSum;
      tile.row(t, {w.get(), true}, row);
      for (int i = 0; i < lanes; ++i) {
        if (t < safe_[b * D_ + channels[i]]) continue;
        const int64_t at = (b * n_ + t) * D_ + channels[i];
        logspace_query_gradient(row, i, dy_[at], p_.q ? p_.q + at : nullptr,
                                p_.q ? grad_.dq + at : nullptr);
      }
      tile.row_gradient(t, {w.get(), true}, row, dw.get());
    }
    tile.add_gradients(rows.get(), grad_.dk + b * n_ * H_,
                       grad_.dv + b * n_ * D_);
    if (!dw.get()) return;
    conv_.for_taps([&](int64_t tap, int64_t to) {
      for (int i = 0; i < lanes; ++i) {
        bias_.dw[source.key[i] * conv_.kernel_taps + to] +=
            static_cast<T>(dw.get()[tap * kTile + i]);
      }
    });
  }

  const Exec& exec_;
  const Problem<T>& p_;
  const ConvBias<T>& bias_;
  const T* dy_;
  const Saved<T>& saved_;
  const Gradients<T>& grad_;
  const Conv<T> conv_;
  const ConvWindow back_;
  const int64_t n_, B_, D_, H_, per_;
  Buffer<T> e_, a_, c_, vdv_;
  std::vector<int64_t> safe_;  // [B, D] rows of the fast path
  bool any_logspace_ = false;
};

/// Overwrites the gradients that depend on a non-finite element. The biases of
/// `conv` are marks. Each thread processes whole heads, as in logspace().
template <class T>
void overwrite(const Conv<T>& conv, const T* dy, const Gradients<T>& grad,
               T* dw) {
  const Problem<T>& p = conv.p;
  const int64_t heads = std::max<int64_t>(1, kTile / conv.per_head);
  const int64_t size = conv.window.taps() * kTile, n = conv.T_, D = conv.D;
  conv.exec.parallel((conv.H + heads - 1) / heads, [&](int64_t begin,
                                                       int64_t end) {
    LogspaceChannels<T> marks(conv.exec, conv.logspace_window());
    const Buffer<double> w(conv.exec, size), rows(conv.exec, n * kLogSum),
        dw_marks(conv.exec, size);
    const int64_t last = std::min(end * heads, conv.H) * conv.per_head;
    for (int64_t c0 = begin * heads * conv.per_head; c0 < last; c0 += kTile) {
      const int lanes = static_cast<int>(std::min<int64_t>(kTile, last - c0));
      for (int64_t b = 0; b < conv.B; ++b) {
        bool any = conv.mark(b, c0, lanes, marks, w.get());
        for (int64_t t = b * n; !any && t < (b + 1) * n; ++t) {
          for (int64_t x = t * D + c0; x < t * D + c0 + lanes; ++x)
            any = any || !std::isfinite(dy[x]) || (p.q && std::isnan(p.q[x]));
        }
        if (!any) continue;
        std::fill_n(dw_marks.get(), size, 0.);
        marks.clear_gradients();
        for (int64_t t = 0; t < n; ++t) {
          double* row = rows.get() + t * kLogSum;
          marks.row(t, {w.get(), true}, row);
          mark_gradients(row, lanes, (b * n + t) * D + c0, dy, p.q, grad.dq);
          if (has_marks(row))
            marks.row_gradient(t, {w.get(), true}, row, dw_marks.get());
        }
        marks.overwrite_gradients(rows.get(), grad.dk + b * n * conv.H,
                                  grad.dv + b * n * D);
        conv.for_taps([&](int64_t tap, int64_t to) {
          for (int i = 0; dw && i < lanes; ++i) {
            const double mark = dw_marks.get()[tap * kTile + i];
            if (std::isnan(mark))
              dw[(c0 + i) / conv.per_head * conv.kernel_taps + to] =
                  static_cast<T>(mark);
          }
        });
      }
    }
  });
}

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
  Backward<T> pass(exec, p, bias, dy, saved, grad);
  pass.run();
  if (pass.all_fast()) return;
  FiniteInputs<T> finite(exec, p, dy, saved);
  const ReplacedBias<T> w(exec, p, bias, finite_exponent<T>, &finite.changed);
  if (!finite.changed) return;
  Backward<T>(exec, finite.problem, w.bias, finite.dy.get(), finite.saved, grad)
      .run();
  const ReplacedBias<T> marks(exec, p, bias, mark_of_exponent<T>,
                              &finite.changed);
  overwrite(Conv<T>(exec, p, marks.bias), dy, grad, bias.dw);
}

template void run_conv_backward(const Exec&, const Problem<float>&,
                                const ConvBias<float>&, const float*,
                                const Saved<float>&, const Gradients<float>&);
template void run_conv_backward(const Exec&, const Problem<double>&,
                                const ConvBias<double>&, const double*,
                                const Saved<double>&, const Gradients<double>&);

}  // namespace aft::kernels
