#include "aft/base/escape.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace aft::base {
namespace {

std::string escaped(unsigned char byte) {
  char hex[5];
  std::snprintf(hex, sizeof(hex), "\\x%02x", byte);
  return hex;
}

/// Returns the length of the UTF-8 character at the start of `text`; 0 if there
/// is none, or only a control character of two bytes (U+0080 to U+009F). May
/// exceed the length of the text, if that ends in the middle of a character.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte excludes control characters, characters that fit in fewer
  // bytes, surrogates and everything above U+10FFFF.
  unsigned low = lead == 0xc2 || lead == 0xe0 ? 0xa0
                 : lead == 0xf0               ? 0x90
                                              : 0x80;
  unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length && i < text.size(); ++i) {
    if (byte(i) < low || byte(i) > high) return 0;
    low = 0x80, high = 0xbf;
  }
  return length;
}

/// Whether a character can change how a terminal shows others: controls of the
/// writing direction, and separators of lines and paragraphs.
bool is_layout_control(std::string_view character) {
  if (character == "\xd8\x9c") return true;  // U+061C
  if (character.size() != 3 || character.substr(0, 1) != "\xe2") return false;
  const auto second = static_cast<unsigned char>(character[1]),
             third = static_cast<unsigned char>(character[2]);
  return second == 0x80
             ? third == 0x8e || third == 0x8f ||     // U+200E, 200F
                   (third >= 0xa8 && third <= 0xae)  // U+2028-202E
             : second == 0x81 && third >= 0xa6 && third <= 0xa9;  // U+2066-2069
}

}  // namespace

std::string printable(const std::string& text, size_t limit) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (out.size() >= limit) return out + "...";
    if (byte >= 0x20 && byte < 0x7f)
      out += c;
    else
      out += escaped(byte);
  }
  return out;
}

std::string terminal_safe(std::string_view text) {
  TerminalText safe;
  std::string out = safe.add(text);
  return out += safe.finish();
}

std::string TerminalText::add(std::string_view piece) {
  const std::string text = std::move(incomplete_) + std::string(piece);
  incomplete_.clear();
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const size_t length = character_length(std::string_view(text).substr(at));
    if (length > text.size() - at) {
      incomplete_ = text.substr(at);
      break;
    }
    const bool control =
        (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
    const std::string_view character =
        std::string_view(text).substr(at, std::max<size_t>(length, 1));
    if (length == 0 || control || is_layout_control(character)) {
      for (const char c : character)
        out += escaped(static_cast<unsigned char>(c));
    } else {
      out += character;
    }
    at += character.size();
  }
  return out;
}

std::string TerminalText::finish() {
  std::string out;
  for (const char c : incomplete_)
    out += escaped(static_cast<unsigned char>(c));
  incomplete_.clear();
  return out;
}

}  // namespace aft::base
