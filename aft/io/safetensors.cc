// The safetensors reader and writer. Reading: map the file, parse the header,
// check that the tensors tile the data exactly. Writing: build the header.
#include "aft/io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "aft/base/config.h"
#include "aft/base/counted.h"
#include "aft/base/random.h"
#include "aft/io/file_internal.h"
#include "aft/io/safetensors_header.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian and used in place: no big-endian host"
#endif

namespace aft::io {

using namespace internal;

namespace {

static_assert(sizeof(size_t) == 8, "offsets in the file are 64 bits");

// Sorts entries by offset and checks that they tile data_bytes exactly.
void check_layout(const std::string& path, std::vector<Entry>& entries,
                  uint64_t data_bytes) {
  const auto name_less = [](const Entry& a, const Entry& b) {
    return a.name < b.name;
  };
  std::sort(entries.begin(), entries.end(), name_less);
  const auto twice = std::adjacent_find(
      entries.begin(), entries.end(),
      [](const Entry& a, const Entry& b) { return a.name == b.name; });
  if (twice != entries.end()) {
    fail(path, tensor_text(twice->name) + "name must be unique, got it twice");
  }
  for (const Entry& e : entries) {
    const uint64_t begin = e.offsets[0], end = e.offsets[1];
    if (begin > end) {
      fail(path, tensor_text(e.name) + "data_offsets must be [begin, end] " +
                     "with begin <= end, got " + list(e.offsets));
    }
    if (end > data_bytes) {
      fail(path, tensor_text(e.name) + "data_offsets " + list(e.offsets) +
                     " must lie in the data, got " +
                     base::counted(data_bytes, "byte") +
                     " of data (truncated file?)");
    }
    const size_t bytes = checked_bytes(path, e.name, e.dtype, e.shape);
    if (end - begin != bytes) {
      fail(path, tensor_text(e.name) + info(e.dtype).name + " of shape " +
                     list(e.shape) + " must take " +
                     base::counted(bytes, "byte") + ", got " +
                     std::to_string(end - begin) + " in data_offsets " +
                     list(e.offsets));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.offsets, a.name) < std::tie(b.offsets, b.name);
  });
  uint64_t filled = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    if (e.offsets[0] != filled) {
      fail(path, tensor_text(e.name) + "data must begin at offset " +
                     std::to_string(filled) + ", where " +
                     (i ? "tensor " + quote(entries[i - 1].name) + " ends"
                        : "the data begins") +
                     ", got " + std::to_string(e.offsets[0]) +
                     (e.offsets[0] < filled ? " (overlap)" : " (gap)"));
    }
    filled = e.offsets[1];
  }
  if (filled != data_bytes) {
    fail(path, "data must end with the last tensor at offset " +
                   std::to_string(filled) + ", got " +
                   base::counted(data_bytes, "byte") + " of data");
  }
}

std::string json_string(const std::string& path, const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(path, "names and metadata must be UTF-8, got " + quote(text));
  }
}

// Length prefix, JSON and padding for tensors in file order.
std::string make_header(const std::string& path,
                        const std::vector<const TensorView*>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string out(kPrefixBytes, '\0');
  out += '{';
  if (!metadata.empty()) {
    out += std::string("\"") + kMetadataKey + "\":{";
    for (const auto& [key, value] : metadata) {
      out += json_string(path, key) + ':' + json_string(path, value) + ',';
    }
    out.back() = '}';
    out += ',';
  }
  size_t offset = 0;
  for (const TensorView* t : tensors) {
    out += json_string(path, t->name) + ":{\"dtype\":\"" + info(t->dtype).name +
           "\",\"shape\":[";
    for (const int64_t size : t->shape) out += std::to_string(size) + ',';
    if (!t->shape.empty()) out.pop_back();
    out += "],\"data_offsets\":[" + std::to_string(offset) + ',';
    offset += t->bytes;
    out += std::to_string(offset) + "]},";
  }
  if (out.back() == ',') out.pop_back();
  out += '}';
  out.append((8 - out.size() % 8) % 8, ' ');
  const uint64_t length = out.size() - kPrefixBytes;
  if (length > kMaxHeaderBytes) {
    fail(path, "header must be at most " + std::to_string(kMaxHeaderBytes) +
                   " bytes, got " + std::to_string(length));
  }
  std::memcpy(out.data(), &length, sizeof(length));
  return out;
}

}  // namespace

size_t dtype_size(DType dtype) { return info(dtype).size; }

const char* dtype_name(DType dtype) { return info(dtype).name; }

SafeTensors SafeTensors::open(const std::string& path) {
  // O_NONBLOCK: do not wait for a FIFO, which is rejected below.
  const Fd fd(open_file(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail_errno(path, "cannot open", errno);
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) fail_errno(path, "cannot stat", errno);
  if (!S_ISREG(st.st_mode)) fail(path, "must be a regular file");
  const auto bytes = static_cast<size_t>(st.st_size);
  if (bytes < kPrefixBytes) {
    fail(path,
         "is not a safetensors file: file must have at least 8 bytes, got " +
             std::to_string(bytes));
  }

  SafeTensors out;
  out.path_ = path;
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (map == MAP_FAILED) fail_errno(path, "cannot map", errno);
  out.map_ = std::shared_ptr<const void>(
      map, [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); });

  uint64_t length = 0;
  std::memcpy(&length, map, sizeof(length));
  if (length > kMaxHeaderBytes) {
    fail(path, "is not a safetensors file: header must be at most " +
                   std::to_string(kMaxHeaderBytes) + " bytes, got length " +
                   std::to_string(length));
  }
  if (length > bytes - kPrefixBytes) {
    fail(path, "is damaged: header of " + std::to_string(length) +
                   " bytes must fit in the file, got " +
                   base::counted(bytes - kPrefixBytes, "byte") +
                   " after the length (truncated file?)");
  }
  const char* header = static_cast<const char*>(map) + kPrefixBytes;
  const char* data = header + length;
  if (length == 0 || *header != '{') {
    fail(path, "is not a safetensors file: header must begin with '{', got " +
                   (length ? quote(std::string(1, *header)) : "no header"));
  }
  HeaderParser parser(path);
  std::vector<Entry>& entries = parser.entries;
  try {
    // The parser would take it for the end.
    if (std::memchr(header, 0, length))
      fail(path, "header must be JSON, got a zero byte in it");
    nlohmann::json::sax_parse(header, data, &parser);
    check_layout(path, entries, bytes - kPrefixBytes - length);
  } catch (const Error& e) {
    const size_t name = name_of(path).size() + 2;
    fail(path, "is damaged: its header cannot be read: " +
                   std::string(e.what()).substr(name));
  }
  out.metadata_ = std::move(parser.metadata);
  out.tensors_.reserve(entries.size());
  for (Entry& e : entries) {
    out.tensors_.push_back(TensorView{std::move(e.name), e.dtype,
                                      std::move(e.shape), data + e.offsets[0],
                                      e.offsets[1] - e.offsets[0]});
    out.by_name_.push_back(out.by_name_.size());
  }
  const auto& tensors = out.tensors_;
  std::sort(out.by_name_.begin(), out.by_name_.end(), [&](size_t a, size_t b) {
    return tensors[a].name < tensors[b].name;
  });
  return out;
}

const TensorView* SafeTensors::find(const std::string& name) const {
  const auto it = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](size_t i, const std::string& n) { return tensors_[i].name < n; });
  if (it == by_name_.end() || tensors_[*it].name != name) return nullptr;
  return &tensors_[*it];
}

const TensorView& SafeTensors::at(const std::string& name) const {
  if (const TensorView* found = find(name)) return *found;
  // Only a hint, so its cost is bounded.
  constexpr size_t kMaxName = 256, kMaxNames = 4096;
  std::vector<std::string> names;
  for (const TensorView& t : tensors_)
    if (t.name.size() <= kMaxName && names.size() < kMaxNames)
      names.push_back(t.name);
  const std::string near = base::nearest(name, names);
  fail(path_, "must hold tensor " + quote(name) + ", got " +
                  std::to_string(tensors_.size()) + " others" +
                  (near.empty() ? "" : ", nearest " + near));
}

std::string checksum(const std::vector<TensorView>& tensors,
                     const std::map<std::string, std::string>& metadata) {
  uint64_t sum = 0;  // of hashes that do not depend on the order
  const auto add =
      [&](std::initializer_list<std::pair<const void*, size_t>> parts) {
        uint64_t hash = 0;
        for (const auto& [data, bytes] : parts) {
          hash = base::mix(hash, bytes);
          hash = base::hash_bytes(hash, data, bytes);
        }
        sum += hash;
      };
  for (const TensorView& t : tensors)
    add({{t.name.data(), t.name.size()},
         {&t.dtype, sizeof(t.dtype)},
         {t.shape.data(), t.shape.size() * sizeof(int64_t)},
         {t.data, t.bytes}});
  for (const auto& [key, value] : metadata)
    add({{key.data(), key.size()}, {value.data(), value.size()}});
  char text[17];
  snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(sum));
  return text;
}

void save_safetensors(const std::string& path,
                      const std::vector<TensorView>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorView*> order;
  for (const TensorView& t : tensors) {
    const size_t bytes = checked_bytes(path, t.name, t.dtype, t.shape);
    if (t.name == kMetadataKey) {
      fail(path, tensor_text(t.name) + "name is reserved for the metadata");
    }
    if (t.bytes != bytes || (bytes > 0 && !t.data)) {
      fail(path, tensor_text(t.name) + dtype_name(t.dtype) + " of shape " +
                     list(t.shape) + " must take " +
                     base::counted(bytes, "byte") + ", got " +
                     std::to_string(t.bytes) + (t.data ? "" : " at null"));
    }
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(),
            [](auto* a, auto* b) { return a->name < b->name; });
  const auto twice =
      std::adjacent_find(order.begin(), order.end(),
                         [](auto* a, auto* b) { return a->name == b->name; });
  if (twice != order.end()) {
    fail(path,
         tensor_text((*twice)->name) + "name must be unique, got it twice");
  }
  std::stable_sort(order.begin(), order.end(),
                   [](auto* a, auto* b) { return a->dtype > b->dtype; });
  const std::string header = make_header(path, order, metadata);

  std::vector<Piece> pieces = {{header.data(), header.size()}};
  for (const TensorView* t : order) pieces.push_back({t->data, t->bytes});
  replace_file(path, pieces, name_of(path));
}

}  // namespace aft::io
