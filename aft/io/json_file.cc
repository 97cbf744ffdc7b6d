#include "aft/io/json_file.h"

#include "aft/io/file.h"
#include "aft/io/safetensors.h"

namespace aft::io {

base::Json read_json_file(const std::string& path) {
  constexpr size_t kLimit = 16 << 20;
  std::string text;
  try {
    text = read_file(path, kLimit);
  } catch (const Error& e) {
    throw base::ConfigError(e.what());
  }
  try {
    return base::parse_json(text);
  } catch (const base::ConfigError& e) {
    throw base::ConfigError(path + ": " + e.what());
  }
}

}  // namespace aft::io
