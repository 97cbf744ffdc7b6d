// Launches several processes of this program on this machine as one distributed
// run.
#pragma once

#include <string>
#include <vector>

namespace aft::cli {

struct Launched {
  int code = 0;          ///< 0, or the exit code of the failed rank
  std::string what;      ///< "rank 1 was killed by signal 9"; empty on success
  bool stopped = false;  ///< a rank was interrupted, and saved
};

/// Runs `aft <arguments>` as `processes` ranks and waits for them.
///
/// port: the rendezvous port on the loopback interface; 0: any free port.
/// restarts: how often the run was restarted so far; passed on to the ranks.
/// rank0_out: file descriptor for the stdout of rank 0; -1: this program's.
///
/// Unless OMP_NUM_THREADS is set, the ranks divide the cores equally. When a
/// rank fails, the others get a grace period and are then killed. When
/// a first signal is caught (cli/interrupt.h), all ranks receive SIGINT; with
/// the second one, SIGKILL. Throws std::runtime_error.
Launched launch(int processes, const std::vector<std::string>& arguments,
                int port, int restarts, int rank0_out);
/// Like launch(), for measurements: returns the stdout of rank 0, which must be
/// less than 64 kB. Throws std::runtime_error if a rank fails; the message
/// starts with `what` and names the rank.
std::string launch_for(const std::string& what, int processes,
                       const std::vector<std::string>& arguments);

}  // namespace aft::cli
