#include "aft/data/label_table.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "aft/base/escape.h"
#include "aft/data/data.h"
#include "aft/io/file.h"
#include "aft/io/safetensors.h"

namespace aft::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxClass = 99999;
constexpr size_t kMaxBytes = size_t{1} << 30;  // 1 kB per image of ImageNet

std::string shown(const std::string& text) {
  return "'" + base::printable(text, 60) + "'";
}

std::vector<std::string> columns_of(const std::string& line) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    out.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::string contents(const std::string& path) {
  try {
    return io::read_file(path, kMaxBytes);
  } catch (const io::Error& e) {
    throw DataError(e.what());
  }
}

class Reader {
 public:
  Reader(const std::string& path, bool files)
      : path_(path),
        folder_(fs::path(path).parent_path().string()),
        files_(files),
        in_(contents(path)) {
    std::string line;
    next(line);
    read_header(line);
    while (next(line))
      if (!line.empty()) read_row(columns_of(line));
    if (out.rows.empty())
      throw DataError(path_ + ": expected one line per image, got none");
    for (size_t i = 0; i < out.classes.size(); ++i)
      if (out.classes[i].empty()) out.classes[i] = "class " + std::to_string(i);
  }

  LabelTable out;

 private:
  bool next(std::string& line) {
    line.clear();
    ++line_;
    if (!std::getline(in_, line)) return false;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(path_ + ": line " + std::to_string(line_) + ": " + what);
  }

  void read_header(const std::string& line) {
    const std::vector<std::string> names = columns_of(line);
    const auto find = [&](const char* name) -> std::optional<size_t> {
      const auto at = std::find(names.begin(), names.end(), name);
      if (at == names.end()) return {};
      if (std::find(at + 1, names.end(), name) != names.end())
        fail(std::string("expected one column '") + name + "', got more");
      return static_cast<size_t>(at - names.begin());
    };
    const auto need = [&](const char* name) {
      const std::optional<size_t> at = find(name);
      if (!at)
        fail(std::string("expected a column '") + name +
             "' (and tabs between columns), got " + shown(line));
      return *at;
    };
    width_ = names.size();
    if (files_) file_ = need("file");
    index_ = need("class_index");
    wnid_ = find("wnid"), name_ = find("name");
  }

  void read_row(const std::vector<std::string>& row) {
    if (row.size() != width_)
      fail("expected " + std::to_string(width_) +
           " columns with tabs between them, got " +
           std::to_string(row.size()));
    out.rows.push_back({files_ ? find_file(row[file_]) : "", find_label(row)});
  }

  std::string find_file(const std::string& name) {
    const auto [at, fresh] = lines_.emplace(name, line_);
    if (!fresh)
      fail("expected each file once, got " + shown(name) +
           " again, which was in line " + std::to_string(at->second));
    for (const std::string& file : {"images/" + name, name})
      if (std::error_code error;
          !name.empty() && fs::is_regular_file(folder_ + "/" + file, error))
        return file;
    fail("expected a file beside " + fs::path(path_).filename().string() +
         " or in images/, got " + shown(name) + ", which is in neither");
  }

  int64_t find_label(const std::vector<std::string>& row) {
    const std::string& text = row[index_];
    int64_t label = -1;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), label);
    if (error != std::errc() || end != text.data() + text.size() || label < 0 ||
        label > kMaxClass)
      fail("class_index must be a number from 0 to " +
           std::to_string(kMaxClass) + ", got " + shown(text));
    std::string name = wnid_ ? row[*wnid_] : "";
    if (name_ && !row[*name_].empty())
      name += (name.empty() ? "" : " ") + row[*name_];
    std::vector<std::string>& classes = out.classes;
    const size_t i = static_cast<size_t>(label);
    if (i >= classes.size()) classes.resize(i + 1), named_.resize(i + 1);
    if (named_[i] == 0) {
      classes[i] = name, named_[i] = line_;
    } else if (classes[i] != name) {
      fail("class " + text + " is " + shown(classes[i]) + " in line " +
           std::to_string(named_[i]) + ", got " + shown(name));
    }
    return label;
  }

  const std::string path_, folder_;
  const bool files_;
  std::istringstream in_;
  int64_t line_ = 0;
  size_t width_ = 0, file_ = 0, index_ = 0;
  std::optional<size_t> wnid_, name_;
  std::unordered_map<std::string, int64_t> lines_;  // of each file
  std::vector<int64_t> named_;  // line that names each class; 0: none
};

}  // namespace

std::string wnid_of(const std::string& name) {
  const size_t end = std::min(name.find(' '), name.size());
  if (end < 2 || name[0] != 'n') return "";
  const bool digits = name.find_first_not_of("0123456789", 1) >= end;
  return digits ? name.substr(0, end) : "";
}

LabelTable read_label_table(const std::string& path, bool files) {
  return std::move(Reader(path, files).out);
}

}  // namespace aft::data
