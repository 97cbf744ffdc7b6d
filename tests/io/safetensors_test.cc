// safetensors: round trips, the exact bytes of the format, and an Error that
// explains the fault for every invalid file.
#include "aft/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>
#include <type_traits>

#include "tests/io/safetensors_fixture.h"

namespace aft::io {
namespace {

TEST_F(SafeTensorsTest, RoundTripsEveryDtypeAndShape) {
  const std::vector<std::vector<int64_t>> shapes = {
      {}, {1}, {3}, {2, 3}, {0}, {2, 0, 5}, {1, 1, 7, 1}};
  std::mt19937 random(1);
  std::vector<std::string> storage;
  std::vector<TensorView> tensors;
  storage.reserve(std::size(kAll) * shapes.size());
  for (const DType dtype : kAll) {
    for (const auto& shape : shapes) {
      size_t bytes = dtype_size(dtype);
      for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
      std::string& data = storage.emplace_back(bytes, '\0');
      for (char& c : data) c = static_cast<char>(random());
      tensors.push_back({"t" + std::to_string(tensors.size()), dtype, shape,
                         bytes ? data.data() : nullptr, bytes});
    }
  }
  tensors[3].name = "weird \"\\\n\x01 \xc3\xa4\xe2\x82\xac";
  tensors[4].name = "";
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"", "empty key"}, {"quote\"", "line\nbreak"}};
  save_safetensors(path_, tensors, metadata);
  EXPECT_EQ(listing(), std::vector<std::string>{"model.safetensors"});

  const SafeTensors file = SafeTensors::open(path_);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const TensorView& t : tensors) {
    const TensorView& got = file.at(t.name);
    EXPECT_EQ(got.name, t.name);
    EXPECT_EQ(got.dtype, t.dtype);
    EXPECT_EQ(got.shape, t.shape);
    ASSERT_EQ(got.bytes, t.bytes);
    EXPECT_TRUE(!t.bytes || !std::memcmp(got.data, t.data, t.bytes)) << t.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data) % dtype_size(t.dtype), 0u)
        << t.name;
  }
}

TEST_F(SafeTensorsTest, WritesTheBytesOfTheFormat) {
  const int64_t i[] = {-2};
  const float a = 1.0f, b[] = {2.0f, -0.5f};
  const uint8_t flag[] = {1, 0, 1};
  save_safetensors(path_,
                   {{"flags", DType::kBool, {3}, flag, 3},
                    {"b", DType::kF32, {2, 1}, b, 8},
                    {"none", DType::kF16, {0}, nullptr, 0},
                    {"a", DType::kF32, {}, &a, 4},
                    {"i", DType::kI64, {1}, i, 8}},
                   {{"format", "pt"}});
  const std::string expected =
      std::string("\x40\x01\0\0\0\0\0\0", 8) +
      R"({"__metadata__":{"format":"pt"},)"
      R"("i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[12,20]},)"
      R"("none":{"dtype":"F16","shape":[0],"data_offsets":[20,20]},)"
      R"("flags":{"dtype":"BOOL","shape":[3],"data_offsets":[20,23]}})"
      "       " +
      std::string(
          "\xfe\xff\xff\xff\xff\xff\xff\xff"
          "\0\0\x80\x3f\0\0\0\x40\0\0\0\xbf\1\0\1",
          23);
  EXPECT_EQ(get(), expected);

  save_safetensors(path_, {});
  EXPECT_EQ(get(), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(SafeTensors::open(path_).tensors().empty());
}

TEST_F(SafeTensorsTest, SortsDtypesLikeTheReference) {
  // One tensor of each dtype, named so that the order by name is the reverse.
  const uint64_t zero = 0;
  std::vector<TensorView> tensors;
  for (const DType d : kAll) {
    const std::string name(1, static_cast<char>('a' + tensors.size()));
    tensors.push_back({name, d, {}, &zero, dtype_size(d)});
  }
  save_safetensors(path_, tensors);
  const SafeTensors file = SafeTensors::open(path_);
  std::string names;
  for (const TensorView& t : file.tensors()) {
    names += std::string(dtype_name(t.dtype)) + " ";
  }
  EXPECT_EQ(names, "U64 I64 F64 F32 U32 I32 BF16 F16 U16 I16 I8 U8 BOOL ");
  EXPECT_THROW(dtype_size(static_cast<DType>(13)), Error);
  EXPECT_THROW(dtype_name(static_cast<DType>(-1)), Error);
}

TEST_F(SafeTensorsTest, ReadsFilesOfOtherWriters) {
  // No padding, a header in a different order than the data, a double at an odd
  // address, white space, escapes.
  const std::string header =
      "{ \"d\\u00e4\" : " + entry("", "F64", "[1]", "[1,9]").substr(3) + ",\n" +
      entry("a", "U8", "[1]", "[0,1]") + "}  ";
  const double value = 0.1;
  std::string data = "\x07" + std::string(8, '\0');
  std::memcpy(&data[1], &value, 8);
  put(length_prefix(header.size()) + header + data);
  const SafeTensors file = SafeTensors::open(path_);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  double got = 0;
  std::memcpy(&got, file.at("d\xc3\xa4").data, 8);
  EXPECT_EQ(got, value);
  EXPECT_TRUE(file.metadata().empty());
}

TEST_F(SafeTensorsTest, FindsByNameAndSuggestsTheNearest) {
  const float x = 0;
  save_safetensors(path_, {{"block.0.key.weight", DType::kF32, {}, &x, 4},
                           {"block.0.out.weight", DType::kF32, {}, &x, 4}});
  const SafeTensors file = SafeTensors::open(path_);
  EXPECT_EQ(file.find("block.0.out.weight"), &file.at("block.0.out.weight"));
  EXPECT_EQ(file.find("block.0.out.weigh"), nullptr);
  EXPECT_EQ(file.find("zzz"), nullptr);
  try {
    file.at("block.0.kay.weight");
    FAIL() << "found a tensor that does not exist";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "safetensors '" + path_ +
                  "': must hold tensor 'block.0.kay.weight', got 2 others, "
                  "nearest block.0.key.weight or block.0.out.weight");
  }
  EXPECT_THROW(file.at(std::string(1000, 'x')), Error);
}

TEST_F(SafeTensorsTest, ViewsSurviveMoves) {
  static_assert(!std::is_copy_constructible_v<SafeTensors>);
  const float x = 3.5f;
  save_safetensors(path_, {{"x", DType::kF32, {}, &x, 4}});
  SafeTensors first = SafeTensors::open(path_);
  const void* data = first.at("x").data;
  SafeTensors second = std::move(first);
  first = SafeTensors::open(path_);
  EXPECT_NE(first.at("x").data, data);
  first = std::move(second);
  EXPECT_EQ(first.at("x").data, data);
  EXPECT_EQ(float_of(first.at("x")), x);
}

TEST_F(SafeTensorsTest, RejectsInvalidFrames) {
  expect_bad("", "file must have at least 8 bytes, got 0");
  expect_bad("1234567", "file must have at least 8 bytes, got 7");
  expect_bad(length_prefix(0), "header must begin with '{', got no header");
  expect_bad(length_prefix(3) + "{}",
             "header of 3 bytes must fit in the file, got 2 bytes");
  expect_bad(length_prefix(100'000'001), "header must be at most 100000000");
  expect_bad(length_prefix(1ull << 60), "is not a safetensors file: ");
  expect_bad(length_prefix(3) + "{}", "is damaged: ");
  expect_bad_header("{} x", 0, "is damaged: its header cannot be read: ");
  expect_bad(length_prefix(1ull << 60), "got length 1152921504606846976");
  expect_bad(std::string(16, '\xff'), "got length 18446744073709551615");
  expect_bad_header(" {}", 0, "header must begin with '{', got ' '");
  expect_bad_header("[]", 0, "header must begin with '{', got '['");
  expect_bad_header(std::string("{}\0{", 4), 0, "got a zero byte");
  unlink(path_.c_str());
  EXPECT_NE(error_of_open().find("cannot open: No such file or directory"),
            std::string::npos);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(error_of_open().find("must be a regular file"), std::string::npos);
}

TEST_F(SafeTensorsTest, RejectsInvalidJson) {
  const std::string many(1'000'000, '[');
  std::string deep = "{";
  for (int i = 0; i < 100'000; ++i) deep += "\"a\":{";
  const std::string ok = entry("a", "U8", "[1]", "[0,1]");
  const struct {
    std::string header, expected;
  } cases[] = {
      {R"({"a":)", "header must be JSON, got parse error at line 1, column 6"},
      {"{} x", "header must be JSON, got parse error"},
      {"{\"\xff\xfe\":1}", "ill-formed UTF-8 byte"},
      {R"({"\ud800":1})", "surrogate"},
      {"{\"\x1b[31m\":1}", "control character"},
      {R"({"a":{"shape":[1e999]}})", "got number overflow"},
      {deep, "tensor 'a': keys must be dtype, shape and data_offsets, got 'a'"},
      {R"({"a":)" + many, "tensor 'a': must be an object, got an array"},
      {R"({"a":{"shape":[)" + many, "shape must hold integers"},
      {R"({"a":{"dtype":)" + many, "dtype must be a string, got an array"},
      {"{" + ok + "," + ok + "}", "tensor 'a': name must be unique"},
      {R"({"a":{"shape":[],"shape":[]}})", "key 'shape' must be unique"},
      {R"({"__metadata__":{},"__metadata__":{}})",
       "'__metadata__' must be unique"},
      {R"({"__metadata__":{"k":"","k":""}})",
       "__metadata__: key 'k' must be unique"},
      {R"({"__metadata__":{"k":1}})",
       "key 'k' must hold a string, got number 1"},
      {R"({"__metadata__":{"k":{}}})", "must hold a string, got an object"},
      {R"({"__metadata__":[]})",
       "__metadata__: must be an object, got an array"},
      {R"({"a\u001b":null})", "tensor 'a\\x1b': must be an object, got null"},
      {R"({"a":{}})",
       "tensor 'a': keys must be dtype, shape and data_offsets, got no"},
      {R"({"a":{"dtype":"U8","shape":[]}})", "got no data_offsets"},
      {R"({"a":{"dtype":true}})", "dtype must be a string, got true"},
  };
  for (const auto& c : cases) expect_bad_header(c.header, 1, c.expected);
}

TEST_F(SafeTensorsTest, RejectsInvalidTensors) {
  const struct {
    const char *dtype, *shape, *offsets, *expected;
  } cases[] = {
      {"F31", "[1]", "[0,4]",
       "dtype must be one of BOOL U8 I8 I16 U16 F16 BF16"
       " I32 U32 F32 F64 I64 U64, got 'F31'"},
      {"F32", "[-1]", "[0,4]",
       "shape must hold integers from 0 to 2^63 - 1, got -1"},
      {"F32", "[-0]", "[0,4]", "got -0"},
      {"F32", "[1.0]", "[0,4]", "2^63 - 1, got number 1.0"},
      {"F32", "[\"1\"]", "[0,4]", "2^63 - 1, got string '1'"},
      {"F32", "[9223372036854775808]", "[0,4]", "got 9223372036854775808"},
      {"F32", "[99999999999999999999]", "[0,4]", "got number 9999999999999999"},
      {"F32", "[9223372036854775807]", "[0,4]",
       "shape must hold fewer than 2^63 bytes as F32, got "
       "[9223372036854775807]"},
      {"F32", "[4294967296,4294967296]", "[0,0]", "fewer than 2^63 bytes"},
      {"F32", "[0,4294967296,4294967296]", "[0,0]", "fewer than 2^63 bytes"},
      {"F32", "1", "[0,4]", "shape must be an array, got number 1"},
      {"F32", "[1]", "[0,4,4]", "must be [begin, end], got more than 2"},
      {"F32", "[1]", "[4]", "data_offsets must be [begin, end], got [4]"},
      {"F32", "[1]", "[-4,0]", "data_offsets must hold integers from 0"},
      {"F32", "[1]", "[4,0]", "with begin <= end, got [4, 0]"},
      {"F32", "[1]", "[0,8]",
       "data_offsets [0, 8] must lie in the data, got 4 bytes of data"},
      {"F32", "[1]", "[18446744073709551612,18446744073709551615]",
       "must lie in the data"},
      {"F32", "[2]", "[0,4]",
       "F32 of shape [2] must take 8 bytes, got 4 in data_offsets [0, 4]"},
      {"F32", "[]", "[0,3]", "F32 of shape [] must take 4 bytes, got 3"},
      {"U8", "[3]", "[1,4]",
       "data must begin at offset 0, where the data begins, got 1 (gap)"},
  };
  for (const auto& c : cases) {
    const std::string w = entry("w", c.dtype, c.shape, c.offsets);
    expect_bad_header("{" + w + "}", 4, "tensor 'w': ");
    expect_bad_header("{" + w + "}", 4, c.expected);
  }
}

TEST_F(SafeTensorsTest, RejectsGapsAndOverlaps) {
  const auto two = [](const char* a, const char* b) {
    return "{" + entry("a", "U8", "[2]", a) + "," + entry("b", "U8", "[2]", b) +
           "}";
  };
  expect_bad_header(two("[0,2]", "[1,3]"), 4,
                    "tensor 'b': data must begin at offset 2, where tensor 'a' "
                    "ends, got 1 (overlap)");
  expect_bad_header(two("[0,2]", "[0,2]"), 4, "got 0 (overlap)");
  expect_bad_header(two("[3,5]", "[0,2]"), 5,
                    "tensor 'a': data must begin at offset 2, where tensor 'b' "
                    "ends, got 3 (gap)");
  expect_bad_header(two("[0,2]", "[2,4]"), 5,
                    "data must end with the last tensor at offset 4, got 5");
  expect_bad_header(two("[0,2]", "[2,4]"), 3,
                    "tensor 'b': data_offsets [2, 4] must lie in the data, got "
                    "3 bytes of data (truncated file?)");
  expect_bad_header("{}", 1, "at offset 0, got 1 byte of data");
  std::string ones = "[1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  expect_bad_header("{" + entry("a", "U8", ones + "]", "[0,1]") + "}", 1,
                    "at most 64 dimensions, got more");
}

TEST_F(SafeTensorsTest, FuzzedFilesParseOrThrow) {
  const double d[] = {1, 2, 3};
  save_safetensors(path_,
                   {{"d", DType::kF64, {3}, d, 24},
                    {"e", DType::kI16, {2, 0}, nullptr, 0},
                    {"f", DType::kF32, {}, d, 4},
                    {"u", DType::kU8, {2, 2}, d, 4}},
                   {{"format", "pt"}});
  const std::string good = get();
  std::mt19937 random(20240501);
  int parsed = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = mutated(good, random);
    put(bytes);
    try {
      const SafeTensors file = SafeTensors::open(path_);
      ++parsed;
      std::string data;  // the views are the end of the file, byte for byte
      for (const TensorView& t : file.tensors()) {
        size_t expected = dtype_size(t.dtype);
        for (const int64_t size : t.shape) expected *= size;
        ASSERT_EQ(t.bytes, expected);
        ASSERT_EQ(file.find(t.name), &t);
        data.append(static_cast<const char*>(t.data), t.bytes);
      }
      ASSERT_EQ(data, bytes.substr(bytes.size() - data.size()));
    } catch (const Error& e) {
      ++refused;
      const std::string what = e.what();
      ASSERT_NE(what.find(path_), std::string::npos) << what;
      ASSERT_LT(what.size(), path_.size() + 500) << what;
      for (const char c : what) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << what;
    }
  }
  EXPECT_GT(parsed, 500);
  EXPECT_GT(refused, 5000);
}

TEST_F(SafeTensorsTest, RejectsInvalidTensorsOnSave) {
  const float x = 0;
  const auto expect = [&](const std::string& got, const char* expected) {
    EXPECT_EQ(got.find("safetensors '" + path_ + "': "), 0u) << got;
    EXPECT_NE(got.find(expected), std::string::npos) << got;
  };
  const TensorView ok = {"x", DType::kF32, {1}, &x, 4};
  expect(error_of_save({ok, ok}), "tensor 'x': name must be unique");
  expect(error_of_save({{"__metadata__", DType::kF32, {}, &x, 4}}), "reserved");
  expect(error_of_save({{"x", DType::kF32, {2}, &x, 4}}),
         "F32 of shape [2] must take 8 bytes, got 4");
  expect(error_of_save({{"x", DType::kF32, {1}, nullptr, 4}}), "at null");
  expect(error_of_save({{"x", DType::kF32, {-1}, &x, 4}}), "not be negative");
  expect(error_of_save({{"x", DType::kF32, {1LL << 61}, &x, 4}}), "2^63 bytes");
  expect(error_of_save({{"\xff", DType::kF32, {}, &x, 4}}), "got '\\xff'");
  expect(error_of_save({ok}, "\xc3"), "must be UTF-8, got '\\xc3'");
}

TEST_F(SafeTensorsTest, ReplacesFilesAtomically) {
  const float one = 1, two = 2;
  save_safetensors(path_, {{"x", DType::kF32, {}, &one, 4}});
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  const SafeTensors old = SafeTensors::open(path_);
  // The old mapping remains valid, and may itself be the source.
  save_safetensors(path_, {old.at("x"), {"y", DType::kF32, {}, &two, 4}});
  EXPECT_EQ(float_of(old.at("x")), one);
  const SafeTensors now = SafeTensors::open(path_);
  EXPECT_EQ(float_of(now.at("x")), one);
  EXPECT_EQ(float_of(now.at("y")), two);
  struct stat st;
  ASSERT_EQ(stat(path_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0640u);
  EXPECT_EQ(listing().size(), 1u);
}

TEST_F(SafeTensorsTest, FailedSaveKeepsTheOldFile) {
  const std::vector<float> x(100'000, 1.5f);
  const TensorView small = {"x", DType::kF32, {1}, x.data(), 4};
  const TensorView large = {"x", DType::kF32, {100'000}, x.data(), 400'000};
  save_safetensors(path_, {small});
  const std::string before = get();

  const std::string full = error_in_child([&] {
    signal(SIGXFSZ, SIG_IGN);  // the write then fails like that of a full disk
    const rlimit limit = {65536, 65536};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw Error("no limit");
    save_safetensors(path_, {large});
  });
  EXPECT_EQ(full,
            "safetensors '" + path_ + "': cannot be written: File too large");
  EXPECT_EQ(get(), before);
  EXPECT_EQ(listing().size(), 1u);

  ASSERT_EQ(chmod(dir_.c_str(), 0555), 0);
  const std::string denied = error_in_child([&] {
    if (geteuid() == 0 && seteuid(65534) != 0) throw Error("no seteuid");
    save_safetensors(path_, {large});
  });
  EXPECT_EQ(denied,
            "safetensors '" + path_ +
                "': cannot be written: a temporary file cannot be created next "
                "to it: "
                "Permission denied");
  EXPECT_EQ(get(), before);
  EXPECT_EQ(listing().size(), 1u);
}

TEST_F(SafeTensorsTest, RejectsTargetsThatAreNotRegularFiles) {
  const auto error = [](const std::string& path) {
    return error_in_child([&] { save_safetensors(path, {}); });
  };
  EXPECT_EQ(error(dir_ + "/no/x"),
            "safetensors '" + dir_ +
                "/no/x': cannot be written: its directory '" + dir_ +
                "/no/' cannot be opened: No such file or directory");
  EXPECT_NE(error(dir_).find("not a regular file"), std::string::npos);
  EXPECT_NE(error("/dev/full").find("a regular file"), std::string::npos);
  EXPECT_NE(error("").find("No such file"), std::string::npos);
  EXPECT_NE(error(dir_ + "/a/").find("its directory '"), std::string::npos);
  EXPECT_TRUE(listing().empty());
}

}  // namespace
}  // namespace aft::io
