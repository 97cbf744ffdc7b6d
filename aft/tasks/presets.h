// The presets: a configuration for every row of the paper's tables, and small
// ones. They are the files in presets/, embedded in the library. A user's JSON
// file has the same form, or that of config.json:
//
//   {"base": "text-aft-local-4x128", "about": "a narrower window",
//    "config": {"model": {"window": 16}}}
//   {"base": "text-aft-local-4x128", "model": {"window": 16}}
//
// "base" names another preset, a file of presets/base/ (which is not a preset
// itself) or, with a slash or the ending .json, a file relative to this one.
// The configuration is that of the base, with the keys given here replaced;
// nothing else is inherited.
#pragma once

#include <string>
#include <vector>

#include "aft/base/config.h"

namespace aft::tasks {

struct Preset {
  std::string name, about;
  /// The tables of the paper, or lists of small models, that it is a row of.
  std::vector<std::string> tables;
  base::Json paper;   ///< the paper's results for that row; null: none
  base::Json config;  ///< as in config.json; missing keys have their defaults
};

struct UnknownPreset : base::ConfigError {
  using ConfigError::ConfigError;
};

/// All presets, sorted by name.
const std::vector<Preset>& presets();
/// Throws UnknownPreset, which suggests the closest names.
const Preset& preset(const std::string& name);
/// The preset of that name or, with a slash or the ending .json, the one in
/// that file, which may also be a plain configuration. Throws UnknownPreset;
/// ConfigError, which names the file.
Preset load_preset(const std::string& what);

}  // namespace aft::tasks
