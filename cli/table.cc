#include "cli/table.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace aft::cli {

std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows,
                  size_t left) {
  std::vector<size_t> width;
  for (const std::string& cell : header) width.push_back(cell.size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      width[i] = std::max(width[i], row[i].size());
    }
  }
  std::string out;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(width[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += i < left ? row[i] + pad : pad + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  add(header);
  std::vector<std::string> rule;
  for (const size_t w : width) rule.emplace_back(w, '-');
  add(rule);
  for (const auto& row : rows) add(row);
  return out;
}

std::string number(double x) {
  int digits = 0;
  if (x != 0 && std::isfinite(x)) {
    digits = 2 - static_cast<int>(std::floor(std::log10(std::abs(x))));
    digits = std::clamp(digits, 0, 9);
  }
  char text[64];
  snprintf(text, sizeof(text), "%.*f", digits, x);
  return text;
}

Progress::~Progress() {
  if (done_ > 0 && isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}

void Progress::next(const std::string& what) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  fprintf(stderr, "%s[%zu/%zu] %s%s", terminal ? "\r\033[K" : "", ++done_,
          total_, what.c_str(), terminal ? "" : "\n");
  fflush(stderr);
}

}  // namespace aft::cli
