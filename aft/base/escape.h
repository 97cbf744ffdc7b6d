// Escapes untrusted text from files and command lines for messages. Such text
// can contain terminal control sequences and be arbitrarily long.
#pragma once

#include <cstddef>
#include <string>

namespace aft::base {

/// Replaces all bytes except printable ASCII with escapes such as \x1b. Output
/// longer than `limit` bytes is truncated and ends in "...".
std::string printable(const std::string& text, size_t limit = 120);

/// Replaces control characters except newlines with escapes such as \x1b. Keeps
/// bytes that may be UTF-8 and does not truncate.
std::string terminal_safe(const std::string& text);

}  // namespace aft::base
