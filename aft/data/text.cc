#include "aft/data/text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>

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
                    (known && why == ENOENT
                         ? "; `aft data " + known->name + " --download` gets it"
                         : ""));
  }
  struct stat info;
  auto map = std::make_shared<Mapping>();
  std::string problem;
  if (fstat(fd, &info) != 0) {
    problem = std::strerror(errno);
  } else if (!S_ISREG(info.st_mode)) {
    problem = "not a regular file";
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

namespace {

/// Parses the output of Text::symbols().
std::vector<int> parse_symbols(const std::string& text) {
  std::vector<int> out;
  std::array<bool, 256> seen{};
  const auto digit = [](char c) {
    const char* digits = "0123456789abcdef";
    const char* at = c ? std::strchr(digits, c) : nullptr;
    return at ? static_cast<int>(at - digits) : -1;
  };
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    const int byte = 16 * high + low;
    if (high < 0 || low < 0 || seen[static_cast<size_t>(byte)]) break;
    seen[static_cast<size_t>(byte)] = true;
    out.push_back(byte);
  }
  if (out.empty() || 2 * out.size() != text.size())
    throw DataError(
        "data.symbols must be different bytes in hexadecimal, got '" + text +
        "'");
  return out;
}

}  // namespace

void Text::prepare(Bytes raw, const std::string& mode,
                   const std::string& symbols) {
  mode_ = mode;
  constexpr int64_t kEnwik8 = 100000000;
  // The split is by raw bytes, before newlines are dropped.
  const int64_t a = raw.size == kEnwik8 ? 90000000 : raw.size / 10 * 9,
                b = raw.size == kEnwik8 ? 95000000 : a + (raw.size - a) / 2;
  Bytes parts[3] = {
      {raw.data, a}, {raw.data + a, b - a}, {raw.data + b, raw.size - b}};
  bytes_.resize(256);
  std::iota(bytes_.begin(), bytes_.end(), 0);
  if (mode == "txl" || mode == "eos") {
    const bool newline = mode == "eos";
    std::array<int64_t, 256> counts{};
    for (int64_t i = 0; i < raw.size; ++i) ++counts[raw.data[i]];
    if (!newline) counts['\n'] = 0;
    if (symbols.empty()) {
      std::stable_sort(bytes_.begin(), bytes_.end(),
                       [&](int x, int y) { return counts[x] > counts[y]; });
      while (!bytes_.empty() && counts[bytes_.back()] == 0) bytes_.pop_back();
    } else {
      bytes_ = parse_symbols(symbols);
    }
    std::fill(std::begin(symbols_), std::end(symbols_), -1);
    for (size_t i = 0; i < bytes_.size(); ++i)
      symbols_[bytes_[i]] = static_cast<int>(i);
    for (int byte = 0; byte < 256; ++byte) {
      if (counts[static_cast<size_t>(byte)] > 0 && symbols_[byte] < 0)
        throw DataError("has a byte of value " + std::to_string(byte) +
                        ", which the text that the model knows had not");
    }
    prepared_.reserve(static_cast<size_t>(raw.size));
    int64_t ends[3];
    for (int p = 0; p < 3; ++p) {
      for (int64_t i = 0; i < parts[p].size; ++i) {
        const int symbol = symbols_[parts[p].data[i]];
        if (symbol >= 0) prepared_.push_back(static_cast<uint8_t>(symbol));
      }
      ends[p] = static_cast<int64_t>(prepared_.size());
    }
    for (int p = 0; p < 3; ++p) {
      const int64_t from = p ? ends[p - 1] : 0;
      parts[p] = {prepared_.data() + from, ends[p] - from};
    }
  } else if (mode == "bytes") {
    for (int i = 0; i < 256; ++i) symbols_[i] = i;
  } else {
    throw DataError("the preparation must be bytes, txl or eos, got '" + mode +
                    "'");
  }
  vocabulary_ = static_cast<int64_t>(bytes_.size());
  train_ = parts[0], valid_ = parts[1], test_ = parts[2];
}

Bytes Text::split(const std::string& name) const {
  if (name == "train") return train_;
  if (name == "valid") return valid_;
  if (name == "test") return test_;
  throw DataError("the split must be train, valid or test, got '" + name + "'");
}

std::string Text::symbols() const {
  std::string out;
  if (mode_ == "bytes") return out;
  const char* digits = "0123456789abcdef";
  for (const int byte : bytes_) out += {digits[byte / 16], digits[byte % 16]};
  return out;
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
    throw DataError("a training text of " + std::to_string(size) +
                    " bytes is too short for windows of " + std::to_string(T) +
                    ": it takes at least " + std::to_string(2 * T));
  }
}

int64_t Windows::start(int64_t example) {
  const uint64_t offset = base::mix(order_.random(example), 2);
  return static_cast<int64_t>(offset % static_cast<uint64_t>(T_)) +
         order_.at(example) * T_;
}

}  // namespace aft::data
