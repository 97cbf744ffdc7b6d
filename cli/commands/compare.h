// The systems of a comparison, their results, and the reports made from them.
#pragma once

#include <string>
#include <vector>

#include "aft/base/config.h"

namespace aft::cli {

struct ComparedSystem {
  std::string name;
  base::Json config, paper;  ///< paper: the paper's figures, or null
};

/// Resolves presets, JSON files, directories and names of tables to systems.
/// Throws UsageError if they belong to different tasks or one is named twice,
/// and ConfigError.
std::vector<ComparedSystem> compared_systems(
    const std::vector<std::string>& words,
    const std::vector<std::string>& sets);
/// Describes the tables, one per line.
std::string tables_of_systems();
/// The name of a preset or file without its directories.
std::string base_name(const std::string& what);

/// The results of one system. 0: unknown.
struct ComparisonResult {
  std::string name;
  bool aft = false;
  int64_t parameters = 0;
  double loss = 0, top1 = 0;  ///< on validation data: in the task's unit; in %
  double rate = 0;            ///< steps or images per second
  double peak_gb = 0;
  /// aft-conv, at the best validation: the entropy of its kernels in nats and
  /// the share of the top position.
  double kernel_entropy = 0, kernel_top = 0;
  std::string error;  ///< why the measurement failed; empty on success
  // The paper's figures for this system.
  double paper_test = 0, paper_rate = 0, paper_gb = 0;
  std::string directory;  ///< the run directory; empty if none

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("name", s.name), f("aft", s.aft), f("parameters", s.parameters);
    f("loss", s.loss), f("top1", s.top1), f("rate", s.rate);
    f("peak_gb", s.peak_gb), f("error", s.error);
    f("kernel_entropy", s.kernel_entropy), f("kernel_top", s.kernel_top);
    f("paper_test", s.paper_test), f("paper_rate", s.paper_rate);
    f("paper_gb", s.paper_gb), f("directory", s.directory);
  }
};

struct Comparison {
  std::string title;
  std::string unit;     ///< unit of the loss: bpc, bits/dim or nats
  std::string rate;     ///< unit of the rate: "steps/s" or "images/s"
  std::string how;      ///< describes the procedure
  std::string command;  ///< repeats the comparison
  std::vector<ComparisonResult> systems;
  bool trained = false;
};

/// Quotes a word for the shell if necessary.
std::string shell_quoted(const std::string& word);
/// A table for the terminal, without columns that have no values.
std::string as_table(const Comparison& comparison);
/// A bar chart (SVG) of speed, memory and, if known, loss, next to the paper's
/// figures if it has them. `reference` is the index of the system that both are
/// divided by; -1: absolute values.
std::string as_chart(const Comparison& comparison, int reference);
/// A self-contained HTML page with the table, the bar chart and the training
/// curves.
std::string as_page(const Comparison& comparison, const std::string& chart,
                    const std::string& curves);

}  // namespace aft::cli
