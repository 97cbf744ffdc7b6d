// The exceptions of the torch-free modules.
#pragma once

#include <stdexcept>

namespace aft::base {

/// A failed call. The message names the file or function, what was expected
/// and what was found.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace aft::base
