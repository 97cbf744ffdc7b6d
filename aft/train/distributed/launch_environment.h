// The rank of this process, the number of processes and the address of rank 0,
// from the environment variables that launchers set.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace aft::train {

/// The variables are contradictory or incomplete.
struct LaunchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Another process has failed or cannot be reached. The message names it.
struct PeerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LaunchEnvironment {
  int rank = 0, size = 1;
  /// The rank among the processes on this machine, and their number if known.
  int local_rank = 0, local_size = 1;
  std::string address = "127.0.0.1";  ///< of rank 0
  uint16_t port = 0;
  int restarts = 0;  ///< how often the launcher has restarted the processes
  /// If true, the launcher (torchrun) runs the store at address:port; otherwise
  /// rank 0 does.
  bool hosted = false;
};

/// Returns the value of a variable, or null.
using Environment = std::function<const char*(const char* name)>;

/// Reads the variables of the first launcher found, in this order:
///   torchrun, `aft launch`  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
///                           MASTER_ADDR, MASTER_PORT
///   Open MPI                OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK,
///                           _LOCAL_SIZE
///   MPICH                   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
///                           MPI_LOCALNRANKS
///   Slurm (srun)            SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, the
///                           first node of SLURM_STEP_NODELIST, and a port
///                           from SLURM_JOB_ID and SLURM_STEP_ID
/// MASTER_ADDR and MASTER_PORT override the address and port of every launcher.
/// Without them, MPI processes must all run on one machine. Returns
/// LaunchEnvironment() if no such variables are set. Throws LaunchError, which
/// names the variable, and what was expected and found.
LaunchEnvironment parse_launch_environment(const Environment& environment);
/// Reads the environment of this process.
LaunchEnvironment launch_environment();

/// The first node of a Slurm node list: "a3" for "a[3-5,9],b".
std::string first_node(const std::string& list);

}  // namespace aft::train
