// What the operators share: checks, the gate, and the way from ATen to the
// kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>

#include "aft/kernels/run.h"
#include "aft/ops/ops.h"

namespace aft::ops {

/// The arguments of an operator, checked, in one floating type (float or
/// double), contiguous.
struct Checked {
  std::string op;
  int64_t B, Tq, Tk, D, H;
  at::Tensor q, k, v,
      padded;  ///< q undefined: no gate; padded undefined or bool [B, Tk]
  bool causal;
  std::string gate;      ///< "none" where q is undefined
  at::ScalarType dtype;  ///< of the arguments, and so of the result

  /// A position parameter in the type of q, k and v; `shape` is how errors call
  /// what is expected.
  at::Tensor parameter(const char* name, const at::Tensor& x,
                       const std::vector<int64_t>& expected,
                       const std::string& shape) const;
  /// Whether the kernels do it, sigmoid included; otherwise the composite path
  /// does, the gate aside.
  bool use_kernels() const;
  /// The q for the fused gate: undefined where the gate comes after.
  at::Tensor fused_q() const {
    return use_kernels() && gate == "sigmoid" ? q : at::Tensor();
  }
  /// gate(q) * r where it is not fused, in the type of the arguments.
  at::Tensor finish(const at::Tensor& y) const;
};

/// Throws c10::Error with the operator's name. k may have H < D channels where
/// `heads`.
Checked check(const char* op, const OptionalTensor& q, const at::Tensor& k,
              const at::Tensor& v, const Common& common, bool heads = false);

/// gate(q) * r; "none" gives r. The gate must be a known one.
at::Tensor apply_gate(const std::string& gate, const at::Tensor& q,
                      const at::Tensor& r);
/// Throws c10::Error unless `gate` is the name of one; `where` opens the
/// message.
void check_gate(const std::string& where, const std::string& gate);

/// "[2, 3]".
std::string shape_of(const at::Tensor& x);

/// Kernels on ATen's threads and memory.
kernels::Exec at_exec();

/// Contiguous tensors as a kernels::Problem; q and padded may be undefined.
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

/// An undefined tensor as no tensor: what torch::autograd::Function takes for
/// "nothing here".
inline OptionalTensor maybe(const at::Tensor& x) {
  return x.defined() ? OptionalTensor(x) : c10::nullopt;
}
inline at::Tensor value(const OptionalTensor& x) {
  return x ? *x : at::Tensor();
}
/// Whether autograd records what is done with any of these.
bool records(std::initializer_list<at::Tensor> tensors);

/// Throws if a backward pass is itself being recorded: there is no second
/// derivative.
void refuse_double_backward(const char* op);

}  // namespace aft::ops
