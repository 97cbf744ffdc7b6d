// AFT-conv forward: keys (one per head) and values (D / H per head) are
// convolved separately, kPanel channels of a batch row at a time. Channels that
// are beyond FastPathLimits take the log-space path.
#include "aft/kernels/conv_run.h"

#include <algorithm>
#include <atomic>
#include <limits>

namespace aft::kernels {
namespace {

/// y and r (may be null) of at most kTile channels of batch row b, channels[i]
/// from row rows[i] on.
template <class T>
void logspace_forward(const Conv<T>& conv, int64_t b, const int64_t* channels,
                      const int64_t* rows, int lanes,
                      LogspaceChannels<T>& logspace, T* y, T* r) {
  const LogspaceSource<T> source = conv.logspace_source(b, channels, lanes);
  const Buffer<double> w(conv.exec, conv.window.taps() * kTile);
  conv.logspace_weights(source, w.get());
  logspace.load(source);
  logspace.sum_keys();
  for (int64_t t = *std::min_element(rows, rows + lanes); t < conv.T_; ++t) {
    alignas(64) double row[kLogSum];
    logspace.row(t, {w.get(), true}, row);
    for (int i = 0; i < lanes; ++i) {
      if (t < rows[i]) continue;
      const int64_t at = (b * conv.T_ + t) * conv.D + channels[i];
      y[at] = logspace_output(row, i, conv.p.q ? conv.p.q + at : nullptr);
      if (r) r[at] = static_cast<T>(row[2 * kTile + i]);
    }
  }
}

/// Returns whether all channels took the fast path, which implies that all
/// keys, values and biases are finite, except for keys of -infinity.
template <class T>
bool forward(const Exec& exec, const Problem<T>& p, const ConvBias<T>& bias,
             T* y, const Saved<T>& saved) {
  const Conv<T> conv(exec, p, bias);
  const ConvWindow& window = conv.window;
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
        const PanelChannels<T> to = conv.lanes(den, b, c0, conv.H);
        for (int64_t t = 0; t < n; ++t)
          std::copy_n(out.get() + t * kPanel, to.lanes, to.at + t * to.stride);
      });

  const bool safe_heads = *std::min_element(safe.begin(), safe.end()) >= n;
  std::atomic<bool> all_fast{safe_heads};
  const int64_t groups = panels(conv.D);
  exec.parallel(conv.B * groups, [&](int64_t begin, int64_t end) {
    Buffer<T> panel(exec, window.panel_size()),
        weights(exec, window.taps() * kPanel), far(exec, window.far_size()),
        out(exec, n * kPanel);
    LogspaceChannels<T> logspace(exec, conv.logspace_window());
    int64_t packed = -1;
    // Batch rows are the inner loop: the weights of a group of channels are
    // expanded once.
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
      all_fast = false;
      int64_t channels[kPanel], rows[kPanel];
      int count = 0;
      for (int64_t c = c0; c < std::min(c0 + kPanel, conv.D); ++c) {
        rows[count] = conv.safe_rows(b, c, safe.data());
        if (rows[count] >= n) continue;
        channels[count++] = c;
        if (saved.unsafe) saved.unsafe[b * conv.D + c] = 1;
      }
      for (int first = 0; first < count; first += kTile) {
        logspace_forward(conv, b, channels + first, rows + first,
                         std::min(count - first, kTile), logspace, y, saved.r);
      }
    }
  });
  return all_fast;
}

/// Overwrites the results that depend on a non-finite element. The biases of
/// `conv` are marks.
template <class T>
void overwrite(const Conv<T>& conv, T* y, const Saved<T>& saved) {
  const int64_t tiles = (conv.D + kTile - 1) / kTile;
  conv.exec.parallel(conv.B * tiles, [&](int64_t begin, int64_t end) {
    LogspaceChannels<T> marks(conv.exec, conv.logspace_window());
    const Buffer<double> w(conv.exec, conv.window.taps() * kTile);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / tiles, c0 = i % tiles * kTile;
      const int lanes = static_cast<int>(std::min<int64_t>(kTile, conv.D - c0));
      if (!conv.mark(b, c0, lanes, marks, w.get())) continue;
      for (int64_t t = b * conv.T_; t < (b + 1) * conv.T_; ++t) {
        alignas(64) double row[kLogSum];
        marks.row(t - b * conv.T_, {w.get(), true}, row);
        for (int64_t c = c0; c < c0 + lanes; ++c) {
          const bool weights =
              overwrite_output(row, static_cast<int>(c - c0), t * conv.D + c,
                               conv.p.q, y, saved.r);
          // Once per head, whose channels may belong to several threads.
          if (weights && saved.den && c % conv.per_head == 0) {
            saved.den[t * conv.H + c / conv.per_head] =
                std::numeric_limits<T>::quiet_NaN();
          }
        }
      }
    }
  });
}

}  // namespace

template <class T>
void run_conv(const Exec& exec, const Problem<T>& p, const ConvBias<T>& bias,
              T* y, const Saved<T>& saved) {
  if (nothing(p, y) || forward(exec, p, bias, y, saved)) return;
  FiniteInputs<T> finite(exec, p);
  const ReplacedBias<T> w(exec, p, bias, finite_exponent<T>, &finite.changed);
  if (!finite.changed) return;
  forward(exec, finite.problem, w.bias, y, saved);
  const ReplacedBias<T> marks(exec, p, bias, mark_of_exponent<T>,
                              &finite.changed);
  overwrite(Conv<T>(exec, p, marks.bias), y, saved);
}

template void run_conv(const Exec&, const Problem<float>&,
                       const ConvBias<float>&, float*, const Saved<float>&);
template void run_conv(const Exec&, const Problem<double>&,
                       const ConvBias<double>&, double*, const Saved<double>&);

}  // namespace aft::kernels
