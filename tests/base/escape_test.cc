// Escaping of hostile text in messages, and counts in them.
#include "aft/base/escape.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "aft/base/counted.h"

namespace aft::base {
namespace {

TEST(Text, Counted) {
  EXPECT_EQ(counted(1, "thread"), "1 thread");
  EXPECT_EQ(counted(2, "thread"), "2 threads");
  EXPECT_EQ(counted(size_t{0}, "image"), "0 images");
  EXPECT_EQ(counted(int64_t{1}, "process"), "1 process");
  EXPECT_EQ(counted(3, "class"), "3 classes");
}

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
  EXPECT_EQ(terminal_safe("a\tb"), "a\tb");
  // The ends of the ranges of valid characters.
  for (const char* valid :
       {"\xc2\xa0", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbd", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(terminal_safe(valid), valid);
  // Control characters of two bytes: U+009B starts a control sequence.
  EXPECT_EQ(terminal_safe("\xc2\x9b"
                          "2J"),
            "\\xc2\\x9b2J");
  // Overlong, surrogate, too large, stray, truncated.
  EXPECT_EQ(terminal_safe("\xc0\x9b"), "\\xc0\\x9b");
  EXPECT_EQ(terminal_safe("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");
  EXPECT_EQ(terminal_safe("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(terminal_safe("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(terminal_safe("\x9b"), "\\x9b");
  EXPECT_EQ(terminal_safe("a\xe2\x82"), "a\\xe2\\x82");
  EXPECT_EQ(terminal_safe("\xe2z\x82"), "\\xe2z\\x82");
}

/// They would reorder or break what a terminal shows.
TEST(Text, TerminalSafeEscapesControlsOfLayout) {
  EXPECT_EQ(terminal_safe("a\xe2\x80\xae"
                          "b"),
            "a\\xe2\\x80\\xaeb");  // U+202E
  for (const char* control :
       {"\xe2\x80\x8e", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaa",
        "\xe2\x81\xa6", "\xe2\x81\xa9", "\xd8\x9c"})
    EXPECT_EQ(terminal_safe(control)[0], '\\') << control;
  for (const char* other : {"\xe2\x80\x8d", "\xe2\x80\xa7", "\xe2\x80\xaf",
                            "\xe2\x81\xaa", "\xe2\x82\xac", "\xd8\x9b"})
    EXPECT_EQ(terminal_safe(other), other);
}

TEST(Text, TerminalTextHoldsBackIncompleteCharacters) {
  TerminalText text;
  EXPECT_EQ(text.add("\xe2"), "");
  EXPECT_EQ(text.add("\x82"), "");
  EXPECT_EQ(text.add("\xac!"), "\xe2\x82\xac!");
  EXPECT_EQ(text.add("\xc3"), "");
  EXPECT_EQ(text.add("\x1b"), "\\xc3\\x1b");
  EXPECT_EQ(text.add("\xf0\x9f"), "");
  EXPECT_EQ(text.finish(), "\\xf0\\x9f");
  EXPECT_EQ(text.finish(), "");
}

}  // namespace
}  // namespace aft::base
