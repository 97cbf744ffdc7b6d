// The presets: a configuration for every row of the paper's tables, and small
// ones. Files in presets/, part of the library.
#pragma once

#include <string>
#include <vector>

#include "aft/models/config.h"

namespace aft::tasks {

struct Preset {
  std::string name, about;
  models::Json paper;  ///< the paper's figures of that row; null: none
  models::Json
      config;  ///< as in config.json; what is not named has its default
};

/// All, in the order of their names.
const std::vector<Preset>& presets();
/// Throws ConfigError with the nearest names.
const Preset& preset(const std::string& name);
/// A preset or a configuration from JSON; `where` opens messages. Throws
/// ConfigError.
Preset parse_preset(const std::string& where, const models::Json& j);

}  // namespace aft::tasks
