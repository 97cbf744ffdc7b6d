#include "cli/distributed_run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <system_error>

#include "aft/train/distributed/rendezvous.h"
#include "cli/commands.h"

namespace aft::cli {
namespace {

/// Rank 0 has five connections with each of the others, four of them where all
/// meet.
void need_files(const train::LaunchEnvironment& environment) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t most = 5 * static_cast<rlim_t>(environment.size) + 100;
  if (limit.rlim_cur < most)
    throw std::runtime_error(std::to_string(environment.size) +
                             " processes need " + std::to_string(most) +
                             " open files at rank 0, and this system allows " +
                             std::to_string(limit.rlim_cur) + " (ulimit -Hn)");
}

/// Ends the process, from any thread, because of another one.
std::function<void(const std::string&)>& give_up() {
  static std::function<void(const std::string&)> f;
  return f;
}

/// c10d reads from where all meet in a thread of its own too, whose exceptions
/// (a connection that is reset) nobody takes.
[[noreturn]] void end_of_thread() {
  std::string why = "unknown";
  try {
    if (const std::exception_ptr e = std::current_exception())
      std::rethrow_exception(e);
  } catch (const std::system_error& e) {
    give_up()(train::host_of(train::launch_environment()) +
              " has gone: " + train::reason(e));
  } catch (const std::exception& e) {
    why = train::reason(e);
  } catch (...) {
  }
  report_failure("an error that nobody took: " + why, 1);
  std::abort();
}

}  // namespace

void run_distributed(
    const train::LaunchEnvironment& environment, double timeout,
    const std::function<std::string(const std::string&)>& advised,
    const std::function<void(train::Group&)>& work) {
  need_files(environment);
  give_up() = [advised](const std::string& why) {
    _exit(report_failure(advised(why), kPeerFailed));
  };
  std::set_terminate(end_of_thread);
  // Given up in a long validation, say, or while files are read.
  train::Group group(environment, timeout, give_up());
  try {
    work(group);
    group.leave();
  } catch (const train::PeerError& e) {
    throw train::PeerError(advised(e.what()));
  } catch (const std::exception& e) {
    group.fail(train::reason(e));
    throw;
  }
}

}  // namespace aft::cli
