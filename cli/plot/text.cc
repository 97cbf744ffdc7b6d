#include "cli/plot/text.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "cli/plot/drawing.h"

namespace aft::cli {
namespace {

/// The width of a character of size 1: at least those of DejaVu Sans, which is
/// wider than Helvetica and Arial, and of Canvas.
double character_bound(char c) {
  double out = 0.84;
  if (std::strchr("fijlrt !'()*,-./:;I[\\]`|\"_", c)) {
    out = c == '_' || c == '*' ? 0.51 : 0.46;
  } else if (std::strchr("mwMW%@", c)) {
    out = 1;
  } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
    out = 0.64;
  }
  return std::max(out, text_width(std::string(1, c), 1));
}

/// Whether a character of UTF-8 begins at `text[at]`.
bool starts(const std::string& text, size_t at) {
  return at >= text.size() ||
         (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

}  // namespace

double text_bound(const std::string& text, double size, bool bold) {
  double out = 0;
  for (const char c : text) out += character_bound(c);
  return out * size * (bold ? 1.12 : 1);
}

std::string shortened(const std::string& text, double width, double size,
                      bool bold) {
  std::string out = text;
  // `first` bytes at the beginning and the bytes from `last` on remain.
  size_t first = text.size() / 2, last = first;
  while (text_bound(out, size, bold) > width &&
         (first > 0 || last < text.size())) {
    if (first >= text.size() - last) {
      --first;
    } else {
      ++last;
    }
    if (starts(text, first) && starts(text, last))
      out = text.substr(0, first) + "..." + text.substr(last);
  }
  return out;
}

std::vector<std::string> wrapped(const std::string& text, double width,
                                 double size) {
  std::vector<std::string> out;
  std::istringstream words(text);
  std::string word;
  while (words >> word) {
    word = shortened(word, width, size);
    if (!out.empty() && text_bound(out.back() + " " + word, size) <= width) {
      out.back() += " " + word;
    } else {
      out.push_back(word);
    }
  }
  return out;
}

void spread(std::vector<double>& positions, double apart, double low,
            double high) {
  // With i * apart subtracted, the positions must not descend: the means of
  // adjacent groups are joined as long as they do.
  struct Group {
    double sum, count;
    double mean() const { return sum / count; }
  };
  std::vector<Group> groups;
  for (size_t i = 0; i < positions.size(); ++i) {
    groups.push_back({positions[i] - static_cast<double>(i) * apart, 1});
    while (groups.size() > 1 &&
           groups[groups.size() - 2].mean() > groups.back().mean()) {
      const Group last = groups.back();
      groups.pop_back();
      groups.back().sum += last.sum, groups.back().count += last.count;
    }
  }
  const double slack =
      high - low - apart * (static_cast<double>(positions.size()) - 1);
  size_t i = 0;
  for (const Group& g : groups)
    for (double n = 0; n < g.count; ++n, ++i)
      positions[i] = std::clamp(g.mean(), low, low + std::max(slack, 0.0)) +
                     static_cast<double>(i) * apart;
}

}  // namespace aft::cli
