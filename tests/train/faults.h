// Injects faults into file operations below one directory: this header
// redefines libc's calls that open, write and rename files, for the whole
// program that includes it (in one source only). Each call is an operation. At
// the n-th one, a fault occurs: an error, a short write, the end of the
// process, or a power failure, after which only synced data exist. Nothing is
// actually synced, which keeps thousands of runs fast.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace aft::faults {

enum class Fault {
  kNone,
  kInterrupted,     // EINTR, once
  kShort,           // half is written
  kNoSpace,         // from here on the disk is full
  kBroken,          // EIO, once
  kKilled,          // the process ends before the operation
  kTorn,            // half is written, then the process ends
  kNoPower,         // unsynced data are lost, names stay
  kNoPowerNoNames,  // also new names in unsynced directories
};

struct Operation {
  std::string call, path;
};

struct Disk {
  std::string root;  // empty: no faults and no records
  Fault fault = Fault::kNone;
  size_t at = 0;
  std::vector<Operation> seen;
  bool full = false;
  /// The process has been killed: later operations have no effect, and locks
  /// are released when it closes them.
  bool gone = false;
  // What a power failure undoes.
  struct Name {
    std::string directory;
    std::function<void()> undo;
  };
  std::vector<Name> names;
  std::map<std::string, off_t> synced;  // sizes of files with more than that
};
inline Disk disk;

inline std::string parent(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

inline std::string path_of(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = ::readlink(link.c_str(), path, sizeof(path));
  return {path, n > 0 ? static_cast<size_t>(n) : 0};
}

inline std::string path_of(int directory, const char* name) {
  std::string path = name;
  if (directory != AT_FDCWD && name[0] != '/')
    path = path_of(directory) + "/" + path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

inline bool watched(const std::string& path) {
  const std::string& root = disk.root;
  return !root.empty() && path.compare(0, root.size(), root) == 0;
}

inline void lose_power(bool names) {
  const std::string root = std::exchange(disk.root, "");
  for (const auto& [path, size] : disk.synced)
    if (::truncate(path.c_str(), size) != 0) std::abort();
  if (names)
    for (size_t i = disk.names.size(); i-- > 0;) disk.names[i].undo();
  disk.root = root;
}

/// What happens to the current operation: an errno, 0 to perform it, or -1 to
/// perform half of it.
inline int next(const char* call, const std::string& path) {
  if (!watched(path)) return 0;
  if (disk.gone) return EIO;
  const std::string name = call;
  if (disk.full && (name == "create" || name == "write" || name == "mkdir"))
    return ENOSPC;
  disk.seen.push_back({name, path});
  if (disk.seen.size() - 1 != disk.at) return 0;
  switch (disk.fault) {
    case Fault::kNone:
      return 0;
    case Fault::kInterrupted:
      return EINTR;
    case Fault::kNoSpace:
      disk.full = true;
      return ENOSPC;
    case Fault::kBroken:
      return EIO;
    case Fault::kShort:
    case Fault::kTorn:
      return -1;
    case Fault::kNoPower:
    case Fault::kNoPowerNoNames:
      lose_power(disk.fault == Fault::kNoPowerNoNames);
      break;
    case Fault::kKilled:
      break;
  }
  disk.gone = true;
  return EIO;
}

inline int failed(int error) {
  errno = error;
  return -1;
}

inline int open_at(int directory, const char* name, int flags, mode_t mode) {
  const std::string path = path_of(directory, name);
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (const int e = next(writes ? "create" : "open", path)) return failed(e);
  struct stat old;
  const bool there = ::fstatat(directory, name, &old, 0) == 0;
  const long fd = ::syscall(SYS_openat, directory, name, flags, mode);
  if (fd >= 0 && writes && !there && watched(path))
    disk.names.push_back({parent(path), [path] { ::unlink(path.c_str()); }});
  return static_cast<int>(fd);
}

inline int rename_at(int from_dir, const char* from_name, int to_dir,
                     const char* to_name) {
  const std::string from = path_of(from_dir, from_name),
                    to = path_of(to_dir, to_name);
  if (const int e = next("rename", to)) return failed(e);
  std::string kept;  // the old file, kept outside of root for a power failure
  if (watched(to)) {
    kept = disk.root + ".old-" + std::to_string(disk.seen.size());
    if (::link(to.c_str(), kept.c_str()) != 0) kept.clear();
  }
  if (::syscall(SYS_renameat2, from_dir, from_name, to_dir, to_name, 0) != 0)
    return -1;
  if (!watched(to)) return 0;
  disk.names.push_back({parent(to), [=] {
                          ::rename(to.c_str(), from.c_str());
                          if (!kept.empty()) ::link(kept.c_str(), to.c_str());
                        }});
  const auto moved = disk.synced.find(from);
  disk.synced.erase(to);
  if (moved != disk.synced.end()) {
    disk.synced[to] = moved->second;
    disk.synced.erase(from);
  }
  return 0;
}

}  // namespace aft::faults

// ---- redefined calls --------------------------------------------------------
// Those of the library and of libstdc++'s streams.

namespace aft::faults {
inline mode_t mode_of(int flags, va_list arguments) {
  return flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
}
}  // namespace aft::faults

#define AFT_FAULTS_OPEN(name)                                   \
  extern "C" int name(const char* path, int flags, ...) {       \
    va_list arguments;                                          \
    va_start(arguments, flags);                                 \
    const mode_t mode = aft::faults::mode_of(flags, arguments); \
    va_end(arguments);                                          \
    return aft::faults::open_at(AT_FDCWD, path, flags, mode);   \
  }
AFT_FAULTS_OPEN(open)
AFT_FAULTS_OPEN(open64)
#define AFT_FAULTS_OPENAT(name)                                          \
  extern "C" int name(int directory, const char* path, int flags, ...) { \
    va_list arguments;                                                   \
    va_start(arguments, flags);                                          \
    const mode_t mode = aft::faults::mode_of(flags, arguments);          \
    va_end(arguments);                                                   \
    return aft::faults::open_at(directory, path, flags, mode);           \
  }
AFT_FAULTS_OPENAT(openat)
AFT_FAULTS_OPENAT(openat64)

extern "C" FILE* fopen64(const char* path, const char* mode) {
  const std::string m = mode;
  const bool reads = m[0] == 'r' && m.find('+') == std::string::npos;
  if (reads)
    if (const int e = aft::faults::next("fopen", path))
      return errno = e, nullptr;
  const int how = reads         ? O_RDONLY
                  : m[0] == 'a' ? O_RDWR | O_CREAT | O_APPEND
                  : m[0] == 'w' ? O_RDWR | O_CREAT | O_TRUNC
                                : O_RDWR;
  const int fd =
      reads ? static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, how, 0))
            : aft::faults::open_at(AT_FDCWD, path, how, 0666);
  return fd < 0 ? nullptr : ::fdopen(fd, mode);
}

extern "C" ssize_t read(int fd, void* data, size_t bytes) {
  if (const int e = aft::faults::next("read", aft::faults::path_of(fd)))
    return aft::faults::failed(e);
  return ::syscall(SYS_read, fd, data, bytes);
}

extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  using namespace aft::faults;
  const std::string path = path_of(fd);
  const int e = next("write", path);
  if (e > 0) return failed(e);
  struct stat now;
  if (watched(path) && ::fstat(fd, &now) == 0)
    disk.synced.emplace(path, now.st_size);  // keeps an earlier entry
  const ssize_t n =
      ::syscall(SYS_write, fd, data, e < 0 ? (bytes + 1) / 2 : bytes);
  if (e < 0 && disk.fault == Fault::kTorn) disk.gone = true;
  return n;
}

extern "C" int fsync(int fd) {
  using namespace aft::faults;
  const std::string path = path_of(fd);
  if (!watched(path)) return static_cast<int>(::syscall(SYS_fsync, fd));
  if (const int e = next("fsync", path)) return failed(e);
  disk.synced.erase(path);
  auto& names = disk.names;
  names.erase(std::remove_if(names.begin(), names.end(),
                             [&](auto& n) { return n.directory == path; }),
              names.end());
  return 0;
}
extern "C" int fdatasync(int fd) { return fsync(fd); }

extern "C" int close(int fd) {
  using namespace aft::faults;
  const std::string path = path_of(fd);
  const bool writes = (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  const int e = watched(path) && writes ? next("close", path) : 0;
  const long result =
      ::syscall(SYS_close, fd);  // Linux closes it even after an error
  return e ? failed(e) : static_cast<int>(result);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  return aft::faults::rename_at(AT_FDCWD, from, AT_FDCWD, to);
}
extern "C" int renameat(int from_dir, const char* from, int to_dir,
                        const char* to) noexcept {
  return aft::faults::rename_at(from_dir, from, to_dir, to);
}

extern "C" int mkdir(const char* name, mode_t mode) noexcept {
  using namespace aft::faults;
  const std::string path = path_of(AT_FDCWD, name);
  if (const int e = next("mkdir", path)) return failed(e);
  if (::syscall(SYS_mkdirat, AT_FDCWD, name, mode) != 0) return -1;
  if (watched(path))
    disk.names.push_back(
        {parent(path), [path] { std::filesystem::remove_all(path); }});
  return 0;
}

extern "C" int unlinkat(int directory, const char* name, int flags) noexcept {
  using namespace aft::faults;
  const std::string path = path_of(directory, name);
  if (const int e = next("unlink", path)) return failed(e);
  disk.synced.erase(path);
  return static_cast<int>(::syscall(SYS_unlinkat, directory, name, flags));
}
extern "C" int unlink(const char* name) noexcept {
  return unlinkat(AT_FDCWD, name, 0);
}

extern "C" int fchmod(int fd, mode_t mode) noexcept {
  if (const int e = aft::faults::next("fchmod", aft::faults::path_of(fd)))
    return aft::faults::failed(e);
  return static_cast<int>(::syscall(SYS_fchmod, fd, mode));
}

extern "C" int flock(int fd, int operation) noexcept {
  if (const int e = aft::faults::next("flock", aft::faults::path_of(fd)))
    return aft::faults::failed(e);
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

extern "C" int stat(const char* path, struct stat* out) noexcept {
  if (const int e = aft::faults::next("stat", path))
    return aft::faults::failed(e);
  return ::fstatat(AT_FDCWD, path, out, 0);
}

extern "C" int access(const char* path, int mode) noexcept {
  if (const int e = aft::faults::next("access", path))
    return aft::faults::failed(e);
  return static_cast<int>(::syscall(SYS_faccessat, AT_FDCWD, path, mode));
}
