#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace aft::cli {
namespace {

struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw std::runtime_error(std::string("no pipe to a process: ") +
                               std::strerror(errno));
  }
  ~Pipe() {
    close_write();
    close(ends[0]);
  }
  void close_write() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  int ends[2];
};

/// Appends what there is; false at the end.
bool take(int from, std::string& to) {
  char buffer[4096];
  const ssize_t n = read(from, buffer, sizeof(buffer));
  if (n > 0) to.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && errno == EINTR);
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of("\r\n");
  if (end == std::string::npos) return "";
  const size_t begin = text.find_last_of("\r\n", end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

}  // namespace

volatile sig_atomic_t interrupted = 0;

Child run_aft(std::vector<std::string> arguments, bool keep_stderr) {
  arguments.insert(arguments.begin(), "aft");
  std::vector<char*> raw;
  for (std::string& a : arguments) raw.push_back(a.data());
  raw.push_back(nullptr);
  Pipe out, error;
  // Between fork and exec only calls that are safe beside other threads.
  const pid_t child = fork();
  if (child < 0)
    throw std::runtime_error(std::string("no process of its own: ") +
                             std::strerror(errno));
  if (child == 0) {
    // Ctrl-C reaches it through the parent alone, once; and it does not outlive
    // the parent.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(out.ends[1], STDOUT_FILENO);
    if (keep_stderr) dup2(error.ends[1], STDERR_FILENO);
    execv("/proc/self/exe", raw.data());
    _exit(127);
  }
  out.close_write(), error.close_write();
  Child result;
  std::string log;
  bool open_out = true, open_error = true, told = false;
  while (open_out || open_error) {
    pollfd wait[] = {{open_out ? out.ends[0] : -1, POLLIN, 0},
                     {open_error ? error.ends[0] : -1, POLLIN, 0}};
    const int ready = poll(wait, 2, /*ms=*/200);
    if (interrupted != 0 && !told) kill(child, SIGINT), told = true;
    if (ready < 0 && errno != EINTR) break;
    if (ready <= 0) continue;
    if (wait[0].revents != 0) open_out = take(out.ends[0], result.out);
    if (wait[1].revents != 0) open_error = take(error.ends[0], log);
  }
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  result.code =
      WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.error = last_line(log);
  result.peak = 1024.0 * static_cast<double>(usage.ru_maxrss);
  return result;
}

}  // namespace aft::cli
