#include "aft/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "aft/io/file_internal.h"
#include "aft/io/safetensors.h"

namespace aft::io {

using namespace internal;

namespace {

// The prefix of the names of temporary files, followed by the process id, a
// dash and a number.
constexpr const char* kUnfinished = ".unfinished-";

constexpr const char* kNotRegular =
    ": cannot be written: it is not a regular file";

[[noreturn]] void fail(const std::string& name, const std::string& what,
                       int error) {
  throw Error(name + ": " + what + ": " +
              std::generic_category().message(error));
}

/// Repeats a system call that was interrupted by a signal.
template <class F>
auto retried(const F& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

void write_all(int fd, const Piece& piece, const std::string& name) {
  constexpr size_t kChunk = size_t{1}
                            << 30;  // Linux writes less than 2 GB per call
  const char* at = static_cast<const char*>(piece.data);
  for (size_t left = piece.bytes; left > 0;) {
    const ssize_t n =
        retried([&] { return ::write(fd, at, std::min(left, kChunk)); });
    if (n <= 0) fail(name, "cannot be written", n < 0 ? errno : EIO);
    at += n;
    left -= static_cast<size_t>(n);
  }
}

/// Some write errors are reported only here.
void sync_and_close(Fd& fd, const std::string& name) {
  if (retried([&] { return ::fsync(fd.get()); }) != 0)
    fail(name, "cannot be written", errno);
  // EINTR: the file is closed nevertheless.
  if (::close(fd.release()) != 0 && errno != EINTR)
    fail(name, "cannot be written", errno);
}

/// Makes the entries of a directory survive a power failure.
void sync_directory(int fd, const std::string& name, const char* what) {
  // EINVAL: the file system does not support it.
  if (retried([&] { return ::fsync(fd); }) != 0 && errno != EINVAL)
    fail(name, std::string(what) + ", but its directory cannot be synced",
         errno);
}

/// The directory part of a path; "." if it has none.
std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

int open_directory(const std::string& path) {
  return open_file(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void sync_entry(const std::string& path, const char* what) {
  const Fd fd(open_directory(directory_of(path)));
  // A writable directory may not be readable.
  if (fd.get() < 0 && errno == EACCES) return;
  if (fd.get() < 0)
    fail(path, std::string(what) + ", but its directory cannot be opened",
         errno);
  sync_directory(fd.get(), path, what);
}

/// A temporary file in the directory of the target. A lock on it shows that its
/// writer is alive. Removed by the destructor unless it was renamed.
class Unfinished {
 public:
  Unfinished(int directory, const std::string& target) : directory_(directory) {
    static std::atomic<uint64_t> counter{0};
    const std::string stem = kUnfinished + std::to_string(::getpid()) + "-";
    for (;;) {  // not mkstemp: open lets the umask decide the mode
      name_ = stem + std::to_string(counter++);
      fd_ = ::openat(directory, name_.c_str(),
                     O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && (errno == EEXIST || errno == EINTR)) continue;
      if (fd_ < 0)
        fail(target,
             "cannot be written: a temporary file cannot be created next to it",
             errno);
      // Another process may have removed it before it was locked. File systems
      // without locks get no protection.
      struct stat info;
      const bool taken =
          retried([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) != 0 &&
          errno == EWOULDBLOCK;
      if (!taken && (::fstat(fd_, &info) != 0 || info.st_nlink > 0)) return;
      ::close(fd_);
    }
  }
  ~Unfinished() {
    if (!renamed_) ::unlinkat(directory_, name_.c_str(), 0);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  /// The caller closes it.
  int fd() const { return fd_; }
  bool rename(const std::string& base) {
    renamed_ =
        ::renameat(directory_, name_.c_str(), directory_, base.c_str()) == 0;
    return renamed_;
  }

 private:
  const int directory_;
  std::string name_;
  int fd_ = -1;
  bool renamed_ = false;
};

/// Whether the name is exactly that of a temporary file; other names may have
/// the same prefix.
bool is_unfinished(const char* name) {
  const size_t stem = std::strlen(kUnfinished);
  if (std::strncmp(name, kUnfinished, stem) != 0) return false;
  const char* at = name + stem;
  const auto number = [&] {
    const size_t digits = std::strspn(at, "0123456789");
    at += digits;
    return digits > 0;
  };
  return number() && *at++ == '-' && number() && *at == '\0';
}

/// Removes the file unless its writer is still alive. Holds the lock until the
/// file is removed, so that a writer that has just created it notices either
/// the lock or the removal.
void remove_left_over(int directory, const char* name) {
  const Fd fd(retried([&] {
    return ::openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  }));
  if (fd.get() < 0) return;
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return;
    // The file system has no locks: check whether the process exists. Its id
    // may have been reused since; then the file is kept.
    const long process =
        std::strtol(name + std::strlen(kUnfinished), nullptr, 10);
    if (process <= 0 || ::kill(static_cast<pid_t>(process), 0) == 0 ||
        errno != ESRCH)
      return;
  }
  ::unlinkat(directory, name, 0);
}

/// Whether `path` is a regular file, with `info`, that a write replaces; false
/// if it does not exist. Throws if it is of another type.
bool is_replaced(const std::string& path, const std::string& name,
                 struct stat& info) {
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) throw Error(name + kNotRegular);
    return true;
  }
  if (errno != ENOENT) fail(name, "cannot be written", errno);
  return false;
}

/// Opens the directory of a file that is about to be written.
int open_parent(const std::string& path, const std::string& name) {
  const std::string directory = directory_of(path);
  const int fd = open_directory(directory);
  if (fd < 0)
    fail(
        name,
        "cannot be written: its directory '" + directory + "' cannot be opened",
        errno);
  return fd;
}

/// Reads to the end rather than to the expected size: the file may change
/// meanwhile, and files in /proc have size 0.
std::string read_all(int fd, const std::string& name, size_t expected,
                     size_t limit) {
  const auto too_large = [&](const std::string& size) {
    throw Error(name + ": must have at most " + std::to_string(limit) +
                " bytes, got " + size);
  };
  if (expected > limit) too_large(std::to_string(expected));
  std::string out;
  for (size_t done = 0;;) {
    constexpr size_t kChunk = size_t{1} << 16;
    // One byte more than expected, to detect the end.
    if (done == out.size())
      out.resize(std::max({expected + 1, done + kChunk, 2 * done}));
    const ssize_t n =
        retried([&] { return ::read(fd, &out[done], out.size() - done); });
    if (n < 0) fail(name, "cannot be read", errno);
    done += static_cast<size_t>(n);
    if (done > limit) too_large("more");
    if (n > 0) continue;
    out.resize(done);
    return out;
  }
}

/// special: the path may also be a FIFO or a device.
std::string read_path(const std::string& path, size_t limit, bool special) {
  // O_NONBLOCK: do not wait for a FIFO that is rejected below.
  const Fd fd(open_file(path.c_str(),
                        O_RDONLY | O_CLOEXEC | (special ? 0 : O_NONBLOCK)));
  struct stat info;
  if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0)
    fail(path, "cannot be opened", errno);
  if (S_ISDIR(info.st_mode) || (!S_ISREG(info.st_mode) && !special))
    throw Error(path + ": must be a regular file, got " +
                (S_ISDIR(info.st_mode) ? "a directory" : "a special file"));
  return read_all(fd.get(), path, static_cast<size_t>(info.st_size), limit);
}

}  // namespace

int internal::open_file(const char* path, int flags) {
  return retried([&] { return ::open(path, flags); });
}

void internal::replace_file(const std::string& path,
                            const std::vector<Piece>& pieces,
                            const std::string& name) {
  struct stat old;
  const bool replace = is_replaced(path, name, old);
  const std::string base = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  const Fd dir(open_parent(path, name));
  Unfinished file(dir.get(), name);
  Fd fd(file.fd());
  const Fd lock(
      ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));  // held until the rename
  if (replace && ::fchmod(fd.get(), old.st_mode & 0777) != 0)
    fail(name, "its mode cannot be set", errno);
  for (const Piece& piece : pieces) write_all(fd.get(), piece, name);
  sync_and_close(fd, name);
  if (!file.rename(base)) fail(name, "cannot be written", errno);
  sync_directory(dir.get(), name, "is written");
}

bool exists(const std::string& path) noexcept {
  return ::access(path.c_str(), F_OK) == 0;
}

std::string read_file(const std::string& path, size_t limit) {
  return read_path(path, limit, /*special=*/false);
}

std::string read_input(const std::string& path, size_t limit) {
  return read_path(path, limit, /*special=*/true);
}

std::string read_standard_input(size_t limit) {
  return read_all(STDIN_FILENO, "the standard input", 0, limit);
}

void write_file(const std::string& path, const std::string& text) {
  replace_file(path, {{text.data(), text.size()}}, path);
}

void append_file(const std::string& path, const std::string& text) {
  // O_NONBLOCK: do not wait for a reader of a FIFO.
  Fd fd(retried([&] {
    return ::open(path.c_str(),
                  O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  }));
  if (fd.get() < 0 && errno == ENXIO) throw Error(path + kNotRegular);
  struct stat old;
  if (fd.get() < 0 || ::fstat(fd.get(), &old) != 0)
    fail(path, "cannot be written", errno);
  if (!S_ISREG(old.st_mode)) throw Error(path + kNotRegular);
  write_all(fd.get(), {text.data(), text.size()}, path);
  sync_and_close(fd, path);
  if (old.st_size > 0) return;
  sync_entry(path, "is written");
}

bool make_directory(const std::string& path) {
  const bool made = ::mkdir(path.c_str(), 0777) == 0;
  if (!made && errno != EEXIST) fail(path, "cannot be created", errno);
  // Also if it existed: its creator may have been killed before the sync.
  const std::string name = path.substr(0, path.find_last_not_of('/') + 1);
  sync_entry(name, "is created");
  return made;
}

bool make_directories(const std::string& path) {
  const size_t slash = path.find_last_of('/', path.find_last_not_of('/'));
  if (slash != std::string::npos && slash > 0) {
    const std::string parent = path.substr(0, slash);
    if (!exists(parent)) make_directories(parent);
  }
  return make_directory(path);
}

void prepare_file(const std::string& path) {
  const std::string directory = directory_of(path);
  if (!exists(directory)) make_directories(directory);
  struct stat old;
  is_replaced(path, path, old);
  const Fd dir(open_parent(path, path));
  const Unfinished file(dir.get(), path);
  const Fd close(file.fd());
}

void remove_unfinished(const std::string& directory) noexcept {
  DIR* dir = ::opendir(directory.c_str());
  if (!dir) return;
  while (const dirent* entry = ::readdir(dir)) {
    if (is_unfinished(entry->d_name))
      remove_left_over(::dirfd(dir), entry->d_name);
  }
  ::closedir(dir);
}

}  // namespace aft::io
