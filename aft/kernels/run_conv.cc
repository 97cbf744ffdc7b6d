// AFT-conv forward: keys (one for each head) and values (d / h for each head)
// are convolved apart, kPanel channels of a batch row at a time; channels that
// the fast path may not take go through exact.h.
#include <algorithm>

#include "aft/kernels/run_conv-inl.h"

namespace aft::kernels {

template <class T>
void run_conv(const Exec& exec, const Problem<T>& p, const ConvBias<T>& bias,
              T* y, const Saved<T>& saved) {
  if (nothing(p, y)) return;
  const Conv<T> conv(exec, p, bias);
  const Window& window = conv.window;
  const int64_t n = conv.T_;
  Buffer<T> e(exec, conv.B * n * conv.H), den_here;
  if (!saved.den) den_here.grow(exec, conv.B * n * conv.H);
  T* den = saved.den ? saved.den : den_here.get();
  std::vector<int64_t> safe(conv.B * conv.H);
  if (saved.unsafe) std::fill_n(saved.unsafe, conv.B * conv.D, uint8_t{0});

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

  const bool safe_heads = *std::min_element(safe.begin(), safe.end()) >= n;
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
      const bool safe_values = conv.kernel.pack(
          window, conv.lanes(p.v, b, c0, conv.D), e.get() + b * n * conv.H,
          conv.H, index, panel.get());
      conv.kernel.convolve(window, panel.get(), weights.get(), far.get(),
                           out.get());
      conv.kernel.finish(n, out.get(), den + b * n * conv.H, conv.H, index,
                         conv.lanes(p.q, b, c0, conv.D),
                         conv.lanes(y, b, c0, conv.D),
                         conv.lanes(saved.r, b, c0, conv.D));
      if (safe_heads && safe_values) continue;
      for (int64_t c = c0; c < std::min(c0 + kPanel, conv.D); ++c) {
        const int64_t rows = conv.safe_rows(b, c, safe.data());
        if (rows >= n) continue;
        if (saved.unsafe) saved.unsafe[b * conv.D + c] = 1;
        const auto channel = conv.exact(b, c, scratch);
        for (int64_t t = rows; t < n; ++t) {
          const int64_t h = c / conv.per_head, at = (b * n + t) * conv.D + c;
          const LogspaceRow row = channel.forward(
              t, [&](int64_t j) { return conv.exact_bias(h, t, j); });
          y[at] = static_cast<T>(p.q ? row.r * sigmoid(p.q[at]) : row.r);
          if (saved.r) saved.r[at] = static_cast<T>(row.r);
        }
      }
    }
  });
}

template void run_conv(const Exec&, const Problem<float>&,
                       const ConvBias<float>&, float*, const Saved<float>&);
template void run_conv(const Exec&, const Problem<double>&,
                       const ConvBias<double>&, double*, const Saved<double>&);

}  // namespace aft::kernels
