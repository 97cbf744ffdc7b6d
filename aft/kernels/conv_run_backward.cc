// AFT-conv backward. Convolving a / den with the transposed window gives dv;
// convolving the sums of a r / den per head gives the rest of dk; correlations
// give dw.
#include <algorithm>
#include <atomic>

#include "aft/kernels/conv_run.h"

namespace aft::kernels {
namespace {

/// The backward pass: the gradients of the fast path, then those of the
/// log-space path. A task is a few panels of heads with some of the batch rows;
/// as in forward, intermediate results stay in the cache.
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
        weights_size_(back_.taps() * kPanel),
        safe_(B_ * D_, n_) {}

  void run() {
    const Buffer<T> heads = conv_.spread_weights(true, true),
                    values =
                        per_ == 1 ? heads : conv_.spread_weights(false, true);
    const int64_t of_heads = panels(H_);
    // Panels of heads per task, whose rows are neighbours in memory.
    int64_t neighbours = 4;
    const auto groups_of = [&] {
      return (of_heads + neighbours - 1) / neighbours;
    };
    while (neighbours > 1 && groups_of() * B_ < 2 * exec_.threads)
      neighbours /= 2;
    const int64_t groups = groups_of(), parts = std::clamp<int64_t>(
                                            4 * exec_.threads / groups, 1, B_);
    // The sums of dw of the heads, then of their channels.
    sums_size_ = (of_heads + panels(D_)) * weights_size_;
    if (bias_.dw) sums_.grow(exec_, parts * sums_size_);
    exec_.parallel(groups * parts, [&](int64_t begin, int64_t end) {
      Scratch scratch(exec_, n_ * kPanel, back_.far_size());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i / groups, first = i % groups * neighbours,
                      last = std::min(first + neighbours, of_heads);
        T* sums = bias_.dw ? sums_.get() + part * sums_size_ : nullptr;
        for (int64_t panel = first; panel < last; ++panel)
          clear_sums(panel, sums);
        for (int64_t b = part * B_ / parts; b < (part + 1) * B_ / parts; ++b) {
          for (int64_t panel = first; panel < last; ++panel) {
            Next next;
            if (panel + 1 < last || b + 1 < (part + 1) * B_ / parts) {
              next.b = panel + 1 < last ? b : b + 1;
              next.panel = panel + 1 < last ? panel + 1 : first;
            }
            task(b, panel, next, heads.get(), values.get(), scratch, sums);
          }
        }
      }
    });
    if (bias_.dw) biases(parts);
    logspace();
  }
  /// Whether all rows took the fast path, which implies that all inputs and
  /// saved results are finite, except for keys of -infinity and queries.
  bool all_fast() const { return !any_logspace_; }

 private:
  /// Panels [T, kPanel], and the scratch of convolve.
  struct Scratch {
    Scratch(const Exec& exec, int64_t size, int64_t far_size)
        : memory(exec, 8 * size + far_size) {
      T* at = memory.get();
      for (T** x : {&e, &ev, &a, &ar, &c, &vdv, &vdv_of_heads, &sums})
        *x = at, at += size;
      far = at;
    }
    Buffer<T> memory;
    T *e, *ev, *a, *ar, *c, *vdv, *vdv_of_heads, *sums, *far;
  };

  /// The batch row and panel of the next task.
  struct Next {
    int64_t b = -1, panel = 0;
  };
  PanelChannels<const T> inputs(const T* x, int64_t b, int64_t c0,
                                int64_t channels) const {
    return conv_.lanes(x, b, c0, channels);
  }

  /// The channels of a panel of heads, kPanel at a time.
  template <class F>
  void for_channels(int64_t panel, const F& f) const {
    const int64_t end = std::min((panel + 1) * kPanel, H_) * per_;
    for (int64_t c0 = panel * kPanel * per_; c0 < end; c0 += kPanel) f(c0);
  }
  T* head_sums(T* sums, int64_t panel) const {
    return sums + panel * weights_size_;
  }
  T* value_sums(T* sums, int64_t c0) const {
    return sums + (panels(H_) + c0 / kPanel) * weights_size_;
  }
  void clear_sums(int64_t panel, T* sums) const {
    if (!sums) return;
    std::fill_n(head_sums(sums, panel), weights_size_, T(0));
    for_channels(panel, [&](int64_t c0) {
      std::fill_n(value_sums(sums, c0), weights_size_, T(0));
    });
  }

  void row_inputs(int64_t b, int64_t c0, PanelChannels<const T>* of) const {
    of[0] = inputs(p_.q, b, c0, D_);
    of[1] = inputs(dy_, b, c0, D_);
    of[2] = inputs(saved_.r, b, c0, D_);
    of[3] = inputs(grad_.dq, b, c0, D_);
  }

  /// The gradients of one panel of heads and one batch row, with
  ///   a = dy gate(q) / den,  c = sum over the head of a r,
  ///   A, C = a, c convolved with the transposed window:
  ///   dv = e A,  dk = sum over the head of v dv - e C,
  ///   dw = exp(w) (sum_t a_t (e v)_{t + tap} - sum_t c_t e_{t + tap}).
  void task(int64_t b, int64_t panel, const Next& next, const T* head_weights,
            const T* value_weights, const Scratch& s, T* sums) {
    const ConvKernels<T>& kernel = conv_.kernel;
    auto heads = conv_.heads(b, panel);
    conv_.pack_keys(heads, s.e);
    const auto den = inputs(saved_.den, b, heads.h0, H_);
    if (per_ > 1) {
      std::fill_n(s.c, n_ * kPanel, T(0));
      std::fill_n(s.vdv_of_heads, n_ * kPanel, T(0));
    }
    for_channels(panel, [&](int64_t c0) {
      int64_t at[kPanel];
      const int64_t* index = conv_.heads_of(heads, c0, at);
      const auto v = conv_.lanes(p_.v, b, c0, D_);
      const bool safe =
          kernel.rows(n_, inputs(p_.q, b, c0, D_), inputs(dy_, b, c0, D_),
                      inputs(saved_.r, b, c0, D_), den, index, s.a, s.ar,
                      conv_.lanes(grad_.dq, b, c0, D_));
      leave_to_logspace(heads, c0, v.lanes, safe, s);
      NextChannels<T> fetch{
          {inputs(p_.v, b, c0, D_), inputs(grad_.dv, b, c0, D_)}};
      if (c0 + kPanel < heads.end) {
        row_inputs(b, c0 + kPanel, fetch.of + 2);
      } else if (next.b >= 0) {
        fetch.of[2] = inputs(p_.k, next.b, next.panel * kPanel, H_);
        fetch.of[3] = inputs(saved_.den, next.b, next.panel * kPanel, H_);
      }
      kernel.convolve(back_, s.a, value_weights + c0 / kPanel * weights_size_,
                      s.far, s.sums, fetch);
      kernel.values(n_, s.sums, s.e, index, v, conv_.lanes(grad_.dv, b, c0, D_),
                    s.vdv);
      if (sums) {
        kernel.pack_values(n_, v, s.e, index, s.ev);
        kernel.correlate(conv_.window, s.ev, s.a, value_sums(sums, c0));
      }
      if (per_ == 1) return;
      kernel.add_to_heads(n_, v.lanes, s.ar, index, s.c);
      kernel.add_to_heads(n_, v.lanes, s.vdv, index, s.vdv_of_heads);
    });
    const T* c = per_ == 1 ? s.ar : s.c;
    NextChannels<T> fetch{{inputs(grad_.dk, b, heads.h0, H_)}};
    if (next.b >= 0)
      row_inputs(next.b, next.panel * kPanel * per_, fetch.of + 1);
    kernel.convolve(back_, c, head_weights + panel * weights_size_, s.far,
                    s.sums, fetch);
    kernel.keys(n_, per_ == 1 ? s.vdv : s.vdv_of_heads, s.e, s.sums,
                conv_.lanes(grad_.dk, b, heads.h0, H_));
    if (sums) kernel.correlate(conv_.window, s.e, c, head_sums(sums, panel));
  }

  /// Sets safe_ of some channels, and a and a r to 0 in rows that take the
  /// log-space path: those from safe_ on, and all rows of a channel with dy
  /// beyond FastPathLimits. safe: the result of `rows`; if true, dy need not be
  /// examined.
  void leave_to_logspace(const typename Conv<T>::Heads& heads, int64_t c0,
                         int lanes, bool safe, const Scratch& s) {
    for (int64_t c = c0; c < c0 + lanes; ++c) {
      int64_t& rows = safe_[heads.b * D_ + c];
      if (!saved_.unsafe || saved_.unsafe[heads.b * D_ + c])
        rows = conv_.safe_rows(heads, c);
      for (int64_t t = 0; !safe && t < n_; ++t) {
        const T dy = dy_[(heads.b * n_ + t) * D_ + c];
        if (!(std::abs(dy) <= FastPathLimits<T>::value)) rows = 0;
      }
      if (rows < n_) any_logspace_ = true;
      for (int64_t t = rows; t < n_; ++t)
        s.a[t * kPanel + c - c0] = s.ar[t * kPanel + c - c0] = T(0);
    }
    if (!safe) any_logspace_ = true;
  }

  /// dw of the fast path, from the sums of all parts.
  void biases(int64_t parts) {
    std::fill_n(bias_.dw, H_ * conv_.kernel_taps, T(0));
    exec_.parallel(H_, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        conv_.for_taps([&](int64_t tap, int64_t to) {
          T sum = 0;
          for (int64_t part = 0; part < parts; ++part) {
            T* sums = sums_.get() + part * sums_size_ + tap * kPanel;
            sum -= head_sums(sums, h / kPanel)[h % kPanel];
            for (int64_t c = h * per_; c < (h + 1) * per_; ++c)
              sum += value_sums(sums, c)[c % kPanel];
          }
          const int64_t i = h * conv_.kernel_taps + to;
          bias_.dw[i] = sum * conv_.weights.get()[i];
        });
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
  const int64_t n_, B_, D_, H_, per_, weights_size_;
  int64_t sums_size_ = 0;
  Buffer<T> sums_;             // [parts, sums_size_]
  std::vector<int64_t> safe_;  // [B, D] rows of the fast path
  std::atomic<bool> any_logspace_{false};
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
