// labels.tsv: the class of each image in a folder, and the names of the
// classes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aft::data {

struct LabelTable {
  struct Row {
    std::string file;  ///< relative to the folder of the table
    int64_t label;
  };
  std::vector<Row> rows;
  /// The name of class i is "wnid name", whichever of the two is given, or
  /// "class i".
  std::vector<std::string> classes;
};

/// The WordNet id (n and digits) that is the first word of a class name; "" if
/// there is none.
std::string wnid_of(const std::string& name);

/// Reads a table of tab-separated columns, named in the first line, in any
/// order: class_index and optionally wnid and name; with `files` also file,
/// which must be next to the table or in images/. Throws DataError, which names
/// the file, the line, and what was expected and found.
LabelTable read_label_table(const std::string& path, bool files);

}  // namespace aft::data
