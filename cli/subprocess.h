// Runs this program in a subprocess, so that its memory can be measured
// separately and a crash does not affect the parent.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace aft::cli {

struct SubprocessResult {
  int code = 0;       ///< exit code, or 128 + the signal that killed it
  std::string out;    ///< its stdout
  std::string error;  ///< the last line of its stderr, if captured
  double peak = 0;    ///< peak resident memory in bytes
};

/// Environment variables to add or replace.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// Starts this program with `arguments`. `out` and `error` are the file
/// descriptors for its stdout and stderr; -1 inherits this program's. The
/// subprocess receives SIGTERM when this process ends. It runs in its own
/// process group, so Ctrl-C reaches it only if this process forwards it. Throws
/// std::runtime_error if the process cannot be created.
pid_t start_aft(std::vector<std::string> arguments, const Variables& variables,
                int out, int error);
/// Converts a status from waitpid() to an exit code, or 128 + the signal that
/// killed the process.
int exit_code(int status);

/// Runs this program with `arguments` and waits for it. Its stdout is captured;
/// its stderr is captured if keep_stderr, otherwise inherited. A caught signal
/// (cli/interrupt.h) interrupts the subprocess. Throws std::runtime_error if
/// the process cannot be created.
SubprocessResult run_aft(std::vector<std::string> arguments, bool keep_stderr);

}  // namespace aft::cli
