// The composite path: the AFT reduction and its gradients written with ATen
// calls only, for devices without kernels.
//   r_t = num_t / den_t,  num_t = sum_j exp(k_j + w_tj) v_j,  den_t likewise
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace aft::ops::composite {

/// How to compute w_tj: zero (simple), a dense w, factors u v_pos^T, or the
/// taps of a convolution. Unused members stay undefined or empty.
struct Bias {
  at::Tensor u, v_pos;        ///< full, local: [Tq, r] and [Tk, r]
  at::Tensor w;               ///< full, local: [Tq, Tk]; conv: [H, s...]
  int64_t window = -1;        ///< full: -1; simple: 0; local: s; conv: unused
  bool window_only = false;   ///< -inf outside the window instead of 0
  std::vector<int64_t> grid;  ///< conv: 1, 2 or 3 sizes
};

struct Reduced {
  at::Tensor r;    ///< [B, Tq, D] = num / den; 0 for a row without keys
  at::Tensor lse;  ///< [B, Tq, H] = log den; -inf for a row without keys
};

/// k [B, Tk, H], v [B, Tk, D]; H divides D (H = D except in conv); padded is
/// undefined or bool [B, Tk]. The caller has checked that all are on one
/// device, contiguous, and of one type, float or double. Not differentiable.
///
/// Stable for every finite input. If causal, r_t is bit-exactly independent of
/// the positions after t. Memory O(B (Tq + Tk) D): no Tq x Tk buffer. Time O(Tk
/// D) for simple, O(T s D) for local and 1d conv, otherwise O(Tq Tk D) as
/// matrix products. Rows in which a product could underflow cost 10 to 20 times
/// as much: those where the keys of a block span more than 32 and, except on
/// the causal diagonal, the biases of the row do too. Synchronises with the
/// device once (backward: twice), and once more per block with such keys.
Reduced forward(const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& padded, const Bias& bias, int64_t Tq,
                bool causal);

/// Shaped like k, v, u, v_pos and w; undefined if not wanted or if the bias has
/// no such part.
struct Gradients {
  at::Tensor dk, dv, du, dv_pos, dw;
};
/// What backward computes.
struct Wanted {
  bool k = true, v = true, bias = true;
};

/// The gradients of sum(dr * r). r and lse are the results of forward for the
/// same arguments. Recomputes the blocks; memory and time as forward.
Gradients backward(const at::Tensor& dr, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& padded,
                   const Bias& bias, bool causal, const at::Tensor& r,
                   const at::Tensor& lse, const Wanted& wanted = {});

}  // namespace aft::ops::composite
