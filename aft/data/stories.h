// The built-in text: simple English stories, generated from a fixed grammar.
#pragma once

#include <string>

namespace aft::data {

/// The built-in text, version 2: short stories for small children, about
/// 1.1 MB of ASCII. Each story is a title line and a few one-line paragraphs;
/// one empty line separates two stories. The text ends with a newline.
///
/// The bytes are the same on every platform and never change within a version,
/// so results on them stay comparable: a change of the text is a new version.
/// Generated at the first call (about 30 ms) and kept. Thread-safe.
const std::string& built_in_stories();

}  // namespace aft::data
