// Text of files and command lines as a message may show it: it may be hostile,
// obeyed by a terminal, and need not end.
#pragma once

#include <cstddef>
#include <string>

namespace aft::io {

/// What is not ASCII that can be seen as \x1b; at most `limit` bytes, and then
/// "...".
std::string printable(const std::string& text, size_t limit = 120);

/// Whole, with line breaks and what may be UTF-8; control characters as \x1b.
std::string harmless(const std::string& text);

}  // namespace aft::io
