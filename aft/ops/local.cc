// aft::local: biases inside a window, 0 (or -inf) outside.
#include <c10/util/Exception.h>

#include "aft/ops/band.h"
#include "aft/ops/ops.h"

namespace aft::ops {

at::Tensor local(const OptionalTensor& q, const at::Tensor& k,
                 const at::Tensor& v, int64_t window, const PositionBias& bias,
                 bool window_only, const Common& common) {
  TORCH_CHECK(window >= 0, "aft::local: window must be 0 or more, got ",
              window);
  TORCH_CHECK(window > 0 || !window_only,
              "aft::local: window_only needs a window of 1 or more, got 0");
  if (window == 0) return simple(q, k, v, common);
  return band(check("local", q, k, v, common), bias, window, window_only);
}

}  // namespace aft::ops
