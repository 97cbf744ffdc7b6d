// The program `aft`: configures threads and the allocator, which the library
// leaves alone, runs the command line (app.cc), and turns exceptions into exit
// codes: 0 success, 1 failure, 2 usage error, 3 another process of the same
// distributed run failed. Messages go to stderr as `aft: <message>`.
#include <malloc.h>

#include <new>

#include "aft/tasks/memory_limit.h"
#include "aft/train/distributed/rendezvous.h"
#include "cli/app.h"
#include "cli/commands.h"

namespace aft::cli {
namespace {

/// Keeps freed memory in the process. Otherwise the kernel maps and clears the
/// pages of every new activation (measured on a linear layer: 87 against 148
/// GFLOP/s). M_MMAP_THRESHOLD alone has no effect above 32 MB.
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
    aft::tasks::install_memory_limit();
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
