// Files embedded in the library: the presets. Generated from presets/ at build
// time.
#pragma once

#include <string_view>
#include <vector>

namespace aft::embedded {

struct File {
  std::string_view name, content;
};

const std::vector<File>& all();

}  // namespace aft::embedded
