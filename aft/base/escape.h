// Escapes untrusted text from files and command lines for messages. Such text
// can contain terminal control sequences and be arbitrarily long.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace aft::base {

/// Replaces all bytes except printable ASCII with escapes such as \x1b. Output
/// longer than `limit` bytes is truncated and ends in "...".
std::string printable(const std::string& text, size_t limit = 120);

/// Replaces control characters except newlines and tabs, controls of the
/// writing direction (such as U+202E), line and paragraph separators, and bytes
/// that are not valid UTF-8, with escapes such as \x1b. Does not truncate.
std::string terminal_safe(std::string_view text);

/// terminal_safe() for a text that arrives in pieces.
class TerminalText {
 public:
  /// Returns the safe form of the pieces so far, except a character that is
  /// still incomplete: it is returned with the next piece.
  std::string add(std::string_view piece);
  /// Returns the incomplete character at the end of the text; "" if there is
  /// none. Another text can follow.
  std::string finish();

 private:
  std::string incomplete_;
};

}  // namespace aft::base
