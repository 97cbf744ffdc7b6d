// Fuzzes labels.tsv: an error must name the file, and every row must have a
// valid class.
#include "aft/data/data.h"
#include "aft/data/label_table.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static aft::fuzz::MemoryFile memory;
  memory.put(data, size);
  // Image files are next to the table: in /proc/self/fd, that may be "0".
  for (const bool files : {false, true}) {
    try {
      const auto table = aft::data::read_label_table(memory.path(), files);
      aft::fuzz::expect(!table.rows.empty(), "a table without rows");
      for (const auto& row : table.rows)
        aft::fuzz::expect(
            row.label >= 0 &&
                row.label < static_cast<int64_t>(table.classes.size()) &&
                row.file.empty() != files,
            "a row without its class or file");
      for (const std::string& name : table.classes)
        aft::fuzz::expect(!name.empty(), "a class without a name");
    } catch (const aft::data::DataError& e) {
      aft::fuzz::expect_message(e.what(), memory.path() + ": ");
    }
  }
  return 0;
}
