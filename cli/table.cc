#include "cli/table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "aft/base/escape.h"

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

std::string number(double x, int digits) {
  int decimals = 0;
  if (x != 0 && std::isfinite(x)) {
    decimals =
        digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(x))));
    decimals = std::clamp(decimals, 0, 9);
  }
  char text[64];
  snprintf(text, sizeof(text), "%.*f", decimals, x);
  return text;
}

size_t terminal_columns() {
  const char* term = std::getenv("TERM");
  if (!isatty(STDERR_FILENO) || !term || !*term || term == std::string("dumb"))
    return 0;
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int n = columns ? std::atoi(columns) : 0;
  return n > 0 ? static_cast<size_t>(n) : 80;
}

std::string fitted(std::vector<Field> fields, size_t columns) {
  for (;;) {
    std::string line;
    for (const Field& f : fields) line += (line.empty() ? "" : "  ") + f.text;
    // In its last column, a terminal would wrap.
    if (columns == 0 || line.size() < columns || fields.size() < 2) return line;
    // The last of the least important ones.
    const auto least = std::min_element(fields.rbegin(), fields.rend() - 1,
                                        [](const Field& a, const Field& b) {
                                          return a.importance < b.importance;
                                        });
    fields.erase(least.base() - 1);
  }
}

void overwrite_line(const std::string& line, size_t columns) {
  std::string safe = base::terminal_safe(line);
  size_t end = std::min(safe.size(), columns - 1);
  while (end < safe.size() && end > 0 &&
         (static_cast<unsigned char>(safe[end]) & 0xc0) == 0x80)
    --end;  // not in the middle of a character
  std::cerr << "\r" + safe.substr(0, end) + "\033[K" << std::flush;
}

Progress::~Progress() {
  if (done_ > 0 && overwrite_ && terminal_columns() > 0) overwrite_line("", 1);
}

void Progress::next(const std::string& what) {
  const std::string line = "[" + std::to_string(++done_) + "/" +
                           std::to_string(total_) + "] " + what;
  const size_t columns = overwrite_ ? terminal_columns() : 0;
  if (columns > 0) {
    overwrite_line(line, columns);
  } else {
    std::cerr << base::terminal_safe(line) + "\n";
  }
}

}  // namespace aft::cli
