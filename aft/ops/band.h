// full and local: one differentiable function for both.
#pragma once

#include "aft/ops/common.h"

namespace aft::ops {

/// c: from check(); window < 0: full.
at::Tensor band(const Checked& c, const PositionBias& bias, int64_t window,
                bool window_only);

}  // namespace aft::ops
