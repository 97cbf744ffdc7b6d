// Which process of how many this is, and where the first of them can be
// reached: from the variables that launchers set.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace aft::train {

/// Variables that contradict each other, or say too little.
struct WorldError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Another process has failed, or cannot be reached; the message names it.
struct PeerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct World {
  int rank = 0, size = 1;
  /// Among the processes of this machine, and how many they are known to be.
  int local_rank = 0, local_size = 1;
  std::string address = "127.0.0.1";  ///< of rank 0
  uint16_t port = 0;
  int restarts = 0;  ///< how often the launcher has begun again
  /// Someone else (torchrun) listens at address:port, for all to meet there;
  /// otherwise rank 0 does.
  bool hosted = false;
};

/// The value of a variable, or null.
using Environment = std::function<const char*(const char* name)>;

/// The first that there is of
///   torchrun, `aft launch`  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
///                           MASTER_ADDR, MASTER_PORT
///   Open MPI                OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK,
///                           _LOCAL_SIZE
///   MPICH                   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
///                           MPI_LOCALNRANKS
///   Slurm (srun)            SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, the
///                           first node of SLURM_STEP_NODELIST, and a port
///                           from SLURM_JOB_ID and SLURM_STEP_ID
/// MASTER_ADDR and MASTER_PORT are heeded everywhere; without them processes
/// of MPI must be on one machine. World() where there are no such variables.
/// Throws WorldError, which names the variable, what was expected and what
/// came.
World world_of(const Environment& environment);
/// Of this process.
World world_of_process();

/// The first node of a list as Slurm writes it: "a[3-5,9],b" is "a3".
std::string first_node(const std::string& list);

}  // namespace aft::train
