// Streaming: runs the causal operators one position at a time, in constant
// memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace aft::ops {

/// The state of one layer for B sequences: sums over the past, and the keys and
/// values in the window.
struct Stream {
  int64_t position = 0;       ///< positions processed so far
  at::Tensor sums;            ///< [B, 3, D], over the keys that left the window
  at::Tensor ring_k, ring_v;  ///< [B, window, D]; undefined for window 0
  int64_t bytes() const;      ///< size of the state in memory
  /// For a new stream, whose rings are empty: whether they grow with every
  /// position.
  bool grows() const { return ring_v.defined() && ring_v.size(1) == 0; }
};

/// Returns an empty stream. window: 0 for simple, the maximum length for full.
/// Type float or double. Throws c10::Error.
Stream start_stream(int64_t B, int64_t D, int64_t window,
                    const at::TensorOptions& options);

/// Processes one position: q (undefined: no gate), k, v [B, D] to y [B, D],
/// with a sigmoid gate. w holds the biases of the keys now in the window,
/// oldest first and the current one last: undefined (none), [count] or [count,
/// D], with count = min(position + 1, window). If window_only, keys that leave
/// the window are forgotten. q, k, v and w are on the device of the stream; y
/// has the type of the stream, and they have it or a narrower one. Not recorded
/// by autograd, not affected by autocast. Throws c10::Error.
at::Tensor step(Stream& stream, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& w,
                bool window_only = false);

}  // namespace aft::ops
