// A comparison as a table, as a bar chart and as an HTML page.
#include <algorithm>
#include <cmath>

#include "cli/commands/compare.h"
#include "cli/model.h"
#include "cli/plot/chart.h"
#include "cli/plot/drawing.h"
#include "cli/table.h"

namespace aft::cli {
namespace {

std::string known(double x, int digits = 3) {
  return x > 0 ? number(x, digits) : "-";
}

constexpr int kLossDigits = 4;  // systems often differ in the third one

struct Column {
  std::string name;
  std::string (*cell)(const ComparisonResult&);
};

using Result = const ComparisonResult&;

/// The table: its header, followed by a row per system. Columns without any
/// value are left out.
std::vector<std::vector<std::string>> rows(const Comparison& c) {
  const std::vector<Column> columns{
      {"system", [](Result s) { return s.name; }},
      {"parameters",
       [](Result s) {
         return s.parameters > 0 ? std::to_string(s.parameters) : "-";
       }},
      {c.unit, [](Result s) { return known(s.loss, kLossDigits); }},
      {"top-1 %", [](Result s) { return known(s.top1); }},
      {"kernel entropy",  // may be 0; kernel_top may not
       [](Result s) {
         return s.kernel_top > 0 ? number(s.kernel_entropy) : "-";
       }},
      {"top position %", [](Result s) { return known(100 * s.kernel_top); }},
      {c.rate, [](Result s) { return known(s.rate); }},
      {"peak_gb", [](Result s) { return known(s.peak_gb); }},
      {"paper: test",
       [](Result s) { return known(s.paper_test, kLossDigits); }},
      {"paper: " + c.rate, [](Result s) { return known(s.paper_rate); }},
      {"paper: gb", [](Result s) { return known(s.paper_gb); }}};
  std::vector<std::vector<std::string>> out(c.systems.size() + 1);
  for (const Column& column : columns) {
    std::vector<std::string> cells{column.name};
    for (Result s : c.systems) cells.push_back(column.cell(s));
    if (std::all_of(cells.begin() + 1, cells.end(),
                    [](const std::string& cell) { return cell == "-"; }))
      continue;
    for (size_t i = 0; i < out.size(); ++i)
      out[i].push_back(std::move(cells[i]));
  }
  return out;
}

std::string cells(const std::vector<std::string>& row, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : row)
    out += std::string("<") + tag + ">" + escaped(cell) + "</" + tag + ">";
  return out + "</tr>\n";
}

}  // namespace

std::string shell_quoted(const std::string& word) {
  const bool plain =
      !word.empty() && word.find_first_not_of(
                           "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwx"
                           "yz0123456789%+,-./:=@_") == std::string::npos;
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string as_table(const Comparison& c) {
  std::vector<std::vector<std::string>> cells = rows(c);
  const std::vector<std::string> header = cells[0];
  cells.erase(cells.begin());
  std::string out = table(header, cells, 1);
  for (const ComparisonResult& s : c.systems)
    if (!s.error.empty()) out += s.name + ": " + s.error + "\n";
  return out;
}

std::string as_chart(const Comparison& c, int reference) {
  std::vector<std::string> names;
  std::vector<bool> strong;
  for (const ComparisonResult& s : c.systems)
    names.push_back(s.name), strong.push_back(s.aft);
  const ComparisonResult* base =
      reference >= 0 ? &c.systems[static_cast<size_t>(reference)] : nullptr;
  std::vector<BarPanel> panels;
  const auto add_panel = [&](const std::string& title,
                             double ComparisonResult::*ours,
                             double ComparisonResult::*paper, int digits = 3) {
    BarPanel out{title, base ? "relative to " + base->name : "", {}, digits};
    const double one = base ? base->*ours : 1,
                 other = base && paper ? base->*paper : 0;
    bool empty = true;
    for (const ComparisonResult& s : c.systems) {
      const auto ratio = [](double x, double y) { return y > 0 ? x / y : 0; };
      const Bar bar{ratio(s.*ours, one), paper ? ratio(s.*paper, other) : 0};
      empty = empty && bar.value == 0 && bar.other == 0;
      out.bars.push_back(bar);
    }
    if (!empty) panels.push_back(std::move(out));
  };
  add_panel(c.rate, &ComparisonResult::rate, &ComparisonResult::paper_rate);
  add_panel(base ? "peak memory" : "peak memory, GB",
            &ComparisonResult::peak_gb, &ComparisonResult::paper_gb);
  base = nullptr;
  add_panel("validation loss, " + c.unit, &ComparisonResult::loss, nullptr,
            kLossDigits);
  return bars(c.title,
              {"AFT, this machine", "other systems, this machine",
               "in the paper, on its GPUs"},
              names, strong, panels);
}

std::string as_page(const Comparison& c, const std::string& chart,
                    const std::string& curves) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<title>" +
      escaped(c.title) +
      "</title>\n<style>body{font:15px/1.5 Helvetica,Arial,sans-serif;"
      "max-width:1400px;margin:2em auto;padding:0 1em;color:#222}"
      "table{border-collapse:collapse}th,td{padding:.3em .8em;text-align:right;"
      "border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:"
      "left}pre{background:#f3f3f3;padding:.5em .8em;white-space:pre-wrap;"
      "overflow-wrap:anywhere}.wide{overflow-x:auto}svg{max-width:100%;"
      "height:auto}</style></head><body>\n<h1>" +
      escaped(c.title) + "</h1>\n<p>" + escaped(c.how) +
      " This command repeats the comparison:</p>\n<pre>" + escaped(c.command) +
      "</pre>\n<div class=\"wide\"><table>\n";
  const char* tag = "th";
  for (const auto& row : rows(c)) out += cells(row, tag), tag = "td";
  out += "</table></div>\n";
  for (const ComparisonResult& s : c.systems)
    if (!s.error.empty())
      out += "<p>" + escaped(s.name + ": " + s.error) + "</p>\n";
  return out + chart + curves + "</body></html>\n";
}

}  // namespace aft::cli
