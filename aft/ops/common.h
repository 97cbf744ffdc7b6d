// Code that the operators share: argument checks, the gate, and conversion of
// ATen tensors to kernel arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "aft/kernels/run.h"
#include "aft/ops/ops.h"

namespace aft::ops {

/// Validated arguments of an operator: contiguous and of one floating type
/// (float or double).
struct Checked {
  std::string op;
  int64_t B, Tq, Tk, D, H;
  /// q is undefined if there is no gate; padded is undefined or bool [B, Tk].
  at::Tensor q, k, v, padded;
  bool causal;
  std::string gate;      ///< "none" if q is undefined
  at::ScalarType dtype;  ///< of the arguments and the result

  /// Returns a position parameter converted to the type of q, k and v. Throws
  /// c10::Error if its shape is not `expected`; `shape` describes that shape in
  /// the message.
  at::Tensor parameter(const char* name, const at::Tensor& x,
                       const std::vector<int64_t>& expected,
                       const std::string& shape) const;
  /// Throws c10::Error unless `grid` has 1 to 3 sizes (1 if causal) and Tq = Tk
  /// positions.
  void check_grid(const std::vector<int64_t>& grid) const;
  /// Whether the kernels compute this operator, with a sigmoid gate fused. If
  /// not, the composite path computes everything but the gate.
  bool use_kernels() const;
  /// q for the fused gate; undefined if the gate is applied afterwards.
  at::Tensor fused_q() const {
    return use_kernels() && gate == "sigmoid" ? q : at::Tensor();
  }
  /// Applies the gate unless it was fused, and converts to the type of the
  /// arguments.
  at::Tensor finish(const at::Tensor& y) const;
};

/// Throws c10::Error that names the operator. If `heads`, k may have H < D
/// channels.
Checked check(const char* op, const OptionalTensor& q, const at::Tensor& k,
              const at::Tensor& v, const Common& common, bool heads = false);

/// gate(q) * r; "none" returns r. The gate must be valid (check_gate).
at::Tensor apply_gate(const std::string& gate, const at::Tensor& q,
                      const at::Tensor& r);
/// Throws c10::Error, with a message starting with `where`, unless `gate` is
/// the name of a gate.
void check_gate(const std::string& where, const std::string& gate);

/// For example "[2, 3]".
std::string shape_of(const at::Tensor& x);

/// Runs kernels on ATen's threads and allocator. y: the result, or a tensor of
/// its size; if it is small, one thread is faster than starting several.
kernels::Exec at_exec(const at::Tensor& y);

/// Wraps contiguous tensors in a kernels::Problem. q and padded may be
/// undefined.
template <class T>
kernels::Problem<T> problem(const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& padded,
                            int64_t Tq, bool causal) {
  return {k.size(0),
          Tq,
          k.size(1),
          v.size(2),
          k.size(2),
          causal,
          q.defined() ? q.data_ptr<T>() : nullptr,
          k.data_ptr<T>(),
          v.data_ptr<T>(),
          padded.defined()
              ? reinterpret_cast<const uint8_t*>(padded.data_ptr<bool>())
              : nullptr};
}

template <class T>
T* data(const at::Tensor& x) {
  return x.defined() ? x.data_ptr<T>() : nullptr;
}

/// Converts an undefined tensor to nullopt, which is how
/// torch::autograd::Function takes an absent tensor.
inline OptionalTensor maybe(const at::Tensor& x) {
  return x.defined() ? OptionalTensor(x) : c10::nullopt;
}
inline at::Tensor value(const OptionalTensor& x) {
  return x ? *x : at::Tensor();
}
/// Whether autograd records operations on any of these tensors.
bool records(std::initializer_list<at::Tensor> tensors);

}  // namespace aft::ops
