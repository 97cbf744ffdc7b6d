#include "cli/plot/font.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace aft::cli {
namespace {

// The glyphs from ' ' to '~'. A glyph is a list of lines separated by blanks,
// and a line is a list of points: x as '0' to '<' (0 to 12), then y as 'a' to
// 'r' (-4 to 13; 'e' is the baseline, 'm' the height of small letters, 'q' of
// capitals). '>' before a point draws a quarter ellipse that leaves the
// previous point horizontally, '^' one that leaves it vertically; otherwise the
// line is straight.
constexpr const char* kGlyphs[] = {
    "",                                       // blank
    "1q1i 1e1e",                              // !
    "0q0n 3q3n",                              // "
    "1e3q 5e7q 0i8i 0m8m",                    // #
    "6n^3q>0n^3k>6h^3e>0h 3r3d",              // $
    "2q>0o^2m>4o^2q 8i>6g^8e>:g^8i 9q1e",     // %
    "9e2n^4q>6n1j0h^3e>8j",                   // &
    "0q0n",                                   // '
    "3r1o0l0j1g3c",                           // (
    "0r2o3l3j2g0c",                           // )
    "3q3k 0o6l 0l6o",                         // *
    "0j8j 4n4f",                              // +
    "1f0c",                                   // ,
    "0j4j",                                   // -
    "0e0e",                                   // .
    "0d5r",                                   // /
    "3q>0k^3e>6k^3q",                         // 0
    "1n4q4e",                                 // 1
    "0n^3q>6n0e6e",                           // 2
    "0n^3q>6n^3k 2k3k>6h^3e>0h",              // 3
    "4e4q0h6h",                               // 4
    "6q1q0j^3m>6i^3e>0g",                     // 5
    "5q>0i^3e>6i^3m>0i",                      // 6
    "0q6q2e",                                 // 7
    "3q>0n^3k>6n^3q 3k>0h^3e>6h^3k",          // 8
    "1e>6m^3q>0m^3i>6m",                      // 9
    "0m0m 0e0e",                              // :
    "1m1m 1f0c",                              // ;
    "7n0j7f",                                 // <
    "0l8l 0h8h",                              // =
    "0n7j0f",                                 // >
    "0n^3q>6n^3j3h 3e3e",                     // ?
    "5l>3j^5h>7j^5l 7l7i^8h>:k^5q>0j^5c>8d",  // @
    "0e4q8e 1h7h",                            // A
    "0e0q3q>6n^3k 0k3k>7h^3e0e",              // B
    "8n^4q>0k^4e>8h",                         // C
    "0e0q3q>8k^3e0e",                         // D
    "6q0q0e6e 0k5k",                          // E
    "6q0q0e 0k5k",                            // F
    "8n^4q>0k^4e>8j8k5k",                     // G
    "0q0e 7q7e 0k7k",                         // H
    "0q0e",                                   // I
    "5q5h^2e>0h",                             // J
    "0q0e 7q0i 3l7e",                         // K
    "0q0e6e",                                 // L
    "0e0q4g8q8e",                             // M
    "0e0q7e7q",                               // N
    "4q>0k^4e>8k^4q",                         // O
    "0e0q4q>7n^4k0k",                         // P
    "4q>0k^4e>8k^4q 5h8d",                    // Q
    "0e0q4q>7n^4k0k 4k7e",                    // R
    "6n^3q>0n^3k>6h^3e>0h",                   // S
    "0q8q 4q4e",                              // T
    "0q0i^4e>8i8q",                           // U
    "0q4e8q",                                 // V
    "0q3e6q9e<q",                             // W
    "0q7e 7q0e",                              // X
    "0q4k8q 4k4e",                            // Y
    "0q7q0e7e",                               // Z
    "3r0r0c3c",                               // [
    "0r5d",                                   // backslash
    "0r3r3c0c",                               // ]
    "0l3q6l",                                 // ^
    "0c8c",                                   // _
    "0q2o",                                   // `
    "6m6e 3m>0i^3e>6i^3m",                    // a
    "0q0e 3m>0i^3e>6i^3m",                    // b
    "6k^3m>0i^3e>6g",                         // c
    "6q6e 3m>0i^3e>6i^3m",                    // d
    "0i6i^3m>0i^3e>6g",                       // e
    "4q>2n2e 0m4m",                           // f
    "6m6d^3a>0c 3m>0i^3e>6i^3m",              // g
    "0q0e 0i^3m>6j6e",                        // h
    "0m0e 0p0p",                              // i
    "2m2c^0a 2p2p",                           // j
    "0q0e 5m0h 2j6e",                         // k
    "0q0g^2e",                                // l
    "0m0e 0j^3m>5j5e 5j^8m>:j:e",             // m
    "0m0e 0i^3m>6j6e",                        // n
    "3m>0i^3e>6i^3m",                         // o
    "0m0a 3m>0i^3e>6i^3m",                    // p
    "6m6a 3m>0i^3e>6i^3m",                    // q
    "0m0e 0i^3m4m",                           // r
    "6k^3m>0k^3i>6g^3e>0g",                   // s
    "2p2g^4e 0m4m",                           // t
    "0m0h^3e>6i 6m6e",                        // u
    "0m3e6m",                                 // v
    "0m2e5l8e:m",                             // w
    "0m6e 6m0e",                              // x
    "0m3e 6m2b",                              // y
    "0m6m0e6e",                               // z
    "4r2q2l0j2h2d4c",                         // {
    "0r0c",                                   // |
    "0r2q2l4j2h2d0c",                         // }
    "0i^2l>4j^6h>8k",                         // ~
};
constexpr size_t kCount = sizeof(kGlyphs) / sizeof(kGlyphs[0]);
static_assert(kCount == '~' - ' ' + 1);

void arc(Path& line, double x, double y, bool horizontally) {
  constexpr int kPieces = 8;
  const auto [x0, y0] = line.back();
  for (int i = 1; i <= kPieces; ++i) {
    const double angle = std::acos(0.0) * i / kPieces;
    const double s = std::sin(angle), c = std::cos(angle);
    if (horizontally) {
      line.emplace_back(x0 + (x - x0) * s, y + (y0 - y) * c);
    } else {
      line.emplace_back(x + (x0 - x) * c, y0 + (y - y0) * s);
    }
  }
}

Glyph read(const char* text) {
  Glyph out;
  double right = 2;
  bool fresh = true;
  while (*text) {
    if (*text == ' ') {
      fresh = true, ++text;
      continue;
    }
    const char kind = *text == '>' || *text == '^' ? *text++ : '-';
    const double x = text[0] - '0', y = text[1] - 'e';
    text += 2;
    right = std::max(right, x);
    if (fresh) out.lines.emplace_back();
    fresh = false;
    Path& line = out.lines.back();
    if (kind == '-') {
      line.emplace_back(x, y);
    } else {
      arc(line, x, y, kind == '>');
    }
  }
  // Narrow glyphs are centred.
  double middle = 0;
  for (const Path& line : out.lines)
    for (const auto& point : line) middle = std::max(middle, point.first);
  for (Path& line : out.lines)
    for (auto& point : line) point.first += 1.5 + (right - middle) / 2;
  out.advance = right + 3;
  return out;
}

}  // namespace

const Glyph& glyph(char c) {
  static const std::array<Glyph, kCount> all = [] {
    std::array<Glyph, kCount> out;
    for (size_t i = 0; i < kCount; ++i) out[i] = read(kGlyphs[i]);
    return out;
  }();
  return all[(c < ' ' || c > '~' ? '?' : c) - ' '];
}

}  // namespace aft::cli
