// The program `aft`: sets threads and allocator (the library leaves both
// alone), hands the command line to app.cc, and turns exceptions into exit
// codes: 0 done, 1 failed, 2 wrong usage. Messages go to stderr as
// `aft: <message>`.
#include <c10/util/Exception.h>
#include <malloc.h>

#include <cstdlib>
#include <iostream>
#include <new>

#include "cli/app.h"
#include "cli/commands.h"

namespace aft::cli {
namespace {

/// Freed memory stays in the process: otherwise each fresh activation is mapped
/// and cleared by the kernel page by page (measured on a linear layer: 87
/// against 148 GFLOP/s). M_MMAP_THRESHOLD alone ends at 32 MB.
void keep_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 16 << 20);
}

int report(const std::string& message, int code) {
  // Of several processes, which one it is.
  const char* rank = std::getenv("RANK");
  std::cerr << "aft: " + (rank ? "[" + std::string(rank) + "] " : "") +
                   message + "\n";
  return code;
}

}  // namespace
}  // namespace aft::cli

int main(int argc, char** argv) {
  using namespace aft::cli;
  try {
    keep_memory();
    set_threads(0);
    return run(*make_app(), argc, argv);
  } catch (const UsageError& e) {
    return report(e.what(), 2);
  } catch (const c10::Error& e) {
    return report(e.what_without_backtrace(), 1);
  } catch (const std::bad_alloc&) {
    return report("not enough memory", 1);
  } catch (const std::exception& e) {
    return report(e.what(), 1);
  }
}
