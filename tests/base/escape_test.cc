// Escaping of hostile text in messages.
#include "aft/base/escape.h"

#include <gtest/gtest.h>

namespace aft::base {
namespace {

TEST(Text, Printable) {
  EXPECT_EQ(printable("a b~"), "a b~");
  EXPECT_EQ(printable(std::string("\x1b[2J\0\n\x7f", 7)),
            "\\x1b[2J\\x00\\x0a\\x7f");
  EXPECT_EQ(printable("\xc3\xa4"), "\\xc3\\xa4");
  EXPECT_EQ(printable(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(printable(std::string(121, 'x')), std::string(120, 'x') + "...");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("", 0), "");
}

TEST(Text, TerminalSafe) {
  EXPECT_EQ(terminal_safe("two\nlines \xc3\xa4"), "two\nlines \xc3\xa4");
  EXPECT_EQ(terminal_safe("\x1b]0;title\x07\r\x7f"),
            "\\x1b]0;title\\x07\\x0d\\x7f");
}

}  // namespace
}  // namespace aft::base
