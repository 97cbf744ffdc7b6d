// Files that are whole whatever happens: a process that is killed, a disk that
// is full, power that fails.
#pragma once

#include <cstddef>
#include <string>

namespace aft::io {

/// Whether something of that name is there, and can be seen.
bool exists(const std::string& path) noexcept;

/// All bytes of a regular file, at most `limit` of them. A FIFO or a device is
/// refused, not waited for or read without end. Throws an io::Error with path,
/// what was expected and what came.
std::string read_file(const std::string& path, size_t limit);

/// Writes text to path: a file beside it, fsync, rename, fsync of the
/// directory. On failure throws an io::Error with path and reason; the old file
/// stays as it was (or, where only the last fsync fails, is replaced already;
/// the message says so). Its mode is kept; a symbolic link is itself replaced.
/// What is there and not a regular file (a directory, a device) is refused.
void write_file(const std::string& path, const std::string& text);

/// Writes text behind what the file at path has; once this returns it is on the
/// disk. On failure, part of the text may be there. What is there and not a
/// regular file is refused. Throws io::Error.
void append_file(const std::string& path, const std::string& text);

/// Makes a directory that outlasts a failure of power. Returns false where
/// something of that name is there already. Throws io::Error.
bool make_directory(const std::string& path);

/// Removes what processes that were killed left in a directory: the files
/// beside those that they were writing, whose names are exactly
/// .unfinished-<process>-<number>. Does nothing where it cannot.
void remove_unfinished(const std::string& directory) noexcept;

}  // namespace aft::io
