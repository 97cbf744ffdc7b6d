// This program again in a process of its own: its memory is its own, and what
// happens to it happens to nothing else.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace aft::cli {

struct Child {
  int code = 0;       ///< of exit; 128 + the signal that ended it
  std::string out;    ///< what it printed
  std::string error;  ///< the last line on stderr, where that was kept
  double peak = 0;    ///< the largest resident memory in bytes
};

/// Set by who handles Ctrl-C: a process that runs is interrupted too, once.
extern volatile sig_atomic_t interrupted;

/// Variables of the environment that are set, or set to something else.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// Starts `aft <arguments>`. Its stdout and stderr go to these files; -1: where
/// this program's go. It does not outlive this process: SIGTERM ends it then;
/// and Ctrl-C does not reach it but through this one. Throws std::runtime_error
/// where no process can be made.
pid_t start_aft(std::vector<std::string> arguments, const Variables& variables,
                int out, int error);
/// The code of an ended process: of exit, or 128 + the signal that ended it.
int exit_code(int status);

/// `aft <arguments>`. stderr is kept, or goes where this program's goes.
/// Throws std::runtime_error where no process can be made.
Child run_aft(std::vector<std::string> arguments, bool keep_stderr);

}  // namespace aft::cli
