// labels.tsv: which class each picture of a folder has, and what classes are
// called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aft::tasks {

struct LabelTable {
  struct Row {
    std::string file;  ///< from the folder of the table
    int64_t label;
  };
  std::vector<Row> rows;
  /// Class i is called "wnid name", what there is of that, or "class i".
  std::vector<std::string> classes;
};

/// Columns between tabs, named in the first line, in any order: class_index
/// and, if they are there, wnid and name; with `files` also file, which must
/// lie beside the table or in images/. Throws DataError, which names the file,
/// the line, what was expected and what came.
LabelTable read_label_table(const std::string& path, bool files);

}  // namespace aft::tasks
