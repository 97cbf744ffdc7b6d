// Linear layers for inference: y = f(x w^T + b) with weights that are packed
// once. Unlike a general matrix product, this does not pack w for each call,
// clear y, or pass over y again for the bias, GELU and the residual. Nothing
// here allocates, starts a thread, throws or prints; callers split the rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aft/kernels/kernels.h"

namespace aft::kernels {

/// What to do with z = x w^T + b.
enum class Then {
  kStore,  ///< y = z
  kGelu,   ///< y = gelu(z) = z Phi(z)
  kAdd     ///< y += z
};

/// w [outputs, inputs] in panels of kPanel outputs, [panels, inputs, kPanel],
/// the last one padded with zeros.
inline constexpr int64_t packed_panels(int64_t outputs) {
  return (outputs + kPanel - 1) / kPanel;
}
inline constexpr int64_t packed_size(int64_t outputs, int64_t inputs) {
  return packed_panels(outputs) * inputs * kPanel;
}

template <class T>
struct LinearKernels {
  /// w [outputs, inputs], row-major, to packed [packed_size(outputs, inputs)].
  void (*pack)(int64_t outputs, int64_t inputs, const T* w, T* packed);
  /// x [rows, inputs], rows x_stride apart, to y [rows, outputs], rows y_stride
  /// apart; bias [outputs] or null: none. y must not overlap x. The result of a
  /// row does not depend on the other rows.
  void (*run)(int64_t rows, int64_t outputs, int64_t inputs, const T* x,
              int64_t x_stride, const T* packed, const T* bias, Then then, T* y,
              int64_t y_stride);
};
template <class T>
const LinearKernels<T>& linear_kernels() noexcept;

}  // namespace aft::kernels
