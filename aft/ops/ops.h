// The public C++ interface of the operators. Python calls the same functions as
// torch.ops.aft.simple, full, local, conv and one_tap.
//
//   y_t = gate(q_t) * sum_j exp(k_j + w_tj) v_j / sum_j exp(k_j + w_tj)
//
// Shapes: q [B, Tq, D] or absent (no gate), k and v [B, Tk, D], y [B, Tq, D].
// Types: q, k, v and y have one type, float, double, half or bfloat16; the
// 16-bit types accumulate in float. Biases have any floating type.
// Devices: any. The CPU has its own kernels, other devices use the composite
// path.
// Autocast: q, k and v may have different floating types, and are converted to
// the widest, as by autocast's `promote`. Autocast has no other effect on the
// operators, in forward and backward.
//
// Differentiable once, in q, k, v and the biases. With create_graph, only
// differentiating the gradients again is an error. Computes only the gradients
// of biases that are needed; on the composite path this holds for all inputs,
// whereas the kernels always compute those of q, k and v. Memory O(B T D).
// Causality is bit-exact. Results are finite for every finite input, and
// deterministic for a fixed number of threads. Invalid arguments throw
// c10::Error, which names the operator, the argument, what was expected and
// what was found.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Optional.h>

#include <string>
#include <vector>

namespace aft::ops {

using OptionalTensor = c10::optional<at::Tensor>;

/// Arguments of every operator.
struct Common {
  /// bool [B, Tk]; true: the key is masked. A row without keys gives 0.
  OptionalTensor key_padding_mask;
  bool causal = false;  ///< use only keys j <= t
  /// sigmoid, relu, tanh, gelu, silu, softplus, identity, or none (q is
  /// ignored).
  std::string gate = "sigmoid";
};

/// w = 0. Time O(T D).
at::Tensor simple(const OptionalTensor& q, const at::Tensor& k,
                  const at::Tensor& v, const Common& common = {});

/// Position biases of full and local: either the factors u [Tq, r] and v_pos
/// [Tk, r] of w = u v_pos^T, or w [Tq, Tk] itself.
struct PositionBias {
  OptionalTensor u, v_pos, w;
};

/// A bias for every pair of positions. Time O(T^2 D), as matrix products.
at::Tensor full(const OptionalTensor& q, const at::Tensor& k,
                const at::Tensor& v, const PositionBias& bias,
                const Common& common = {});

/// A bias for pairs with |t - j| < window. Other pairs have bias 0, or -inf if
/// window_only (the paper's ablation). Window 0 is `simple`.
/// Time O(T window D).
at::Tensor local(const OptionalTensor& q, const at::Tensor& k,
                 const at::Tensor& v, int64_t window, const PositionBias& bias,
                 bool window_only = false, const Common& common = {});

/// Biases w [H, kernel...], indexed by the position of j relative to t on a
/// grid of 1, 2 or 3 dimensions; T is the product of the grid sizes. k [B, T,
/// H], q and v [B, T, D]; H divides D. Kernel sizes are odd and kernels
/// centred. If causal (1d only), any size is allowed and the last tap is the
/// current position. Time O(T kernel D).
at::Tensor conv(const OptionalTensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& w,
                const std::vector<int64_t>& grid, bool window_only = false,
                const Common& common = {});

/// One biased key per head: bias w [H] for the key at t + offsets[h] on the
/// grid, offsets int64 [H, dimensions of the grid]. All other pairs have bias
/// 0. If that key lies outside the grid, no pair is biased. Equals conv with a
/// one-hot kernel, and takes the same shapes and grid. If causal (1d only),
/// offsets must be <= 0.
///
/// On the CPU, time O(T D) for any offsets, provided that autograd does not
/// record, the operator is not causal, |w| <= kernels::FastPathLimits<T>::bias
/// and the grid has at most kernels::kOneTapPositions positions. Otherwise it
/// runs conv with the one-hot kernel.
at::Tensor one_tap(const OptionalTensor& q, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& w,
                   const at::Tensor& offsets, const std::vector<int64_t>& grid,
                   const Common& common = {});

/// While an instance exists, the operators of this thread use the composite
/// path on the CPU too.
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
