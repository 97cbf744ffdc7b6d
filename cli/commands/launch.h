// Several processes of this program on this machine, as one run.
#pragma once

#include <string>
#include <vector>

namespace aft::cli {

struct Launched {
  int code = 0;      ///< 0, or of the one that failed
  std::string what;  ///< "rank 1 was killed by signal 9"; empty where none did
};

/// `aft <arguments>` as `processes` ranks that meet on a port of this machine;
/// port 0: a free one. Each gets its share of the cores as threads, unless
/// OMP_NUM_THREADS is set. When one fails, those that do not end soon are
/// killed. rank0_out: a file for what rank 0 prints; -1: this program's. Where
/// `interrupted` (cli/child.h) becomes 1, all are interrupted; 2: killed.
/// Throws std::runtime_error.
Launched launch(int processes, const std::vector<std::string>& arguments,
                int port, int restarts, int rank0_out);
/// The same for a measurement: what rank 0 printed, less than 64 kB. Throws
/// std::runtime_error where one fails, which says who, after `what`.
std::string launch_for(const std::string& what, int processes,
                       const std::vector<std::string>& arguments);

}  // namespace aft::cli
