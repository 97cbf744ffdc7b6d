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

/// Raises the limit of open files: rank 0 has five connections to each other
/// rank, four of them of the store.
void raise_file_limit(const train::LaunchEnvironment& environment) {
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

/// Ends this process, from any thread, because a peer failed.
std::function<void(const std::string&)>& give_up() {
  static std::function<void(const std::string&)> f;
  return f;
}

/// c10d also reads from the store in a background thread, whose exceptions
/// (such as a connection reset) are not caught.
[[noreturn]] void on_terminate() {
  std::string why = "unknown";
  try {
    if (const std::exception_ptr e = std::current_exception())
      std::rethrow_exception(e);
  } catch (const std::system_error& e) {
    give_up()(train::host_of(train::launch_environment()) +
              " can no longer be reached: " + train::reason(e));
  } catch (const std::exception& e) {
    why = train::reason(e);
  } catch (...) {
  }
  report_failure("uncaught error: " + why, 1);
  std::abort();
}

}  // namespace

void run_distributed(
    const train::LaunchEnvironment& environment, double timeout,
    const std::function<std::string(const std::string&)>& advised,
    const std::function<void(train::Group&)>& work) {
  raise_file_limit(environment);
  give_up() = [advised](const std::string& why) {
    _exit(report_failure(advised(why), kPeerFailed));
  };
  std::set_terminate(on_terminate);
  // give_up() is called when a peer fails while this process is busy elsewhere,
  // for example in a long validation.
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
