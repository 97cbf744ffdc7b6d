// The public data sets that the presets train on: what they are called, where
// they come from, how to know that a file is one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aft::tasks {

struct Dataset {
  std::string name;     ///< also the name of the file, or the directory
  std::string about;    ///< one line
  std::string address;  ///< for curl; a name that ends in .zip is unpacked
  int64_t size = 0;     ///< of the file, in bytes
  std::string sha256;   ///< of the file, in hex
  /// Both are of a .tar.gz at the address, which holds a directory of that
  /// name.
  bool archive = false;
};

/// Those we know.
const std::vector<Dataset>& datasets();

/// The data set of that name, or nullptr.
const Dataset* find_dataset(const std::string& name);

/// Throws DataError unless the file has the size and the checksum of `set`.
void check_file(const Dataset& set, const std::string& path);

/// Gets `set` into directory/name with curl (and unzip), checks it, and only
/// then gives it its name; on failure nothing is left behind. A file of that
/// name that is right is kept, one that is not is an error; a directory of that
/// name is kept as it is. quiet: no progress of curl's on stderr. Returns the
/// path. Throws DataError: no curl, no network, a wrong size or checksum, a
/// disk that is full.
std::string fetch(const Dataset& set, const std::string& directory, bool quiet);

}  // namespace aft::tasks
