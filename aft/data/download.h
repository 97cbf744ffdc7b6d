// The public data sets that the presets train on: names, URLs, sizes and
// checksums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aft::data {

struct Dataset {
  std::string name;     ///< also the name of the file or directory
  std::string about;    ///< one-line description
  std::string address;  ///< URL for curl; a .zip file is unpacked
  int64_t size = 0;     ///< of the file, in bytes
  std::string sha256;   ///< of the file, in hex
  /// If true, size and sha256 are those of a .tar.gz file at the URL, which
  /// contains a directory called `name`.
  bool archive = false;
};

/// All known data sets.
const std::vector<Dataset>& datasets();

/// The data set of that name, or nullptr.
const Dataset* find_dataset(const std::string& name);

/// Throws DataError unless the file has the size and the checksum of `set`.
void check_file(const Dataset& set, const std::string& path);

/// Downloads `set` to directory/name with curl (and unzip or tar). The file is
/// verified before it gets its name; on failure nothing is left behind. An
/// existing file of that name is kept if it is valid and an error otherwise; an
/// existing directory is kept without a check. quiet: curl shows no progress on
/// stderr. Returns the path. Throws DataError if curl is missing, the download
/// fails, the size or checksum is wrong, or the disk is full.
std::string fetch(const Dataset& set, const std::string& directory, bool quiet);

}  // namespace aft::data
