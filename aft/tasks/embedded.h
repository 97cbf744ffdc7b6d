// Files that are part of the library: the presets, and the project's own text.
// Made from presets/ and from the sources when the library is built.
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
