#include "cli/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "cli/interrupt.h"

namespace aft::cli {
namespace {

struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw std::runtime_error(std::string("cannot create a pipe: ") +
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

/// Appends the available bytes; false at the end of the stream.
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

pid_t start_aft(std::vector<std::string> arguments, const Variables& variables,
                int out, int error) {
  arguments.insert(arguments.begin(), program_invocation_short_name);
  std::vector<std::string> environment;
  for (char** v = environ; *v; ++v) {
    const std::string name = std::string(*v).substr(0, strcspn(*v, "="));
    bool ours = false;
    for (const auto& item : variables) ours = ours || item.first == name;
    if (!ours) environment.emplace_back(*v);
  }
  for (const auto& [name, value] : variables)
    environment.push_back(name + "=" + value);
  const auto pointers = [](std::vector<std::string>& words) {
    std::vector<char*> raw;
    for (std::string& word : words) raw.push_back(word.data());
    raw.push_back(nullptr);
    return raw;
  };
  const std::vector<char*> argv = pointers(arguments),
                           envp = pointers(environment);
  // Between fork and exec, only async-signal-safe calls are allowed.
  const pid_t child = fork();
  if (child < 0)
    throw std::runtime_error(std::string("cannot create a process: ") +
                             std::strerror(errno));
  if (child == 0) {
    // A separate process group: only the parent forwards Ctrl-C. The subprocess
    // ends with the parent.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (out >= 0) dup2(out, STDOUT_FILENO);
    if (error >= 0) dup2(error, STDERR_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  return child;
}

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

SubprocessResult run_aft(std::vector<std::string> arguments, bool keep_stderr) {
  Pipe out, error;
  const pid_t child = start_aft(std::move(arguments), {}, out.ends[1],
                                keep_stderr ? error.ends[1] : -1);
  out.close_write(), error.close_write();
  SubprocessResult result;
  std::string log;
  bool open_out = true, open_error = true, forwarded = false;
  while (open_out || open_error) {
    pollfd wait[] = {{open_out ? out.ends[0] : -1, POLLIN, 0},
                     {open_error ? error.ends[0] : -1, POLLIN, 0}};
    const int ready = poll(wait, 2, /*ms=*/200);
    if (interrupts() > 0 && !forwarded) kill(child, SIGINT), forwarded = true;
    if (ready < 0 && errno != EINTR) break;
    if (ready <= 0) continue;
    if (wait[0].revents != 0) open_out = take(out.ends[0], result.out);
    if (wait[1].revents != 0) open_error = take(error.ends[0], log);
  }
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  result.code = exit_code(status);
  result.error = last_line(log);
  result.peak = 1024.0 * static_cast<double>(usage.ru_maxrss);
  return result;
}

}  // namespace aft::cli
