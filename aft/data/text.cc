#include "aft/data/text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "aft/base/counted.h"
#include "aft/base/random.h"
#include "aft/data/download.h"
#include "aft/data/stories.h"

namespace aft::data {
namespace {

Bytes built_in_text() {
  const std::string& text = built_in_stories();
  return {reinterpret_cast<const uint8_t*>(text.data()),
          static_cast<int64_t>(text.size())};
}

struct Mapping {
  void* at = MAP_FAILED;
  size_t size = 0;
  ~Mapping() {
    if (at != MAP_FAILED) munmap(at, size);
  }
};

std::shared_ptr<Mapping> map_file(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int why = errno;
    const Dataset* known = find_dataset(path.substr(path.rfind('/') + 1));
    throw DataError(path + ": cannot be opened: " + std::strerror(why) +
                    (known && why == ENOENT ? "; `aft data " + known->name +
                                                  " --download` downloads it"
                                            : ""));
  }
  struct stat info;
  auto map = std::make_shared<Mapping>();
  std::string problem;
  if (fstat(fd, &info) != 0) {
    problem = std::strerror(errno);
  } else if (S_ISDIR(info.st_mode)) {
    problem =
        "expected a text file, got a directory; models of images read "
        "directories: see `aft presets image` and `aft presets "
        "classification`";
  } else if (!S_ISREG(info.st_mode)) {
    problem = "not a regular file; `--data -` reads the standard input";
  } else if (info.st_size == 0) {
    problem = "the file is empty";
  } else {
    map->size = static_cast<size_t>(info.st_size);
    map->at = mmap(nullptr, map->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map->at == MAP_FAILED) problem = std::strerror(errno);
  }
  ::close(fd);
  if (!problem.empty()) throw DataError(path + ": cannot be read: " + problem);
  return map;
}

}  // namespace

Text Text::open(const std::string& path, const std::string& mode,
                const std::string& symbols) {
  Text text;
  Bytes raw = built_in_text();
  if (!path.empty()) {
    const auto map = map_file(path);
    text.owner_ = map;
    raw = {static_cast<const uint8_t*>(map->at),
           static_cast<int64_t>(map->size)};
  }
  try {
    text.prepare(raw, mode, symbols);
  } catch (const DataError& e) {
    throw DataError((path.empty() ? "the built-in text" : path) + ": " +
                    e.what());
  }
  return text;
}

Text Text::from(std::string bytes, const std::string& mode,
                const std::string& symbols) {
  Text text;
  const auto held = std::make_shared<std::string>(std::move(bytes));
  text.owner_ = held;
  text.prepare({reinterpret_cast<const uint8_t*>(held->data()),
                static_cast<int64_t>(held->size())},
               mode, symbols);
  return text;
}

void Text::prepare(Bytes raw, const std::string& mode,
                   const std::string& symbols) {
  constexpr int64_t kEnwik8 = 100000000;
  // The split is by raw bytes, before newlines are dropped.
  const int64_t a = raw.size == kEnwik8 ? 90000000 : raw.size / 10 * 9,
                b = raw.size == kEnwik8 ? 95000000 : a + (raw.size - a) / 2;
  Bytes parts[3] = {
      {raw.data, a}, {raw.data + a, b - a}, {raw.data + b, raw.size - b}};
  if (mode != "bytes") {
    std::array<int64_t, 256> counts{};
    for (int64_t i = 0; i < raw.size; ++i) ++counts[raw.data[i]];
    codec_ = symbols.empty() ? TextCodec::from_counts(mode, counts)
                             : TextCodec(mode, symbols);
    for (int byte = 0; byte < 256; ++byte) {
      if (counts[static_cast<size_t>(byte)] > 0 &&
          codec_.symbol_of(static_cast<uint8_t>(byte)) < 0 &&
          !(byte == '\n' && mode == "txl"))
        throw DataError("contains byte " + std::to_string(byte) +
                        ", which does not occur in the model's text");
    }
    prepared_.reserve(static_cast<size_t>(raw.size));
    int64_t ends[3];
    for (int p = 0; p < 3; ++p) {
      for (int64_t i = 0; i < parts[p].size; ++i) {
        const int symbol = codec_.symbol_of(parts[p].data[i]);
        if (symbol >= 0) prepared_.push_back(static_cast<uint8_t>(symbol));
      }
      ends[p] = static_cast<int64_t>(prepared_.size());
    }
    for (int p = 0; p < 3; ++p) {
      const int64_t from = p ? ends[p - 1] : 0;
      parts[p] = {prepared_.data() + from, ends[p] - from};
    }
  }
  train_ = parts[0], valid_ = parts[1], test_ = parts[2];
}

Bytes Text::split(const std::string& name) const {
  const Bytes all = {train_.data, train_.size + valid_.size + test_.size};
  const Bytes parts[] = {train_, valid_, test_, all};
  return parts[split_number(name)];
}

std::string Text::fingerprint() const {
  // Up to 1024 evenly spaced samples of 1 KB.
  constexpr int64_t kPieces = 1024, kPiece = 1024;
  const int64_t apart = std::max(train_.size / kPieces, kPiece);
  uint64_t hash = 0;
  for (int64_t at = 0; at < train_.size; at += apart) {
    const int64_t end = std::min(at + kPiece, train_.size);
    for (int64_t i = at; i < end; ++i) hash = base::mix(hash, train_.data[i]);
  }
  return std::to_string(train_.size + valid_.size + test_.size) + "-" +
         std::to_string(hash);
}

Windows::Windows(int64_t size, int64_t T, uint64_t seed)
    : T_(T), order_(T > 0 ? (size - T) / T : 0, seed) {
  if (T < 1)
    throw DataError("model.length must be 1 or more, got " + std::to_string(T));
  if (size < 2 * T || order_.count() < 1) {
    throw DataError(
        "a training text of " + base::counted(size, "byte") +
        " is too short for windows of model.length = " + std::to_string(T) +
        ": expected at least " + std::to_string(2 * T) + " bytes");
  }
}

int64_t Windows::start(int64_t example) {
  const uint64_t offset = base::mix(order_.random(example), 2);
  return static_cast<int64_t>(offset % static_cast<uint64_t>(T_)) +
         order_.at(example) * T_;
}

}  // namespace aft::data
