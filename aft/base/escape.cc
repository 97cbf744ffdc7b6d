#include "aft/base/escape.h"

#include <cstdio>

namespace aft::base {
namespace {

std::string escaped(unsigned char byte) {
  char hex[5];
  std::snprintf(hex, sizeof(hex), "\\x%02x", byte);
  return hex;
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

std::string terminal_safe(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte >= 0x20 && byte != 0x7f) || c == '\n')
      out += c;
    else
      out += escaped(byte);
  }
  return out;
}

}  // namespace aft::base
