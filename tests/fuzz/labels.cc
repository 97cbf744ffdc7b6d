// Any bytes as labels.tsv: an error that names the file, or rows whose labels
// are classes.
#include "aft/data/data.h"
#include "aft/data/label_table.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static aft::fuzz::MemoryFile memory;
  memory.put(data, size);
  // Files lie beside the table: in /proc/self/fd, "0" is one, or none.
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
