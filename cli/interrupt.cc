#include "cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

namespace aft::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};
volatile sig_atomic_t handled[] = {0, 0};
volatile sig_atomic_t caught = 0, first = 0, limit = 0, term = 0;

void on_signal(int number) {
  if (first == 0) first = number;
  if (number == SIGTERM) term = 1;
  caught = caught + 1;
  if (caught < limit) return;
  for (int i = 0; i < 2; ++i)
    if (handled[i]) signal(kSignals[i], SIG_DFL);
}

}  // namespace

void catch_interrupts(int most) {
  limit = most;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // a signal is no error of a blocked write
  for (int i = 0; i < 2; ++i) {
    // Background jobs of a script ignore SIGINT.
    struct sigaction before {};
    sigaction(kSignals[i], nullptr, &before);
    handled[i] = before.sa_handler != SIG_IGN;
    if (handled[i]) sigaction(kSignals[i], &action, nullptr);
  }
}

int interrupts() { return caught; }

bool terminated() { return term != 0; }

bool read_line(std::string& line, int before) {
  static std::string buffer;
  size_t searched = 0;
  for (bool end = false; interrupts() <= before;) {
    const size_t newline = buffer.find('\n', searched);
    searched = buffer.size();
    if (newline != std::string::npos || (end && !buffer.empty())) {
      line = buffer.substr(0, newline);
      buffer.erase(0, line.size() + 1);
      return true;
    }
    if (end) return false;
    // A signal can arrive just before the wait, so the wait is short.
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, /*ms=*/100) <= 0) continue;
    char bytes[4096];
    const ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));
    if (n > 0) buffer.append(bytes, static_cast<size_t>(n));
    end = n <= 0;
  }
  return false;
}

int Interrupted::exit_code() { return 128 + (first != 0 ? first : SIGINT); }

}  // namespace aft::cli
