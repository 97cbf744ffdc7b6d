// AFT-conv forward: keys (one per head) and values (D / H per head) are
// convolved separately. A task is a panel of kPanel heads of a batch row, and
// its channels, kPanel at a time: intermediate results stay in the cache.
// Channels that are beyond FastPathLimits take the log-space path.
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
  const int64_t n = conv.T_, H = conv.H, D = conv.D, size = n * kPanel,
                weights_size = window.taps() * kPanel, of_heads = panels(H);
  const Buffer<T> head_weights = conv.spread_weights(true, false),
                  value_weights = conv.per_head == 1
                                      ? head_weights
                                      : conv.spread_weights(false, false);
  if (saved.unsafe) std::fill_n(saved.unsafe, conv.B * D, uint8_t{0});
  std::atomic<bool> all_fast{true};
  // If there are too few panels of heads for all threads, several tasks share
  // one, each with some of its channels. Each of them computes its keys.
  const int64_t tasks = conv.B * of_heads,
                parts = exec.threads == 1
                            ? 1
                            : std::clamp<int64_t>(
                                  (2 * exec.threads + tasks - 1) / tasks, 1,
                                  panels(std::min<int64_t>(H, kPanel) *
                                         conv.per_head));
  // What is read and written next is fetched while a panel is convolved.
  const auto keys_of_task = [&](int64_t i) -> NextChannels<T> {
    const int64_t panel = i / parts % of_heads;
    return {{conv.lanes(p.k, i / parts / of_heads, panel * kPanel, H)}};
  };
  const auto next_channels = [&](int64_t b, int64_t c0) -> NextChannels<T> {
    const T* out = y;
    return {{conv.lanes(p.v, b, c0, D), conv.lanes(p.q, b, c0, D),
             conv.lanes(out, b, c0, D)}};
  };

  exec.parallel(tasks * parts, [&](int64_t begin, int64_t end) {
    Buffer<T> buffer(exec, 4 * size + window.far_size());
    T *e = buffer.get(), *den = e + size, *ev = den + size, *num = ev + size,
      *far = num + size;
    LogspaceChannels<T> logspace(exec, conv.logspace_window());
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i % parts, panel = i / parts % of_heads;
      auto heads = conv.heads(i / parts / of_heads, panel);
      const int64_t b = heads.b, all = panels(heads.end - heads.begin),
                    first = heads.begin + part * all / parts * kPanel,
                    last = heads.begin + (part + 1) * all / parts * kPanel;
      if (first == last && part != 0) continue;
      conv.pack_keys(heads, e);
      conv.kernel.convolve(window, e, head_weights.get() + panel * weights_size,
                           far, den, next_channels(b, first));
      if (saved.den && part == 0) {
        const PanelChannels<T> to = conv.lanes(saved.den, b, heads.h0, H);
        for (int64_t t = 0; t < n; ++t)
          std::copy_n(den + t * kPanel, to.lanes, to.at + t * to.stride);
      }
      const bool safe_heads = heads.all_safe(n);
      for (int64_t c0 = first; c0 < last; c0 += kPanel) {
        int64_t of_head[kPanel];
        const int64_t* index = conv.heads_of(heads, c0, of_head);
        const bool safe_values =
            conv.kernel.pack_values(n, conv.lanes(p.v, b, c0, D), e, index, ev);
        conv.kernel.convolve(window, ev,
                             value_weights.get() + c0 / kPanel * weights_size,
                             far, num,
                             c0 + kPanel < last ? next_channels(b, c0 + kPanel)
                             : i + 1 < end      ? keys_of_task(i + 1)
                                                : NextChannels<T>());
        conv.kernel.finish(n, num, den, index, conv.lanes(p.q, b, c0, D),
                           conv.lanes(y, b, c0, D),
                           conv.lanes(saved.r, b, c0, D));
        if (safe_heads && safe_values) continue;
        all_fast = false;
        int64_t channels[kPanel], rows[kPanel];
        int count = 0;
        for (int64_t c = c0; c < std::min(c0 + kPanel, heads.end); ++c) {
          rows[count] = conv.safe_rows(heads, c);
          if (rows[count] >= n) continue;
          channels[count++] = c;
          if (saved.unsafe) saved.unsafe[b * conv.D + c] = 1;
        }
        for (int from = 0; from < count; from += kTile) {
          logspace_forward(conv, b, channels + from, rows + from,
                           std::min(count - from, kTile), logspace, y, saved.r);
        }
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
