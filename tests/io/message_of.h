// The message of an expected error.
#pragma once

#include <functional>
#include <string>

#include "aft/base/error.h"

namespace aft::io {

/// Returns the message of the error that `f` throws; "no error" if it throws
/// none.
inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace aft::io
