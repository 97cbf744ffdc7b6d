// The composite path: the AFT reduction and its gradients in ATen calls alone,
// for every device that has no kernel of ours.
//   r_t = num_t / den_t,  num_t = sum_j exp(k_j + w_tj) v_j,  den_t likewise
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace aft::ops::composite {

/// How w_tj is made: nothing (simple), dense w, factors u v_pos^T, or the taps
/// of a convolution. What is not used stays undefined or empty.
struct Bias {
  at::Tensor u, v_pos;        ///< full, local: [Tq, r] and [Tk, r]
  at::Tensor w;               ///< full, local: [Tq, Tk]; conv: [H, s...]
  int64_t window = -1;        ///< full: -1; simple: 0; local: s; conv: unused
  bool window_only = false;   ///< outside the window -inf instead of 0
  std::vector<int64_t> grid;  ///< conv: 1, 2 or 3 sizes
};

struct Reduced {
  at::Tensor r;    ///< [B, Tq, D] = num / den; 0 where a row has no key
  at::Tensor lse;  ///< [B, Tq, H] = log den; -inf where a row has no key
};

/// k [B, Tk, H], v [B, Tk, D], H divides D (H = D but in conv), padded
/// undefined or bool [B, Tk]; all of one device, contiguous, of one type float
/// or double, and checked by the caller. Nothing is differentiated.
///
/// Stable for every finite input; when causal, r up to t does not change by a
/// bit with anything after t. Memory O(B (Tq + Tk) D): no buffer of Tq x Tk.
/// Time O(Tk D) for simple, O(T s D) for local and conv in 1d, O(Tq Tk D) as
/// matrix products otherwise. Rows for which a product could underflow cost 10
/// to 20 times as much: the keys of a block spread by more than 32 and, but on
/// the causal diagonal, the row's biases do as well. Waits for the device once
/// (backward: twice), and once for each block with such keys.
Reduced forward(const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& padded, const Bias& bias, int64_t Tq,
                bool causal);

/// Shaped as k, v, u, v_pos, w; undefined where the bias has no such part.
struct Gradients {
  at::Tensor dk, dv, du, dv_pos, dw;
};

/// The gradients of sum(dr * r). r and lse: what forward gave for the same
/// arguments. Recomputes the blocks; memory and time as forward.
Gradients backward(const at::Tensor& dr, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& padded,
                   const Bias& bias, bool causal, const at::Tensor& r,
                   const at::Tensor& lse);

}  // namespace aft::ops::composite
