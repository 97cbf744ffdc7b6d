// JSON files.
#pragma once

#include <string>

#include "aft/base/config.h"

namespace aft::io {

/// Reads a JSON file of at most 16 MB within the limits of base::parse_json.
/// Throws base::ConfigError, which names the file.
base::Json read_json_file(const std::string& path);

}  // namespace aft::io
