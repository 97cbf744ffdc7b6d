#include "cli/interrupt.h"

#include <signal.h>

namespace aft::cli {
namespace {

volatile sig_atomic_t caught = 0, first = 0, limit = 0, term = 0;

void on_signal(int number) {
  if (first == 0) first = number;
  if (number == SIGTERM) term = 1;
  caught = caught + 1;
  if (caught < limit) return;
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

}  // namespace

void catch_interrupts(int most) {
  limit = most;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int interrupts() { return caught; }

bool terminated() { return term != 0; }

int Interrupted::exit_code() { return 128 + (first != 0 ? first : SIGINT); }

}  // namespace aft::cli
