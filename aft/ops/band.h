// The full and local operators, which share one differentiable function.
#pragma once

#include "aft/ops/common.h"

namespace aft::ops {

/// c comes from check(). window < 0 selects full.
at::Tensor band(const Checked& c, const PositionBias& bias, int64_t window,
                bool window_only);

}  // namespace aft::ops
