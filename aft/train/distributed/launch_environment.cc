#include "aft/train/distributed/launch_environment.h"

#include <cerrno>
#include <cstdlib>

namespace aft::train {
namespace {

constexpr uint16_t kPort = 29500;  // torchrun's default
// Range for Slurm: jobs, and steps of a job, that share a machine need
// different ports.
constexpr int64_t kFirstPort = 15000, kPorts = 15000;

class Reader {
 public:
  explicit Reader(const Environment& environment) : get_(environment) {}

  bool has(const char* name) const { return get_(name) != nullptr; }
  std::string text(const char* name, const std::string& otherwise) const {
    const char* value = get_(name);
    return value && *value ? value : otherwise;
  }
  /// Parses an integer in [low, high].
  int64_t number(const char* name, int64_t low, int64_t high) const {
    const char* value = get_(name);
    char* end = nullptr;
    errno = 0;
    const int64_t x = value ? std::strtoll(value, &end, 10) : 0;
    if (!value || end == value || *end != 0 || errno != 0 || x < low ||
        x > high)
      throw LaunchError(std::string("the variable ") + name +
                        ": expected a number from " + std::to_string(low) +
                        " to " + std::to_string(high) + ", got " +
                        (value ? "'" + std::string(value) + "'" : "nothing"));
    return x;
  }
  int64_t number(const char* name, int64_t low, int64_t high,
                 int64_t otherwise) const {
    return has(name) ? number(name, low, high) : otherwise;
  }

 private:
  const Environment& get_;
};

constexpr int64_t kMost = 1 << 20;  // maximum number of processes

void ranks(const Reader& read, const char* rank, const char* size,
           const char* local, const char* local_size,
           LaunchEnvironment& environment) {
  environment.size = static_cast<int>(read.number(size, 1, kMost));
  environment.rank =
      static_cast<int>(read.number(rank, 0, environment.size - 1));
  environment.local_rank =
      static_cast<int>(read.number(local, 0, environment.size - 1, 0));
  if (local_size)
    environment.local_size =
        static_cast<int>(read.number(local_size, 1, environment.size, 1));
}

}  // namespace

std::string first_node(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", open);
  return list.substr(0, open) +
         list.substr(open + 1, end == std::string::npos ? end : end - open - 1);
}

LaunchEnvironment parse_launch_environment(const Environment& variables) {
  const Reader read(variables);
  LaunchEnvironment environment;
  std::string address;
  int64_t port = kPort;
  if (read.has("RANK") || read.has("WORLD_SIZE")) {
    ranks(read, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
          environment);
    environment.hosted =
        read.text("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
  } else if (read.has("OMPI_COMM_WORLD_RANK")) {
    ranks(read, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
          environment);
  } else if (read.has("PMI_RANK") && read.has("MPI_LOCALNRANKS")) {
    ranks(read, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
          environment);
  } else if (read.has("SLURM_PROCID") && read.has("SLURM_STEP_NODELIST")) {
    // Checked after mpirun's variables: inside a Slurm job, MPI processes
    // inherit Slurm's variables from the daemon that started them.
    ranks(read, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr,
          environment);
    address = first_node(read.text("SLURM_STEP_NODELIST", ""));
    constexpr int64_t kMostJobs = int64_t{1} << 40;
    port = kFirstPort + (17 * read.number("SLURM_JOB_ID", 0, kMostJobs, 0) +
                         read.number("SLURM_STEP_ID", 0, kMostJobs, 0)) %
                            kPorts;
  } else if (read.has("PMI_RANK")) {
    ranks(read, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", nullptr,
          environment);
  }
  // If all processes run on this machine, the address need not be given.
  if (address.empty() && !read.has("RANK") &&
      environment.local_size == environment.size)
    address = "127.0.0.1";
  environment.restarts =
      static_cast<int>(read.number("TORCHELASTIC_RESTART_COUNT", 0, kMost, 0));
  if (environment.size == 1) return environment;
  environment.address = read.text("MASTER_ADDR", address);
  if (environment.address.empty())
    throw LaunchError(
        "the variable MASTER_ADDR: expected the address of rank 0, where " +
        std::to_string(environment.size) + " processes meet, got nothing");
  environment.port =
      static_cast<uint16_t>(read.number("MASTER_PORT", 1, 65535, port));
  return environment;
}

LaunchEnvironment launch_environment() {
  return parse_launch_environment(
      [](const char* name) { return std::getenv(name); });
}

}  // namespace aft::train
