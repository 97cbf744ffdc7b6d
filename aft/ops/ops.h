// The front door of the operators in C++. The same functions are
// torch.ops.aft.simple, full, local, conv and single.
//
//   y_t = gate(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)
//
// q [B, Tq, D] (or nothing: no gate), k and v [B, Tk, D], y [B, Tq, D]; float,
// double, half or bfloat16 (halves are summed in float), any device: the CPU
// has kernels of its own, every other device takes the composite path.
// Differentiable in q, k, v and the biases, once. Memory O(B T D), bit-exact
// causality, finite for every finite input, deterministic for a fixed number of
// threads. Arguments that do not fit throw c10::Error, which names the
// operator, the argument, what was expected and what came.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Optional.h>

#include <string>
#include <vector>

namespace aft::ops {

using OptionalTensor = c10::optional<at::Tensor>;

/// What all operators take.
struct Common {
  OptionalTensor key_padding_mask;  ///< bool [B, Tk], true: this key takes no
                                    ///< part. A row with no key gives 0.
  bool causal = false;              ///< only keys j <= t
  /// sigmoid, relu, tanh, gelu, silu, softplus, identity, or none (q is
  /// ignored).
  std::string gate = "sigmoid";
};

/// w = 0. O(T D).
at::Tensor simple(const OptionalTensor& q, const at::Tensor& k,
                  const at::Tensor& v, const Common& common = {});

/// Position biases of full and local: the factors u [Tq, r] and v_pos [Tk, r]
/// of w = u v_pos^T, or w [Tq, Tk] itself.
struct PositionBias {
  OptionalTensor u, v_pos, w;
};

/// w for every pair. O(T^2 D) at the speed of matrix products.
at::Tensor full(const OptionalTensor& q, const at::Tensor& k,
                const at::Tensor& v, const PositionBias& bias,
                const Common& common = {});

/// w where |t - j| < window; elsewhere 0, or -inf where window_only (the
/// paper's ablation). Window 0 is `simple`. O(T window D).
at::Tensor local(const OptionalTensor& q, const at::Tensor& k,
                 const at::Tensor& v, int64_t window, const PositionBias& bias,
                 bool window_only = false, const Common& common = {});

/// w [H, kernel...] of the place of j relative to t on a grid of 1, 2 or 3
/// sizes, T = their product; k [B, T, H], q and v [B, T, D], H divides D.
/// Kernels are odd and centred; causal (1d only): any size, the last tap is the
/// current position. O(T kernel D).
at::Tensor conv(const OptionalTensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& w,
                const std::vector<int64_t>& grid, bool window_only = false,
                const Common& common = {});

/// One biased key a head: w [H] at the place t + offsets[h] of the grid,
/// offsets int64 [H, sizes of grid]; every other pair has 0, and where that
/// place lies outside of the grid there is none. Shapes and grid as conv's, of
/// which it is the case of a one-hot kernel; causal (1d only): offsets <= 0.
/// O(T D), whatever the offsets, where autograd records nothing, on the CPU,
/// not causal and with |w| <= kernels::Safe; conv with that kernel elsewhere.
at::Tensor single(const OptionalTensor& q, const at::Tensor& k,
                  const at::Tensor& v, const at::Tensor& w,
                  const at::Tensor& offsets, const std::vector<int64_t>& grid,
                  const Common& common = {});

/// While one lives, this thread's operators take the composite path on the CPU
/// too.
class CompositeGuard {
 public:
  CompositeGuard();
  ~CompositeGuard();
  CompositeGuard(const CompositeGuard&) = delete;
  CompositeGuard& operator=(const CompositeGuard&) = delete;

 private:
  bool before_;
};

}  // namespace aft::ops
