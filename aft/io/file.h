// File operations that never leave a partial file in place of a complete one,
// even if the process is killed, the disk is full or the power fails.
#pragma once

#include <cstddef>
#include <string>

namespace aft::io {

/// Returns whether `path` exists and is accessible. Any file type counts.
bool exists(const std::string& path) noexcept;

/// Reads a regular file of at most `limit` bytes. Rejects FIFOs and devices,
/// which could block or never end. Throws io::Error with the path, what was
/// expected and what was found.
std::string read_file(const std::string& path, size_t limit);

/// The same for a path that the user named, which may be a pipe or a device: it
/// is read to its end, and may block.
std::string read_input(const std::string& path, size_t limit);

/// Reads the standard input to its end, at most `limit` bytes. Throws
/// io::Error.
std::string read_standard_input(size_t limit);

/// Atomically replaces the contents of `path`: writes a temporary file in the
/// same directory, syncs it, renames it and syncs the directory. Keeps the mode
/// of an existing file. Replaces a symbolic link itself, not its target.
/// Rejects an existing path that is not a regular file, such as a directory or
/// a device.
///
/// Throws io::Error with the path and the reason. The old file is then
/// unchanged, except if the final fsync of the directory fails: the new file is
/// then already in place, and the message says so.
void write_file(const std::string& path, const std::string& text);

/// Appends text to the file at `path` and syncs it to disk before returning.
/// Throws io::Error; part of the text may then have been written. Rejects an
/// existing path that is not a regular file.
void append_file(const std::string& path, const std::string& text);

/// Creates a directory and syncs its parent, so that it survives a power
/// failure. Returns false if `path` already exists. Throws io::Error.
bool make_directory(const std::string& path);

/// Creates a directory and those of its parents that do not exist, as
/// make_directory().
bool make_directories(const std::string& path);

/// Prepares a long task whose result is written to `path` at its end: creates
/// the parents of `path` that do not exist and checks that a file can be
/// created there. Leaves an existing file as it is. Throws io::Error as
/// write_file() would.
void prepare_file(const std::string& path);

/// Removes temporary files that killed processes left in a directory. Matches
/// only names of the form .unfinished-<process>-<number>. Ignores errors.
void remove_unfinished(const std::string& directory) noexcept;

}  // namespace aft::io
