#include "aft/data/download.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "aft/data/data.h"

extern char** environ;

namespace aft::data {
namespace {

/// Runs a program with stdout redirected to the file `to` or, if that is "",
/// captured in `*output` if given. Returns the exit code; 127 if the program
/// could not be started.
int run(std::vector<std::string> arguments, const std::string& to,
        std::string* output = nullptr) {
  std::vector<char*> raw;
  for (std::string& a : arguments) raw.push_back(a.data());
  raw.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int ends[2] = {-1, -1};
  if (!to.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, to.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0666);
  } else if (output && pipe2(ends, O_CLOEXEC) == 0) {
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  }
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, raw[0], &actions, nullptr, raw.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (ends[1] >= 0) close(ends[1]);
  if (ends[0] >= 0) {
    char buffer[256];
    ssize_t n = 0;
    while (failed == 0 && (n = read(ends[0], buffer, sizeof(buffer))) > 0)
      output->append(buffer, static_cast<size_t>(n));
    close(ends[0]);
  }
  if (failed != 0) return 127;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 126;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Describes curl's common exit codes.
std::string curl_error(int code) {
  switch (code) {
    case 127:
      return "curl is not installed; install it, or download the file yourself";
    case 5:
    case 6:
    case 7:
    case 28:
      return "the host cannot be reached; check the network, or copy the file "
             "here yourself";
    case 22:
      return "the server does not have the file";
    case 23:
      return "the file cannot be written; the disk may be full";
    case 130:
      return "interrupted";
    default:
      return "curl failed with exit code " + std::to_string(code);
  }
}

struct Remover {
  std::string path;
  ~Remover() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

/// Flushes the file system of the directory to disk.
void flush_to_disk(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int error = fd < 0 || syncfs(fd) != 0 ? errno : 0;
  if (fd >= 0) close(fd);
  if (error != 0)
    throw DataError(directory +
                    ": cannot be written to: " + std::strerror(error));
}

}  // namespace

const std::vector<Dataset>& datasets() {
  static const std::vector<Dataset> all = {
      {"enwik8",
       "the first 100,000,000 bytes of English Wikipedia of 2006, with markup",
       "http://mattmahoney.net/dc/enwik8.zip", 100000000,
       "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"},
      {"tinyshakespeare.txt", "1 MB of Shakespeare, for quick experiments",
       "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
       "tinyshakespeare/input.txt",
       1115394,
       "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
      {"cifar-10-batches-bin",
       "CIFAR-10: 50,000 + 10,000 images of 32 x 32 in 10 classes",
       "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170052171,
       "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
       /*archive=*/true},
  };
  return all;
}

const Dataset* find_dataset(const std::string& name) {
  for (const Dataset& set : datasets())
    if (set.name == name) return &set;
  return nullptr;
}

void check_file(const Dataset& set, const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0)
    throw DataError(path + ": cannot be read: " + std::strerror(errno));
  if (info.st_size != set.size) {
    throw DataError(path + ": is not " + set.name + ": expected " +
                    std::to_string(set.size) + " bytes, got " +
                    std::to_string(info.st_size));
  }
  std::string answer;
  const int code = run({"sha256sum", path}, "", &answer);
  if (code != 0)
    throw DataError(path + ": sha256sum failed with exit code " +
                    std::to_string(code));
  // sha256sum starts the line with a backslash if it escapes the file name.
  const std::string sum = answer.substr(answer.find_first_not_of('\\'), 64);
  if (sum != set.sha256) {
    throw DataError(path + ": is not " + set.name + ": expected SHA-256 " +
                    set.sha256 + ", got " + sum);
  }
}

std::string fetch(const Dataset& set, const std::string& directory,
                  bool quiet) {
  const std::string path = directory + "/" + set.name;
  if (access(path.c_str(), F_OK) == 0) {
    if (!set.archive) check_file(set, path);
    return path;
  }
  const bool zipped =
      !set.archive && set.address.size() > 4 &&
      set.address.compare(set.address.size() - 4, 4, ".zip") == 0;
  const Remover whole{path + ".part"}, packed{path + ".packed"};
  const std::string& got = zipped || set.archive ? packed.path : whole.path;
  const std::vector<std::string> curl = {"curl",
                                         "--fail",
                                         "--location",
                                         "--output",
                                         got,
                                         quiet ? "--silent" : "--progress-bar",
                                         "--connect-timeout",
                                         "20",
                                         "--",
                                         set.address};
  const int code = run(curl, "");
  if (code != 0)
    throw DataError(set.name + ": " + set.address + ": " + curl_error(code));
  if (zipped) {
    const int unzip = run({"unzip", "-p", got, set.name}, whole.path);
    if (unzip == 127) throw DataError(set.name + ": unzip is not installed");
    if (unzip != 0)
      throw DataError(set.name + ": " + set.address +
                      ": unzip failed with exit code " + std::to_string(unzip));
  }
  check_file(set, set.archive ? got : whole.path);
  std::string unpacked = whole.path;
  if (set.archive) {
    unpacked += "/" + set.name;
    if (mkdir(whole.path.c_str(), 0777) != 0)
      throw DataError(whole.path +
                      ": cannot be created: " + std::strerror(errno));
    const int tar = run({"tar", "-xzf", got, "-C", whole.path}, "");
    if (tar != 0)
      throw DataError(set.name + ": " + set.address +
                      ": tar failed with exit code " + std::to_string(tar));
  }
  // Flush before renaming, so that a file with the final name is complete even
  // after a power failure.
  flush_to_disk(directory);
  if (rename(unpacked.c_str(), path.c_str()) != 0)
    throw DataError(path + ": cannot be written: " + std::strerror(errno));
  return path;
}

}  // namespace aft::data
