// AFT-simple: batch rows and groups of channels are independent.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "aft/kernels/kernels.h"
#include "aft/kernels/nonfinite_run.h"
#include "aft/kernels/run.h"
#include "aft/kernels/run_buffers.h"

namespace aft::kernels {

Exec Exec::serial() {
  Exec exec;
  exec.parallel = [](int64_t n,
                     const std::function<void(int64_t, int64_t)>& f) {
    if (n > 0) f(0, n);
  };
  exec.allocate = [](size_t bytes) {
    void* memory =
        std::aligned_alloc(64, std::max<size_t>((bytes + 63) / 64 * 64, 64));
    if (!memory) throw std::bad_alloc();
    return std::shared_ptr<void>(memory, std::free);
  };
  return exec;
}

namespace {

/// Calls f(b, piece) for each batch row and group of channels.
template <class T, class F>
void for_pieces(const Exec& exec, const Problem<T>& p, T* y, T* states,
                const F& f) {
  int64_t channels = kSimpleChannels;
  const auto groups_of = [&] { return (p.D + channels - 1) / channels; };
  while (channels > kTile && p.B * groups_of() < 2 * exec.threads)
    channels /= 2;
  const int64_t groups = groups_of();
  exec.parallel(p.B * groups, [&](int64_t begin, int64_t end) {
    Buffer<T> scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / groups, c0 = i % groups * channels;
      const int64_t q_at = b * p.Tq * p.D, k_at = b * p.Tk * p.D;
      const Simple<T> piece{
          p.Tq,
          p.Tk,
          p.D,
          c0,
          std::min<int64_t>(c0 + channels, p.D),
          p.causal,
          p.q ? p.q + q_at : nullptr,
          p.k + k_at,
          p.v + k_at,
          p.padded ? p.padded + b * p.Tk : nullptr,
          y ? y + q_at : nullptr,
          states ? states + b * simple_states(p.Tq) * 3 * p.D : nullptr};
      f(b, piece, scratch);
    }
  });
}

template <class T>
bool forward(const Exec& exec, const Problem<T>& p, T* y, T* states) {
  std::atomic<bool> finite{true};
  for_pieces(exec, p, y, states,
             [&](int64_t, const Simple<T>& piece, Buffer<T>&) {
               if (!simple_kernels<T>().forward(piece)) finite = false;
             });
  return finite;
}

template <class T>
bool backward(const Exec& exec, const Problem<T>& p, const T* dy,
              const T* states, const Gradients<T>& grad) {
  T* no_output = nullptr;
  std::atomic<bool> finite{true};
  for_pieces(exec, p, no_output, const_cast<T*>(states),  // only read
             [&](int64_t b, const Simple<T>& piece, Buffer<T>& scratch) {
               scratch.grow(exec, simple_scratch(p.Tq));
               const int64_t q_at = b * p.Tq * p.D, k_at = b * p.Tk * p.D;
               if (!simple_kernels<T>().backward(
                       piece, dy + q_at, grad.dq ? grad.dq + q_at : nullptr,
                       grad.dk + k_at, grad.dv + k_at, scratch.get())) {
                 finite = false;
               }
             });
  return finite;
}

/// Calls f(b, c0, lanes, marks, any) for the tiles of channels, after marking
/// their keys. All keys are outside of the window.
template <class T, class F>
void for_marks(const Exec& exec, const Problem<T>& p, const F& f) {
  const int64_t tiles = (p.D + kTile - 1) / kTile;
  exec.parallel(p.B * tiles, [&](int64_t begin, int64_t end) {
    LogspaceChannels<T> marks(exec,
                              {1, 1, p.Tq, p.Tk, 0, 0, 1, 0, true, !p.causal});
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / tiles, c0 = i % tiles * kTile;
      const int lanes = static_cast<int>(std::min<int64_t>(kTile, p.D - c0));
      LogspaceSource<T> source{p.k + b * p.Tk * p.D,
                               p.v + b * p.Tk * p.D,
                               p.D,
                               p.D,
                               p.padded ? p.padded + b * p.Tk : nullptr,
                               lanes,
                               {},
                               {}};
      for (int c = 0; c < lanes; ++c) source.key[c] = source.value[c] = c0 + c;
      marks.load(source);
      const bool any = marks.mark();
      marks.sum_keys();
      f(b, c0, lanes, marks, any);
    }
  });
}

}  // namespace

template <class T>
void run_simple(const Exec& exec, const Problem<T>& p, T* y, T* states) {
  if (nothing(p, y) || forward(exec, p, y, states)) return;
  const FiniteInputs<T> finite(exec, p);
  if (!finite.changed) return;
  forward(exec, finite.problem, y, states);
  for_marks(exec, p,
            [&](int64_t b, int64_t c0, int lanes,
                const LogspaceChannels<T>& marks, bool any) {
              if (!any) return;
              alignas(64) double row[kLogSum] = {};
              for (int64_t t = 0; t < p.Tq; ++t) {
                marks.row(t, {nullptr, false}, row);
                for (int c = 0; c < lanes; ++c)
                  overwrite_output<T>(row, c, (b * p.Tq + t) * p.D + c0 + c,
                                      p.q, y, nullptr);
              }
              // So that backward notices.
              for (int64_t i = 0; states && i < simple_states(p.Tq); ++i) {
                std::fill_n(
                    states + ((b * simple_states(p.Tq) + i) * 3 + 2) * p.D + c0,
                    lanes, std::numeric_limits<T>::quiet_NaN());
              }
            });
}

template <class T>
void run_simple_backward(const Exec& exec, const Problem<T>& p, const T* dy,
                         const T* states, const Gradients<T>& grad) {
  if (nothing(p, grad) || backward(exec, p, dy, states, grad)) return;
  const FiniteInputs<T> finite(exec, p, dy, {nullptr, nullptr, nullptr});
  if (!finite.changed) return;
  const T* no_states = nullptr;
  backward(exec, finite.problem, finite.dy.get(), no_states, grad);
  for_marks(
      exec, p,
      [&](int64_t b, int64_t c0, int lanes, LogspaceChannels<T>& marks, bool) {
        const Buffer<double> rows(exec, p.Tq * kLogSum);
        for (int64_t t = 0; t < p.Tq; ++t) {
          double* row = rows.get() + t * kLogSum;
          std::fill_n(row, kLogSum, 0.);
          marks.row(t, {nullptr, false}, row);
          mark_gradients(row, lanes, (b * p.Tq + t) * p.D + c0, dy, p.q,
                         grad.dq);
        }
        marks.clear_gradients();
        marks.overwrite_gradients(rows.get(), grad.dk + b * p.Tk * p.D,
                                  grad.dv + b * p.Tk * p.D);
      });
}

#define AFT_INSTANTIATE(T)                                                    \
  template void run_simple(const Exec&, const Problem<T>&, T*, T*);           \
  template void run_simple_backward(const Exec&, const Problem<T>&, const T*, \
                                    const T*, const Gradients<T>&);
AFT_INSTANTIATE(float)
AFT_INSTANTIATE(double)
#undef AFT_INSTANTIATE

}  // namespace aft::kernels
