// The program `aft`: sets threads and allocator (the library leaves both
// alone), hands the command line to app.cc, and turns exceptions into exit
// codes: 0 done, 1 failed, 2 wrong usage, 3 ended because another process of
// its group failed. Messages go to stderr as `aft: <message>`.
#include <malloc.h>

#include <cstdio>
#include <iostream>
#include <new>
#include <string>

#include "aft/train/meeting.h"
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

/// What came may hold anything, and terminals obey some of it.
std::string harmless(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const unsigned byte = static_cast<unsigned char>(c);
    if ((byte >= 0x20 && byte != 0x7f) || c == '\n') {
      out += c;
    } else {
      char code[5];
      snprintf(code, sizeof(code), "\\x%02x", byte);
      out += code;
    }
  }
  return out;
}

int report(const std::string& message, int code) {
  std::string rank;  // of several processes, which one it is
  try {
    const aft::train::World world = aft::train::world_of_process();
    if (world.size > 1) rank = "[" + std::to_string(world.rank) + "] ";
  } catch (const aft::train::WorldError&) {
  }
  std::cerr << "aft: " + rank + harmless(message) + "\n";
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
  } catch (const aft::train::PeerError& e) {
    return report(e.what(), kPeerFailed);
  } catch (const std::bad_alloc&) {
    return report("not enough memory", 1);
  } catch (const std::exception& e) {
    return report(aft::train::reason(e), 1);
  }
}
