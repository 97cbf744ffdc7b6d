// AFT-simple: batch rows and groups of channels are independent.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "aft/kernels/kernels.h"
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

}  // namespace

template <class T>
void run_simple(const Exec& exec, const Problem<T>& p, T* y, T* states) {
  if (nothing(p, y)) return;
  for_pieces(exec, p, y, states,
             [](int64_t, const Simple<T>& piece, Buffer<T>&) {
               simple_kernels<T>().forward(piece);
             });
}

template <class T>
void run_simple_backward(const Exec& exec, const Problem<T>& p, const T* dy,
                         const T* states, const Gradients<T>& grad) {
  if (nothing(p, grad)) return;
  T* no_output = nullptr;
  for_pieces(exec, p, no_output, const_cast<T*>(states),  // only read
             [&](int64_t b, const Simple<T>& piece, Buffer<T>& scratch) {
               scratch.grow(exec, simple_scratch(p.Tq));
               const int64_t q_at = b * p.Tq * p.D, k_at = b * p.Tk * p.D;
               simple_kernels<T>().backward(
                   piece, dy + q_at, grad.dq ? grad.dq + q_at : nullptr,
                   grad.dk + k_at, grad.dv + k_at, scratch.get());
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
