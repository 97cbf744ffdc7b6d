#include "cli/commands/launch.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model.h"
#include "cli/subprocess.h"

namespace aft::cli {
namespace {

using Clock = std::chrono::steady_clock;
/// How long the other ranks may take to exit after one has failed.
constexpr std::chrono::seconds kGrace(20);

/// A port that the system assigns to no other process during the lifetime of
/// this object. Rank 0 can still listen on it.
class FreePort {
 public:
  FreePort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    const int on = 1;
    if (fd_ < 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd_, any, length) != 0 || getsockname(fd_, any, &length) != 0) {
      const int why = errno;
      if (fd_ >= 0) close(fd_);
      throw std::runtime_error(
          std::string("launch: no free port on this machine: ") +
          std::strerror(why));
    }
    number_ = ntohs(address.sin_port);
  }
  ~FreePort() { close(fd_); }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  int number() const { return number_; }

 private:
  const int fd_;
  int number_ = 0;
};

/// The running processes.
struct Ranks {
  std::vector<pid_t> pids;  // 0: ended
  ~Ranks() { signal(SIGKILL); }
  void signal(int which) const {
    for (const pid_t pid : pids)
      if (pid > 0) kill(pid, which);
  }
  bool any() const {
    return std::any_of(pids.begin(), pids.end(), [](pid_t p) { return p > 0; });
  }
};

std::string described_end(size_t rank, int status) {
  return "rank " + std::to_string(rank) +
         (WIFSIGNALED(status)
              ? " was killed by signal " + std::to_string(WTERMSIG(status))
              : " ended with exit code " + std::to_string(WEXITSTATUS(status)));
}

struct Options {
  int processes = 2, restarts = 0, port = 0;
  std::vector<std::string> arguments;
};

void run(const Options& o) {
  if (o.arguments.empty() || o.arguments[0] != "train")
    throw UsageError(
        "launch: expected `train ...` to run, got " +
        (o.arguments.empty() ? "nothing" : "'" + o.arguments[0] + "'"));
  check_train(o.arguments);  // otherwise every rank would report the error
  for (const std::string& word : o.arguments)
    if (word == "--help" || word == "-h") return;  // it is shown
  // The first signal interrupts the ranks, the second one kills them.
  catch_interrupts(std::numeric_limits<int>::max());
  for (int tries = 0;; ++tries) {
    const Launched end = launch(o.processes, o.arguments, o.port, tries, -1);
    if (end.stopped && (end.code == 0 || end.code == kPeerFailed))
      throw Interrupted();
    if (end.code == 0) return;
    // A usage error would recur.
    if (end.code == 2) throw UsageError("launch: " + end.what);
    if (interrupts() > 0 || tries >= o.restarts)
      throw std::runtime_error("launch: " + end.what);
    std::cerr << "launch: " << end.what
              << "; restarting from the last checkpoint (" << tries + 1
              << " of " << o.restarts << ")" << std::endl;
  }
}

}  // namespace

Launched launch(int processes, const std::vector<std::string>& arguments,
                int port, int restarts, int rank0_out) {
  std::optional<FreePort> free;
  if (port == 0) port = free.emplace().number();
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  Ranks ranks;
  for (int r = 0; r < processes; ++r) {
    Variables variables = {
        {"RANK", std::to_string(r)},
        {"LOCAL_RANK", std::to_string(r)},
        {"LOCAL_WORLD_SIZE", std::to_string(processes)},
        {"WORLD_SIZE", std::to_string(processes)},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", std::to_string(port)},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(restarts)},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
    if (!getenv("OMP_NUM_THREADS"))
      variables.emplace_back(
          "OMP_NUM_THREADS",
          std::to_string(
              std::max(1u, cores / static_cast<unsigned>(processes))));
    ranks.pids.push_back(
        start_aft(arguments, variables, r == 0 ? rank0_out : -1, -1));
  }
  Launched result;
  int told = 0;
  bool killed = false;
  Clock::time_point failed;
  while (ranks.any()) {
    for (size_t r = 0; r < ranks.pids.size(); ++r) {
      int status = 0;
      if (ranks.pids[r] == 0 ||
          waitpid(ranks.pids[r], &status, WNOHANG) != ranks.pids[r])
        continue;
      ranks.pids[r] = 0;
      const int code = exit_code(status);
      // Interrupted, after saving or before there was anything to save.
      const bool signalled =
          WIFSIGNALED(status) &&
          (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM ||
           WTERMSIG(status) == SIGKILL);
      if ((WIFEXITED(status) && code > 128) || (signalled && told > 0)) {
        result.stopped = true;
        continue;
      }
      // A rank that ended because a peer failed is not the cause.
      if (code == 0 || (result.code != 0 &&
                        (result.code != kPeerFailed || code == kPeerFailed)))
        continue;
      if (result.code == 0) failed = Clock::now();
      result.code = code;
      result.what = killed ? "rank " + std::to_string(r) +
                                 " did not end after the others and was "
                                 "killed"
                           : described_end(r, status);
    }
    if (std::min(interrupts(), 2) > told)
      ranks.signal(++told == 1 ? SIGINT : SIGKILL);
    if (result.code != 0 && !killed && Clock::now() > failed + kGrace)
      ranks.signal(SIGKILL), killed = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return result;
}

std::string launch_for(const std::string& what, int processes,
                       const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw std::runtime_error(what +
                             ": cannot create a pipe: " + std::strerror(errno));
  const Launched end = launch(processes, arguments, 0, 0, ends[1]);
  close(ends[1]);
  std::string out;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  if (end.code != 0) throw std::runtime_error(what + ": " + end.what);
  return out;
}

void add_launch(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "launch", "Train with several processes on this machine");
  add_count(*command, "-n,--processes", o->processes,
            "Processes, which share every batch; default: 2", 1, 4096);
  add_count(*command, "--max-restarts", o->restarts,
            "If a process fails, restart all from the last checkpoint, at most "
            "N times; default: 0",
            0, 1 << 20);
  add_count(*command, "--port", o->port,
            "Rendezvous port of the processes; default: any free port", 1,
            65535)
      ->type_name("PORT");
  command->add_option("command", o->arguments, "train ...")->type_name("");
  // Without `--`, options after `train` are those of train.
  CLI::App* train = command->add_subcommand("train")->group("");
  train->prefix_command()->set_help_flag();
  command->footer(
      "Rank 0 prints the progress of training; error messages name the "
      "rank.\n"
      "On several machines, start `aft train` with torchrun, srun or mpirun "
      "instead (docs/distributed.md).\n"
      "\n"
      "Examples:\n"
      "  aft launch -n 2 train text-aft-local-6x256 --out book\n"
      "  aft launch -n 4 --max-restarts 3 train --resume book");
  command->callback([o, train] {
    if (train->parsed()) {
      o->arguments = train->remaining();
      o->arguments.insert(o->arguments.begin(), "train");
    }
    run(*o);
  });
}

}  // namespace aft::cli
