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

std::string known(double x) { return x > 0 ? number(x) : "-"; }

/// Whether a system is a trained AFT-conv. kernel_top is then above 0.
bool has_kernels(const Comparison& c) {
  return std::any_of(
      c.systems.begin(), c.systems.end(),
      [](const ComparisonResult& s) { return s.kernel_top > 0; });
}

std::vector<std::string> header(const Comparison& c) {
  std::vector<std::string> out{"system", "parameters"};
  if (c.trained) {
    out.push_back(c.unit);
    if (c.unit == "nats") out.emplace_back("top-1 %");
  }
  if (has_kernels(c)) {
    out.emplace_back("kernel entropy");
    out.emplace_back("top position %");
  }
  for (const std::string& name :
       {c.rate, std::string("peak_gb"), std::string("paper: test"), c.rate,
        std::string("gb")})
    out.push_back(name);
  return out;
}

std::vector<std::vector<std::string>> rows(const Comparison& c) {
  std::vector<std::vector<std::string>> out;
  for (const ComparisonResult& s : c.systems) {
    std::vector<std::string> row{
        s.name, s.parameters > 0 ? std::to_string(s.parameters) : "-"};
    if (c.trained) {
      row.push_back(known(s.loss));
      if (c.unit == "nats") row.push_back(known(s.top1));
    }
    if (has_kernels(c)) {
      row.push_back(s.kernel_top > 0 ? number(s.kernel_entropy) : "-");
      row.push_back(known(100 * s.kernel_top));
    }
    for (const double x :
         {s.rate, s.peak_gb, s.paper_test, s.paper_rate, s.paper_gb})
      row.push_back(known(x));
    out.push_back(std::move(row));
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

std::string as_table(const Comparison& c) {
  std::string out = table(header(c), rows(c), 1);
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
  const auto panel = [&](const std::string& title,
                         double ComparisonResult::*ours,
                         double ComparisonResult::*paper) {
    BarPanel out{title + (base ? ", over " + base->name : ""), {}};
    const double one = base ? base->*ours : 1,
                 other = base && paper ? base->*paper : 0;
    for (const ComparisonResult& s : c.systems) {
      const auto ratio = [](double x, double y) { return y > 0 ? x / y : 0; };
      out.bars.push_back(
          {ratio(s.*ours, one), paper ? ratio(s.*paper, other) : 0});
    }
    return out;
  };
  std::vector<BarPanel> panels{
      panel(c.rate, &ComparisonResult::rate, &ComparisonResult::paper_rate),
      panel("peak memory", &ComparisonResult::peak_gb,
            &ComparisonResult::paper_gb)};
  if (c.trained) {
    base = nullptr;
    panels.push_back(panel(c.unit, &ComparisonResult::loss, nullptr));
  }
  return bars(c.title, "this machine (AFT: second colour)",
              reference >= 0 ? "the paper, on its GPUs" : "", names, strong,
              panels);
}

std::string as_page(const Comparison& c, const std::string& chart,
                    const std::string& curves) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<title>" +
      escaped(c.title) +
      "</title>\n<style>body{font:15px/1.5 Helvetica,Arial,sans-serif;"
      "max-width:1180px;margin:2em auto;padding:0 1em;color:#222}"
      "table{border-collapse:collapse}th,td{padding:.3em .8em;text-align:right;"
      "border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:"
      "left}code{background:#f3f3f3;padding:.1em .3em}svg{max-width:100%;"
      "height:auto}</style></head><body>\n<h1>" +
      escaped(c.title) + "</h1>\n<p>" + escaped(c.how) + "</p>\n<p><code>" +
      escaped(c.command) + "</code></p>\n<table>\n" + cells(header(c), "th");
  for (const auto& row : rows(c)) out += cells(row, "td");
  out += "</table>\n";
  for (const ComparisonResult& s : c.systems)
    if (!s.error.empty())
      out += "<p>" + escaped(s.name + ": " + s.error) + "</p>\n";
  return out + chart + curves + "</body></html>\n";
}

}  // namespace aft::cli
