// Streaming: the causal operators one position at a time, in memory that does
// not grow.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace aft::ops {

/// What one layer remembers of B sequences: the sums of the past, and the keys
/// and values of its window.
struct Stream {
  int64_t position = 0;       ///< positions taken so far
  at::Tensor sums;            ///< [B, 3, D] of the keys that left the window
  at::Tensor ring_k, ring_v;  ///< [B, window, D]; undefined for window 0
  int64_t bytes() const;      ///< of memory that it holds
  /// Of a new stream: whether its rings, empty yet, will hold all that comes.
  bool grows() const { return ring_v.defined() && ring_v.size(1) == 0; }
};

/// An empty stream. window 0: simple; full: the greatest length. float or
/// double.
Stream start_stream(int64_t B, int64_t D, int64_t window,
                    const at::TensorOptions& options);

/// Takes one position: q (or undefined: no gate), k, v [B, D]; returns y [B,
/// D], sigmoid gate. w: the biases of the keys that are now in the window,
/// oldest first and the current one last: undefined (none), [count] or [count,
/// D], with count = min(position + 1, window). window_only: forget what leaves
/// the window. Not recorded by autograd. Throws c10::Error.
at::Tensor step(Stream& stream, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& w,
                bool window_only = false);

}  // namespace aft::ops
