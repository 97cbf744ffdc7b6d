// Shared by the tests of safetensors: handmade files in a temporary directory,
// and the error messages of reading and writing them.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "aft/io/safetensors.h"
#include "tests/scratch.h"

namespace aft::io {

inline constexpr DType kAll[] = {
    DType::kBool, DType::kU8,   DType::kI8,  DType::kI16, DType::kU16,
    DType::kF16,  DType::kBF16, DType::kI32, DType::kU32, DType::kF32,
    DType::kF64,  DType::kI64,  DType::kU64};

inline std::string length_prefix(uint64_t length) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i));
  return out;
}

inline std::string file_of(const std::string& header, size_t data_bytes) {
  return length_prefix(header.size()) + header + std::string(data_bytes, '\1');
}

inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

inline float float_of(const TensorView& t) {
  float value = 0;
  EXPECT_EQ(t.bytes, sizeof(value));
  std::memcpy(&value, t.data, sizeof(value));
  return value;
}

// One to three random edits of a good file: bytes, pieces of JSON, cuts.
inline std::string mutated(const std::string& good, std::mt19937& random) {
  static const std::vector<std::string> words = {
      "0",     "9",    "-1", "18446744073709551615",
      "[",     "]",    "{",  "}",
      "\"",    ",",    ":",  "\\",
      "null",  "1e9",  "U8", "\"d\"",
      "shape", "\xff", " "};
  const auto pick = [&](size_t n) { return n ? random() % n : 0; };
  std::string bytes = good;
  for (size_t edits = 1 + pick(3); edits > 0; --edits) {
    const size_t at = pick(bytes.size());
    switch (pick(6)) {
      case 0:
        bytes.replace(at, 1, 1, static_cast<char>(random()));
        break;
      case 1:
        bytes.resize(at + 1);
        break;
      case 2:
        bytes.replace(at, pick(4), words[pick(words.size())]);
        break;
      case 3:
        bytes.insert(at, bytes.substr(pick(bytes.size()), 60));
        break;
      case 4:
        bytes.erase(at, 1 + pick(20));
        break;
      case 5:
        bytes.replace(at, 1, 1, static_cast<char>('0' + pick(10)));
        break;
    }
  }
  // In half of the cases, correct the length, so that the reader gets past it.
  const size_t header = static_cast<unsigned char>(good[0]) +
                        256 * static_cast<unsigned char>(good[1]);
  if (pick(2) && bytes.size() > 8) {
    bytes.replace(0, 8, length_prefix(header + bytes.size() - good.size()));
  }
  return bytes;
}

// Runs body in a child process, for limits that must not affect this process.
// Returns the message of the Error, or "no error".
inline std::string error_in_child(const std::function<void()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t pid = fork();
  if (pid == 0) {
    std::string text = "no error";
    try {
      body();
    } catch (const Error& e) {
      text = e.what();
    } catch (const std::exception& e) {
      text = std::string("not an aft::io::Error: ") + e.what();
    }
    const ssize_t n = write(ends[1], text.data(), text.size());
    _exit(n == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t n = read(ends[0], text.data(), text.size());
  close(ends[0]);
  int status = -1;
  waitpid(pid, &status, 0);
  if (n < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return "crash";
  text.resize(static_cast<size_t>(n));
  return text;
}

class SafeTensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = new_folder();
    path_ = dir_ + "/model.safetensors";
  }

  void TearDown() override { chmod(dir_.c_str(), 0700); }

  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    DIR* d = opendir(dir_.c_str());
    while (const dirent* e = d ? readdir(d) : nullptr) {
      const std::string name = e->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    if (d) closedir(d);
    return names;
  }

  void put(const std::string& bytes) const {
    unlink(path_.c_str());  // faster: ext4 flushes files that are truncated
    std::ofstream(path_, std::ios::binary) << bytes;
  }

  std::string get() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string error_of_open() const {
    try {
      SafeTensors::open(path_);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  std::string error_of_save(const std::vector<TensorView>& tensors,
                            const std::string& key = "k") const {
    try {
      save_safetensors(path_, tensors, {{key, "v"}});
    } catch (const Error& e) {
      EXPECT_TRUE(listing().empty()) << "a rejected save left a file";
      return e.what();
    }
    return "no error";
  }

  void expect_bad(const std::string& bytes, const std::string& expected) const {
    put(bytes);
    const std::string got = error_of_open();
    EXPECT_EQ(got.find("safetensors '" + path_ + "': "), 0u) << got;
    EXPECT_NE(got.find(expected), std::string::npos)
        << "expected: " << expected << "\ngot:      " << got;
  }

  void expect_bad_header(const std::string& header, size_t data_bytes,
                         const std::string& expected) const {
    expect_bad(file_of(header, data_bytes), expected);
  }

  std::string dir_, path_;
};

}  // namespace aft::io
