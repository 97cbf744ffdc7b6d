// The presets: a configuration for every row of the paper's tables, and small
// ones. They are the files in presets/, embedded in the library.
#pragma once

#include <string>
#include <vector>

#include "aft/base/config.h"

namespace aft::tasks {

struct Preset {
  std::string name, about;
  base::Json paper;   ///< the paper's results for that row; null: none
  base::Json config;  ///< as in config.json; missing keys have their defaults
};

/// All presets, sorted by name.
const std::vector<Preset>& presets();
/// Throws ConfigError, which suggests the closest names.
const Preset& preset(const std::string& name);
/// Parses a preset or a configuration. `where` is the prefix of error messages.
/// Throws ConfigError.
Preset parse_preset(const std::string& where, const base::Json& j);

}  // namespace aft::tasks
