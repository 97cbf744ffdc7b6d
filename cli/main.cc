// The program `aft`: sets threads and allocator (the library leaves both
// alone), hands the command line to app.cc, and turns exceptions into exit
// codes: 0 done, 1 failed, 2 wrong usage, 3 ended because another process of
// its group failed. Messages go to stderr as `aft: <message>`.
#include <malloc.h>

#include <new>

#include "aft/train/distributed/rendezvous.h"
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

}  // namespace
}  // namespace aft::cli

int main(int argc, char** argv) {
  using namespace aft::cli;
  try {
    keep_memory();
    set_threads(0);
    return run(*make_app(), argc, argv);
  } catch (const UsageError& e) {
    return report_failure(e.what(), 2);
  } catch (const aft::train::PeerError& e) {
    return report_failure(e.what(), kPeerFailed);
  } catch (const std::bad_alloc&) {
    return report_failure("not enough memory", 1);
  } catch (const std::exception& e) {
    return report_failure(aft::train::reason(e), 1);
  }
}
