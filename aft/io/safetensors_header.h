// Internal to safetensors.cc: the dtype table, error messages, and the header
// parser, which turns untrusted JSON into entries or throws an Error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "aft/base/escape.h"
#include "aft/io/safetensors.h"

namespace aft::io::internal {

inline constexpr size_t kPrefixBytes = 8;
inline constexpr size_t kMaxHeaderBytes = 100'000'000;  // the reference's limit
inline constexpr size_t kMaxRank = 64;
inline constexpr char kMetadataKey[] = "__metadata__";

struct DTypeInfo {
  const char* name;
  size_t size;
};

inline constexpr DTypeInfo kDTypes[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"I16", 2}, {"U16", 2},
    {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},
    {"F64", 8},  {"I64", 8},  {"U64", 8}};

inline const DTypeInfo& info(DType dtype) {
  const auto i = static_cast<size_t>(dtype);
  if (i >= std::size(kDTypes)) {
    throw Error("safetensors: dtype must be below " +
                std::to_string(std::size(kDTypes)) + ", got value " +
                std::to_string(static_cast<int>(dtype)));
  }
  return kDTypes[i];
}

inline std::string quote(const std::string& text) {
  return "'" + base::printable(text) + "'";
}

template <typename T>
std::string list(const std::vector<T>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    out += (i ? ", " : "") + std::to_string(values[i]);
  }
  return out + "]";
}

/// The prefix of error messages.
inline std::string name_of(const std::string& path) {
  return "safetensors '" + path + "'";
}

[[noreturn]] inline void fail(const std::string& path,
                              const std::string& what) {
  throw Error(name_of(path) + ": " + what);
}

[[noreturn]] inline void fail_errno(const std::string& path,
                                    const std::string& what, int error) {
  fail(path, what + ": " + std::generic_category().message(error));
}

inline std::string tensor_text(const std::string& name) {
  return "tensor " + quote(name) + ": ";
}

// Returns the size in bytes. The overflow check counts sizes of 0 as 1, so that
// no partial product, such as a stride, can overflow either.
inline size_t checked_bytes(const std::string& path, const std::string& name,
                            DType dtype, const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxRank) {
    fail(path, tensor_text(name) + "shape must have at most " +
                   std::to_string(kMaxRank) + " dimensions, got " +
                   std::to_string(shape.size()));
  }
  int64_t product = static_cast<int64_t>(info(dtype).size);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      fail(path, tensor_text(name) + "shape must not be negative, got " +
                     list(shape));
    }
    empty |= size == 0;
    const int64_t factor = std::max<int64_t>(size, 1);
    if (product > std::numeric_limits<int64_t>::max() / factor) {
      fail(path, tensor_text(name) + "shape must hold fewer than 2^63 bytes " +
                     "as " + info(dtype).name + ", got " + list(shape));
    }
    product *= factor;
  }
  return empty ? 0 : static_cast<size_t>(product);
}

// The header's description of one tensor, not yet validated.
struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
};

// SAX handler for nlohmann-json with one state per level of the format. An
// unexpected value stops parsing immediately, so deep nesting and junk subtrees
// cost nothing.
class HeaderParser {
 public:
  using json = nlohmann::json;

  explicit HeaderParser(const std::string& path) : path_(path) {}

  bool null() { unexpected("null"); }
  bool boolean(bool value) { unexpected(value ? "true" : "false"); }
  bool number_float(double, const std::string& text) {
    unexpected("number " + base::printable(text, 40));
  }
  bool binary(json::binary_t&) { unexpected("binary"); }

  bool number_integer(int64_t value) {  // the lexer calls this only for -x
    unexpected(value == 0 ? "-0" : std::to_string(value));
  }

  bool number_unsigned(uint64_t value) {
    if (state_ == State::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        unexpected(std::to_string(value));
      }
      if (entry_.shape.size() == kMaxRank) {
        fail_here("shape must have at most " + std::to_string(kMaxRank) +
                  " dimensions, got more");
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else if (state_ == State::kOffsets) {
      if (entry_.offsets.size() == 2) {
        fail_here("data_offsets must be [begin, end], got more than 2 numbers");
      }
      entry_.offsets.push_back(value);
    } else {
      unexpected("number " + std::to_string(value));
    }
    return true;
  }

  bool string(std::string& value) {
    if (state_ == State::kMetadata) {
      if (!metadata.emplace(key_, value).second) {
        fail_here("key " + quote(key_) + " must be unique, got it twice");
      }
    } else if (state_ == State::kEntry && key_ == "dtype") {
      const auto* found =
          std::find_if(std::begin(kDTypes), std::end(kDTypes),
                       [&](const DTypeInfo& d) { return value == d.name; });
      if (found == std::end(kDTypes)) {
        std::string names;
        for (const DTypeInfo& d : kDTypes) names += std::string(" ") + d.name;
        fail_here("dtype must be one of" + names + ", got " + quote(value));
      }
      entry_.dtype = static_cast<DType>(found - std::begin(kDTypes));
    } else {
      unexpected("string " + quote(value));
    }
    return true;
  }

  bool start_object(size_t) {
    if (state_ == State::kStart) {
      state_ = State::kRoot;
    } else if (state_ == State::kRoot && key_ == kMetadataKey) {
      if (std::exchange(seen_metadata_, true)) {
        fail(path_, "key '__metadata__' must be unique, got it twice");
      }
      state_ = State::kMetadata;
    } else if (state_ == State::kRoot) {
      entry_ = Entry{key_, DType::kF32, {}, {}};
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
      state_ = State::kEntry;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& value) {
    key_ = value;
    if (state_ != State::kEntry) return true;
    bool* seen = value == "dtype"          ? &seen_dtype_
                 : value == "shape"        ? &seen_shape_
                 : value == "data_offsets" ? &seen_offsets_
                                           : nullptr;
    if (!seen) {
      fail_here("keys must be dtype, shape and data_offsets, got " +
                quote(value));
    }
    if (std::exchange(*seen, true)) {
      fail_here("key " + quote(value) + " must be unique, got it twice");
    }
    return true;
  }

  bool end_object() {
    if (state_ == State::kEntry) {
      if (!seen_dtype_ || !seen_shape_ || !seen_offsets_) {
        fail_here(std::string("keys must be dtype, shape and data_offsets, ") +
                  "got no " +
                  (!seen_dtype_   ? "dtype"
                   : !seen_shape_ ? "shape"
                                  : "data_offsets"));
      }
      entries.push_back(std::move(entry_));
    }
    state_ = State::kRoot;
    return true;
  }

  bool start_array(size_t) {
    if (state_ == State::kEntry && key_ == "shape") {
      state_ = State::kShape;
    } else if (state_ == State::kEntry && key_ == "data_offsets") {
      state_ = State::kOffsets;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    if (state_ == State::kOffsets && entry_.offsets.size() != 2) {
      fail_here("data_offsets must be [begin, end], got " +
                list(entry_.offsets));
    }
    state_ = State::kEntry;
    return true;
  }

  bool parse_error(size_t, const std::string&, const json::exception& error) {
    std::string what =
        error.what();  // "[json.exception.x.101] parse error ..."
    what.erase(0,
               what.find("] ") == std::string::npos ? 0 : what.find("] ") + 2);
    fail(path_, "header must be JSON, got " + base::printable(what, 300));
  }

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

 private:
  enum class State { kStart, kRoot, kMetadata, kEntry, kShape, kOffsets };

  [[noreturn]] void fail_here(const std::string& what) const {
    const bool in_metadata = state_ == State::kMetadata ||
                             (state_ == State::kRoot && key_ == kMetadataKey);
    const std::string& name = state_ == State::kRoot ? key_ : entry_.name;
    fail(path_, (in_metadata ? "__metadata__: " : tensor_text(name)) + what);
  }

  [[noreturn]] void unexpected(const std::string& got) const {
    switch (state_) {
      case State::kStart:
        fail(path_, "header must be an object, got " + got);
      case State::kRoot:
        fail_here("must be an object, got " + got);
      case State::kMetadata:
        fail_here("key " + quote(key_) + " must hold a string, got " + got);
      case State::kEntry:
        fail_here(key_ + " must be " +
                  (key_ == "dtype" ? "a string" : "an array") + ", got " + got);
      case State::kShape:
        fail_here("shape must hold integers from 0 to 2^63 - 1, got " + got);
      case State::kOffsets:
        fail_here("data_offsets must hold integers from 0 to 2^64 - 1, got " +
                  got);
    }
    fail(path_, "header: unexpected " + got);
  }

  const std::string& path_;
  State state_ = State::kStart;
  std::string key_;  // the most recent key at the level of state_
  Entry entry_;
  bool seen_metadata_ = false;
  bool seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
};

}  // namespace aft::io::internal
