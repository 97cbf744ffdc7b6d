// Small files, replaced in one step.
#pragma once

#include <string>

namespace aft::io {

/// Writes text to path: a file beside it, fsync, rename. On failure throws an
/// io::Error with path and reason; the old file stays as it was. What is there
/// and not a regular file (a directory, a device) is not replaced.
void write_file(const std::string& path, const std::string& text);

}  // namespace aft::io
