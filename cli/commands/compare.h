// What a comparison knows of its systems, and how it shows it.
#pragma once

#include <string>
#include <vector>

#include "aft/models/config.h"

namespace aft::cli {

struct System {
  std::string name;
  models::Json config, paper;  ///< paper: its figures, or null
};

/// Presets, JSON files, and words for lists of presets. Throws UsageError where
/// they are not of one task or one is named twice, ConfigError.
std::vector<System> systems_of(const std::vector<std::string>& words,
                               const std::vector<std::string>& sets);
/// Those words, one a line.
std::string lists_of_systems();
/// Of a preset or a file: no directories.
std::string plain_name(const std::string& what);

/// One row; 0: not known.
struct Outcome {
  std::string name;
  bool aft = false;
  int64_t parameters = 0;
  double loss = 0, top1 = 0;  ///< of validation: the task's unit, and in %
  double rate = 0;            ///< steps or images a second
  double peak_gb = 0;
  /// aft-conv, of the best validation: the entropy of its kernels in nats, and
  /// the share of the top position.
  double kernel_entropy = 0, kernel_top = 0;
  std::string error;  ///< why there are no figures; "": there are
  // The paper's figures of that row.
  double paper_test = 0, paper_rate = 0, paper_gb = 0;
  std::string directory;  ///< of the run; "": none

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
  std::string unit;  ///< of loss: bpc, bits/dim, nats
  std::string rate;  ///< "steps/s", "images/s"
  std::string how;   ///< what was done, in words
  std::string command;
  std::vector<Outcome> systems;
  bool trained = false;
};

/// For a terminal.
std::string as_table(const Comparison& comparison);
/// Speed and memory, and the loss where there is one, as bars; beside those of
/// the paper where it has them, both over those of `reference`, the place of a
/// system; -1: as they are.
std::string as_picture(const Comparison& comparison, int reference);
/// A page that needs nothing else: the table, the picture, the curves.
std::string as_page(const Comparison& comparison, const std::string& picture,
                    const std::string& curves);

}  // namespace aft::cli
