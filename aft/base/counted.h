// Counts in messages.
#pragma once

#include <string>

namespace aft::base {

/// "1 thread", "2 threads", "1 process", "0 processes".
template <class Integer>
std::string counted(Integer n, const std::string& noun) {
  const std::string number = std::to_string(n) + " " + noun;
  if (n == 1) return number;
  return number + (noun.back() == 's' || noun.back() == 'x' ? "es" : "s");
}

}  // namespace aft::base
