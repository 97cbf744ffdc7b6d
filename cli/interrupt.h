// SIGINT (Ctrl-C) and SIGTERM: commands that can stop cleanly catch them, save
// their work, and throw Interrupted.
#pragma once

#include <exception>
#include <string>

namespace aft::cli {

/// From now on, SIGINT and SIGTERM are counted instead of ending the process.
/// After `most` of them, the next one ends it at once. A signal that the parent
/// process set to be ignored remains ignored.
void catch_interrupts(int most = 1);

/// How many signals were caught.
int interrupts();
/// Whether one of them was SIGTERM.
bool terminated();

/// Reads a line of the standard input, without its newline. Returns false at
/// the end of the input or as soon as more than `before` signals were caught.
bool read_line(std::string& line, int before);

/// An interrupted command has saved its work and printed how to continue. The
/// program exits with 128 + the number of the signal: 130 for SIGINT, 143 for
/// SIGTERM.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
  /// Of the first signal; SIGINT if another process received it.
  static int exit_code();
};

}  // namespace aft::cli
