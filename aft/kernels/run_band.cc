// AFT-full and AFT-local as a whole: pieces of w are made, packed and
// multiplied, block by block, so that no more than a block of w exists; rows
// that the fast path may not take go through exact.h.
#include <algorithm>
#include <map>
#include <mutex>

#include "aft/kernels/exact.h"
#include "aft/kernels/kernels.h"
#include "aft/kernels/run-inl.h"
#include "aft/kernels/run.h"

namespace aft::kernels {
namespace {

constexpr int64_t kPackedSize = 1 << 18;  // numbers of packed w at a time: 1 MB
                                          // in float, it stays in the cache
constexpr int64_t kSub = 8 * kRows;       // rows of w that are made together

/// A task is a strip: one batch row and a few tiles of its channels. Tiles are
/// numbered through all batch rows, and own their panels and flags.
template <class T>
struct Layout {
  Band band;
  int64_t D, tiles, all_tiles, strip_tiles, strips, tasks;
  bool before, after;

  Layout(const Exec& exec, const Problem<T>& p, const BandBias<T>& bias) {
    const bool everything =
        bias.window < 0 || bias.window >= std::max(p.Tq, p.Tk);
    band = {p.Tq, p.Tk, everything ? -1 : bias.window, p.causal,
            bias.window_only};
    before = !everything && !bias.window_only;
    after = before && !p.causal;
    D = p.D;
    tiles = (D + kTile - 1) / kTile;
    all_tiles = p.B * tiles;
    strip_tiles = kStrip / kTile;
    const auto count = [&] { return (tiles + strip_tiles - 1) / strip_tiles; };
    while (strip_tiles > 1 && p.B * count() < 2 * exec.threads)
      strip_tiles /= 2;
    strips = count();
    tasks = p.B * strips;
  }
  int64_t batch(int64_t task) const { return task / strips; }
  int64_t channel(int64_t task) const {
    return task % strips * strip_tiles * kTile;
  }
  int64_t first_tile(int64_t task) const {
    return batch(task) * tiles + task % strips * strip_tiles;
  }
  int64_t row_offset(int64_t task) const {
    return batch(task) * band.rows * D + channel(task);
  }
  int64_t key_offset(int64_t task) const {
    return batch(task) * band.keys * D + channel(task);
  }
  Strip<T> strip(const Problem<T>& p, int64_t task) const {
    return {p.q ? p.q + row_offset(task) : nullptr,
            p.k + key_offset(task),
            p.v + key_offset(task),
            D,
            std::min(strip_tiles * kTile, D - channel(task)),
            p.padded ? p.padded + batch(task) * band.keys : nullptr};
  }
  /// The most inner items that a block of kRows outer items looks at.
  int64_t width(int64_t inner) const {
    if (band.window < 0) return std::max<int64_t>(inner, 1);
    return std::max<int64_t>(
        std::min(inner,
                 (band.causal ? band.window : 2 * band.window - 1) + kRows - 1),
        1);
  }
};

/// The exact path for one channel of a strip.
template <class T>
ExactChannel<T> exact_channel(const Band& band, const Strip<T>& s, int64_t c,
                              LogSum* scratch) {
  return {band, s.k + c, s.stride, s.v + c, s.stride, s.padded, scratch};
}

/// Calls f(t, w) with the biases of each flagged row of [t0, t1), w(j) for the
/// keys of its window.
template <class T, class F>
void for_exact_rows(const Exec& exec, const Band& band, const BandBias<T>& bias,
                    const uint8_t* flags, int64_t t0, int64_t t1, const F& f) {
  Buffer<T> buffer;
  for (int64_t s = t0; s < t1; s += kSub) {
    const int64_t e = std::min(s + kSub, t1);
    if (std::find(flags + s, flags + e, 1) == flags + e) continue;
    const int64_t lo = band.key_begin(s), hi = std::max(lo, band.key_end(e)),
                  ld = hi - lo;
    buffer.grow(exec, std::max<int64_t>(ld * kSub, 1));
    if (ld > 0) bias.rows(s, e, lo, hi, buffer.get(), ld);
    for (int64_t t = s; t < e; ++t) {
      if (!flags[t]) continue;
      const T* row = buffer.get() + (t - s) * ld - lo;
      f(t, [row](int64_t j) { return static_cast<double>(row[j]); });
    }
  }
}

/// Makes and packs w for blocks [b0, b1) of rows, kSub rows at a time.
template <class T>
void pack(const Exec& exec, const Band& band, const BandBias<T>& bias,
          int64_t b0, int64_t b1, int64_t width, T* packed, uint8_t* unsafe) {
  exec.parallel(
      (b1 - b0 + kSub / kRows - 1) / (kSub / kRows),
      [&](int64_t begin, int64_t end) {
        Buffer<T> raw;
        for (int64_t b = b0 + begin * (kSub / kRows);
             b < std::min(b0 + end * (kSub / kRows), b1); b += kSub / kRows) {
          const int64_t e = std::min(b + kSub / kRows, b1), t0 = b * kRows,
                        t1 = std::min(e * kRows, band.rows);
          const int64_t lo = band.key_begin(t0),
                        hi = std::max(lo, band.key_end(t1)), ld = hi - lo;
          raw.grow(exec, std::max<int64_t>(ld * kSub, 1));
          if (ld > 0) bias.rows(t0, t1, lo, hi, raw.get(), ld);
          band_kernels<T>().pack_weights(
              band, b, e, raw.get(), ld, t0, lo, width,
              packed + (b - b0) * width * kRows, unsafe);
        }
      });
}

template <class T>
void pack_transposed(const Exec& exec, const Band& band,
                     const BandBias<T>& bias, int64_t b0, int64_t b1,
                     int64_t width, T* packed) {
  exec.parallel(
      (b1 - b0 + kSub / kRows - 1) / (kSub / kRows),
      [&](int64_t begin, int64_t end) {
        Buffer<T> raw;
        for (int64_t b = b0 + begin * (kSub / kRows);
             b < std::min(b0 + end * (kSub / kRows), b1); b += kSub / kRows) {
          const int64_t e = std::min(b + kSub / kRows, b1), j0 = b * kRows,
                        j1 = std::min(e * kRows, band.keys);
          const int64_t lo = band.row_begin(j0),
                        hi = std::max(lo, band.row_end(j1)), ld = hi - lo;
          raw.grow(exec, std::max<int64_t>(ld * kSub, 1));
          if (ld > 0) bias.keys(lo, hi, j0, j1, raw.get(), ld);
          band_kernels<T>().pack_weights_transposed(
              band, b, e, raw.get(), ld, lo, j0, width,
              packed + (b - b0) * width * kRows);
        }
      });
}

int64_t chunk_blocks(int64_t width, int64_t n_blocks) {
  const int64_t sub = kSub / kRows,
                n = std::max<int64_t>(kPackedSize / (width * kRows) / sub * sub,
                                      sub);
  return std::min(n, std::max<int64_t>(n_blocks, 1));
}

/// flags[t] = row t needs the exact path; true if any does.
bool set_flags(int64_t rows, const uint8_t* unsafe, int64_t safe_rows,
               uint8_t* flags) {
  bool any = false;
  for (int64_t t = 0; t < rows; ++t)
    any |= flags[t] = (unsafe[t] || t >= safe_rows);
  return any;
}

}  // namespace

template <class T>
void run_band(const Exec& exec, const Problem<T>& p, const BandBias<T>& bias,
              T* y, const Saved<T>& saved) {
  const Layout<T> l(exec, p, bias);
  const Band& band = l.band;
  const int64_t n_blocks = blocks(band.rows), width = l.width(band.keys),
                chunk = chunk_blocks(width, n_blocks);
  const bool once =
      chunk >= n_blocks;  // then panels need not outlive their task
  const int64_t panel_size = band.keys * kPanel, side_size = n_blocks * kPanel;
  const int64_t step =
      panel_size + (l.before ? side_size : 0) + (l.after ? side_size : 0);

  Buffer<T> packed(exec, chunk * width * kRows), panels;
  if (!once) panels.grow(exec, l.all_tiles * step);
  std::vector<int64_t> safe_rows(l.all_tiles);
  std::vector<uint8_t> unsafe_here(saved.unsafe ? 0 : band.rows);
  uint8_t* unsafe = saved.unsafe ? saved.unsafe : unsafe_here.data();

  for (int64_t b0 = 0; b0 < n_blocks; b0 += chunk) {
    const int64_t b1 = std::min(b0 + chunk, n_blocks);
    const int64_t t0 = b0 * kRows, t1 = std::min(b1 * kRows, band.rows);
    pack(exec, band, bias, b0, b1, width, packed.get(), unsafe);
    const bool unsafe_chunk =
        std::find(unsafe + t0, unsafe + t1, 1) != unsafe + t1;
    exec.parallel(l.tasks, [&](int64_t begin, int64_t end) {
      Buffer<T> own;
      if (once) own.grow(exec, l.strip_tiles * step);
      std::vector<uint8_t> flags;
      for (int64_t task = begin; task < end; ++task) {
        const Strip<T> strip = l.strip(p, task);
        const int64_t first = l.first_tile(task), at = l.row_offset(task);
        T* rows = once ? own.get() : panels.get() + first * step;
        const Panel<T> panel{rows, l.before ? rows + panel_size : nullptr,
                             l.after ? rows + panel_size + side_size : nullptr,
                             step};
        int64_t* safe = safe_rows.data() + first;
        if (b0 == 0) band_kernels<T>().pack_keys(band, strip, panel, safe);
        const bool exact =
            unsafe_chunk || *std::min_element(safe, safe + strip.tiles()) < t1;
        if (exact) flags.resize(strip.tiles() * band.rows);
        for (int i = 0; exact && i < strip.tiles(); ++i) {
          set_flags(band.rows, unsafe, safe[i], flags.data() + i * band.rows);
        }
        const BandOut<T> out{y + at, saved.r ? saved.r + at : nullptr,
                             saved.den ? saved.den + at : nullptr,
                             exact ? flags.data() : nullptr};
        band_kernels<T>().forward(band, b0, b1, strip, panel, packed.get(),
                                  width, out);
        if (!exact) continue;
        std::vector<LogSum> scratch(exact_scratch(band.keys));
        for (int64_t c = 0; c < strip.channels; ++c) {
          const uint8_t* f = flags.data() + c / kTile * band.rows;
          if (std::find(f + t0, f + t1, 1) == f + t1) continue;
          const auto channel = exact_channel(band, strip, c, scratch.data());
          for_exact_rows(
              exec, band, bias, f, t0, t1, [&](int64_t t, const auto& w) {
                const ExactRow row = channel.forward(t, w);
                const int64_t i = t * l.D + c;
                out.y[i] = static_cast<T>(strip.q ? row.r * sigmoid(strip.q[i])
                                                  : row.r);
                if (out.r) out.r[i] = static_cast<T>(row.r);
                if (out.den) out.den[i] = T(1);
              });
        }
      }
    });
  }
}

namespace {

/// The backward pass, phase by phase.
template <class T>
class Backward {
 public:
  Backward(const Exec& exec, const Problem<T>& p, const BandBias<T>& bias,
           const T* dy, const Saved<T>& saved, const Gradients<T>& grad)
      : exec_(exec),
        p_(p),
        bias_(bias),
        dy_(dy),
        saved_(saved),
        grad_(grad),
        l_(exec, p, bias),
        band_(l_.band),
        row_panel_(band_.rows * kPanel),
        key_panel_(band_.keys * kPanel),
        side_(blocks(band_.keys) * kPanel),
        row_step_(row_panel_ + side_ * (l_.before + l_.after)),
        flags_(exec, l_.all_tiles * band_.rows),
        shares_(l_.all_tiles) {}

  void run() {
    if (narrow()) {
      strips();
    } else {
      keys_.grow(exec_, l_.all_tiles * key_panel_);
      rows_.grow(exec_, l_.all_tiles * row_step_);
      exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          pack_panels(task, keys_panel(l_.first_tile(task)),
                      rows_panel(l_.first_tile(task)));
        }
      });
      keys();
    }
    exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) exact(task);
    });
    if (bias_.take) biases();
  }

 private:
  uint8_t* flags(int64_t tile) const {
    return flags_.get() + tile * band_.rows;
  }
  Panel<T> keys_panel(int64_t tile) const {
    return {keys_.get() + tile * key_panel_, nullptr, nullptr, key_panel_};
  }
  Panel<T> rows_panel(int64_t tile) const {
    return rows_panel(rows_.get() + tile * row_step_);
  }
  /// Seen from a key: rows after its window exist where keys before a row's
  /// window do, and the other way round.
  Panel<T> rows_panel(T* rows) const {
    return {rows, l_.after ? rows + row_panel_ + side_ : nullptr,
            l_.before ? rows + row_panel_ : nullptr, row_step_};
  }

  /// dw of rows [s * kSub, (s + 1) * kSub) is a piece of kSub times this many
  /// numbers.
  int64_t piece() const { return kSub * (l_.width(band_.keys) + kSub); }
  int64_t subs() const { return (band_.rows + kSub - 1) / kSub; }
  /// f(t0, t1, j0, j1) of piece s, if it has a key.
  template <class F>
  void with_piece(int64_t s, const F& f) const {
    const int64_t t0 = s * kSub, t1 = std::min(t0 + kSub, band_.rows);
    const int64_t j0 = band_.key_begin(t0), j1 = band_.key_end(t1);
    if (j0 < j1) f(t0, t1, j0, j1);
  }

  /// Whether all weights, and for each thread all of dw, fit the cache: then
  /// panels need not outlive their strip.
  bool narrow() const {
    const int64_t n_blocks = blocks(band_.keys);
    return chunk_blocks(l_.width(band_.rows), n_blocks) >= n_blocks &&
           subs() * piece() <= kPackedSize;
  }

  /// The narrow case: each strip from its panels to its gradients, and its
  /// share of dw to the thread's sum.
  void strips() {
    const int64_t n_blocks = blocks(band_.keys), width = l_.width(band_.rows),
                  dw_size = subs() * piece();
    Buffer<T> packed(exec_, n_blocks * width * kRows);
    pack_transposed(exec_, band_, bias_, 0, n_blocks, width, packed.get());
    std::map<int64_t, Buffer<T>> sums;  // by the first task of the thread, so
                                        // that their order is always the same
    std::mutex mutex;
    exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
      Buffer<T> keys(exec_, l_.strip_tiles * key_panel_),
          rows(exec_, l_.strip_tiles * row_step_);
      Buffer<T> dw(exec_, bias_.take ? dw_size : 0);
      if (bias_.take) std::fill_n(dw.get(), dw_size, T(0));
      const Panel<T> key_panel{keys.get(), nullptr, nullptr, key_panel_},
          row_panel = rows_panel(rows.get());
      for (int64_t task = begin; task < end; ++task) {
        const Strip<T> strip = l_.strip(p_, task);
        const int64_t at = l_.key_offset(task);
        pack_panels(task, key_panel, row_panel);
        band_kernels<T>().backward(band_, 0, n_blocks, strip, key_panel,
                                   row_panel, packed.get(), width,
                                   grad_.dk + at, grad_.dv + at);
        for (int64_t s = 0; bias_.take && s < subs(); ++s) {
          with_piece(s, [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
            band_kernels<T>().dw(band_, t0, t1, j0, j1, strip.tiles(),
                                 keys.get(), key_panel_, rows.get(), row_step_,
                                 dw.get() + s * piece(), j1 - j0);
          });
        }
      }
      const std::lock_guard<std::mutex> lock(mutex);
      sums[begin] = std::move(dw);
    });
    if (!bias_.take) return;
    for (auto& part : sums) {
      if (!dw_.get()) {
        dw_ = std::move(part.second);
        continue;
      }
      for (int64_t i = 0; i < dw_size; ++i)
        dw_.get()[i] += part.second.get()[i];
    }
  }

  /// Both panels of a task, dq, and which rows need the exact path.
  void pack_panels(int64_t task, const Panel<T>& keys, const Panel<T>& rows) {
    const Strip<T> strip = l_.strip(p_, task);
    const int64_t first = l_.first_tile(task), at = l_.row_offset(task);
    int64_t safe[kStrip / kTile];
    band_kernels<T>().pack_keys(band_, strip, keys, safe);
    for (int i = 0; i < strip.tiles(); ++i)
      set_flags(band_.rows, saved_.unsafe, safe[i], flags(first + i));
    const BandGrad<T> g{dy_ + at, saved_.r + at, saved_.den + at,
                        grad_.dq ? grad_.dq + at : nullptr, flags(first)};
    band_kernels<T>().pack_rows(band_, strip, g, rows);
  }

  /// dk and dv of the fast rows.
  void keys() {
    const int64_t n_blocks = blocks(band_.keys), width = l_.width(band_.rows),
                  chunk = chunk_blocks(width, n_blocks);
    Buffer<T> packed(exec_, chunk * width * kRows);
    for (int64_t b0 = 0; b0 < n_blocks; b0 += chunk) {
      const int64_t b1 = std::min(b0 + chunk, n_blocks);
      pack_transposed(exec_, band_, bias_, b0, b1, width, packed.get());
      exec_.parallel(l_.tasks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t at = l_.key_offset(task), first = l_.first_tile(task);
          band_kernels<T>().backward(band_, b0, b1, l_.strip(p_, task),
                                     keys_panel(first), rows_panel(first),
                                     packed.get(), width, grad_.dk + at,
                                     grad_.dv + at);
        }
      });
    }
  }

  /// Adds what the exact rows of a task give to dk and dv, and writes their dq.
  void exact(int64_t task) {
    const Strip<T> strip = l_.strip(p_, task);
    const int64_t at = l_.row_offset(task), key_at = l_.key_offset(task);
    std::vector<LogSum> scratch;
    for (int64_t c = 0; c < strip.channels; ++c) {
      const int64_t tile = l_.first_tile(task) + c / kTile;
      const uint8_t* f = flags(tile);
      if (std::find(f, f + band_.rows, 1) == f + band_.rows) continue;
      if (shares_[tile].empty())
        shares_[tile].assign(kTile * band_.rows, ExactShare{0, 0, 0});
      scratch.resize(exact_scratch(band_.keys));
      const auto channel = exact_channel(band_, strip, c, scratch.data());
      ExactShare* shares = shares_[tile].data() + c % kTile * band_.rows;
      T *dk = grad_.dk + key_at + c, *dv = grad_.dv + key_at + c;
      for_exact_rows(
          exec_, band_, bias_, f, 0, band_.rows, [&](int64_t t, const auto& w) {
            const ExactRow row = channel.forward(t, w);
            const int64_t i = t * l_.D + c;
            const double g = dy_[at + i],
                         gate = strip.q ? sigmoid(strip.q[i]) : 1;
            if (strip.q)
              grad_.dq[at + i] = static_cast<T>(
                  g * gate * sigmoid(-static_cast<double>(strip.q[i])) * row.r);
            if (!row.any) return;
            shares[t] = {g * gate, row.lse, row.r};
            channel.backward_window(t, shares[t], w, dk, dv);
          });
      channel.backward_outside(shares, dk, dv);
    }
  }

  /// dw in pieces of kSub rows: several at once, handed over in order.
  void biases() {
    const bool summed = dw_.get();  // by strips()
    const int64_t batch =
        summed
            ? subs()
            : std::min(subs(), std::max<int64_t>(exec_.threads,
                                                 (int64_t{1} << 20) / piece()));
    if (!summed) dw_.grow(exec_, batch * piece());
    for (int64_t s0 = 0; s0 < subs(); s0 += batch) {
      const int64_t s1 = std::min(s0 + batch, subs());
      exec_.parallel(s1 - s0, [&](int64_t begin, int64_t end) {
        Buffer<T> w(exec_, piece());
        for (int64_t s = s0 + begin; s < s0 + end; ++s) {
          with_piece(s, [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
            T* dw = dw_.get() + (s - s0) * piece();
            const int64_t ld = j1 - j0;
            if (!summed) {
              std::fill_n(dw, piece(), T(0));
              band_kernels<T>().dw(band_, t0, t1, j0, j1, l_.all_tiles,
                                   keys_.get(), key_panel_, rows_.get(),
                                   row_step_, dw, ld);
            }
            bias_.rows(t0, t1, j0, j1, w.get(), ld);
            band_kernels<T>().scale_dw(band_, t0, t1, j0, j1, w.get(), dw, ld);
            exact_biases(t0, t1, j0, w.get(), dw, ld);
          });
        }
      });
      for (int64_t s = s0; s < s1; ++s) {
        with_piece(s, [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
          bias_.take(t0, t1, j0, j1, dw_.get() + (s - s0) * piece(), j1 - j0);
        });
      }
    }
  }

  void exact_biases(int64_t t0, int64_t t1, int64_t j0, const T* w, T* dw,
                    int64_t ld) {
    for (int64_t tile = 0; tile < l_.all_tiles; ++tile) {
      if (shares_[tile].empty()) continue;
      const int64_t batch = tile / l_.tiles, c0 = tile % l_.tiles * kTile,
                    at = batch * band_.keys * l_.D;
      const uint8_t* padded =
          p_.padded ? p_.padded + batch * band_.keys : nullptr;
      for (int64_t t = t0; t < t1; ++t) {
        for (int64_t c = c0; c < std::min<int64_t>(c0 + kTile, l_.D); ++c) {
          const ExactShare s = shares_[tile][(c - c0) * band_.rows + t];
          for (int64_t j = band_.key_begin(t);
               s.a != 0 && j < band_.key_end(t + 1); ++j) {
            if (padded && padded[j]) continue;
            const int64_t i = (t - t0) * ld + j - j0, x = at + j * l_.D + c;
            const double p =
                std::exp(static_cast<double>(p_.k[x]) + w[i] - s.lse);
            dw[i] += static_cast<T>(s.a * p * (p_.v[x] - s.r));
          }
        }
      }
    }
  }

  const Exec& exec_;
  const Problem<T>& p_;
  const BandBias<T>& bias_;
  const T* dy_;
  const Saved<T>& saved_;
  const Gradients<T>& grad_;
  const Layout<T> l_;
  const Band& band_;
  const int64_t row_panel_, key_panel_, side_, row_step_;
  Buffer<T> keys_, rows_;  // panels of all tiles
  Buffer<T> dw_;           // pieces of dw
  Buffer<uint8_t> flags_;
  std::vector<std::vector<ExactShare>>
      shares_;  // of tiles with exact rows: [kTile, rows]
};

}  // namespace

template <class T>
void run_band_backward(const Exec& exec, const Problem<T>& p,
                       const BandBias<T>& bias, const T* dy,
                       const Saved<T>& saved, const Gradients<T>& grad) {
  Backward<T>(exec, p, bias, dy, saved, grad).run();
}

#define AFT_INSTANTIATE(T)                                                   \
  template void run_band(const Exec&, const Problem<T>&, const BandBias<T>&, \
                         T*, const Saved<T>&);                               \
  template void run_band_backward(const Exec&, const Problem<T>&,            \
                                  const BandBias<T>&, const T*,              \
                                  const Saved<T>&, const Gradients<T>&);
AFT_INSTANTIATE(float)
AFT_INSTANTIATE(double)
#undef AFT_INSTANTIATE

}  // namespace aft::kernels
