// aft::full: a bias for every pair of positions.
#include "aft/ops/band.h"
#include "aft/ops/ops.h"

namespace aft::ops {

at::Tensor full(const OptionalTensor& q, const at::Tensor& k,
                const at::Tensor& v, const PositionBias& bias,
                const Common& common) {
  return band(check("full", q, k, v, common), bias, -1, false);
}

}  // namespace aft::ops
