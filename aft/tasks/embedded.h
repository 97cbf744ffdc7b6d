// Files embedded in the library: the presets and the project's own text.
// Generated from presets/ and the sources at build time.
#pragma once

#include <string_view>
#include <vector>

namespace aft::embedded {

struct File {
  std::string_view name, content;
};

/// presets/*.json first, then the text.
const std::vector<File>& all();

}  // namespace aft::embedded
