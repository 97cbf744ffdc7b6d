// Checks of the configuration of a model.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

namespace aft::models {

/// Keys of "model" with their values.
template <class T>
using Values = std::initializer_list<std::pair<const char*, T>>;

/// Throws c10::Error unless all values are 1 or more.
inline void check_positive(Values<int64_t> values) {
  for (const auto& [key, x] : values)
    TORCH_CHECK(x >= 1, "model.", key, " must be 1 or more, got ", x);
}

/// Throws c10::Error unless all values are in [0, 1).
inline void check_probabilities(Values<double> values) {
  for (const auto& [key, x] : values)
    TORCH_CHECK(x >= 0 && x < 1, "model.", key, " must be in [0, 1), got ", x);
}

}  // namespace aft::models
