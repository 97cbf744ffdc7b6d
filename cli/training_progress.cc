#include "cli/training_progress.h"

#include <cstdio>
#include <iostream>
#include <utility>
#include <vector>

#include "cli/model.h"
#include "cli/table.h"

namespace aft::cli {

TrainingProgress::TrainingProgress(std::string unit, bool drawn)
    : unit_(std::move(unit)), drawn_(drawn) {}

void TrainingProgress::show(const train::Report& r, bool reported) {
  const size_t columns = terminal_columns();
  if (columns == 0 && !reported) return;
  const auto value = [](const char* format, double x) {
    char text[64];
    snprintf(text, sizeof(text), format, x);
    return std::string(text);
  };
  std::vector<Field> fields{
      {"step " + std::to_string(r.step) + "/" + std::to_string(r.steps), 9},
      {value("loss %.4f", r.loss), unit_.empty() ? 8 : 4}};
  if (!unit_.empty())
    fields.push_back({unit_ + value(" %.4f", r.loss * kBits), 8});
  fields.push_back(
      {count(r.tokens_per_second) + (unit_.empty() ? " images/s" : " tokens/s"),
       3});
  fields.push_back({duration(r.seconds_left) + " left", 5});
  fields.push_back({value("%.2f GB", resident() / 1e9), 2});
  if (r.validated) fields.push_back({validation(r), 9});
  if (r.sparsity)
    fields.push_back({"kernels: " + described(*r.sparsity, drawn_), 7});
  if (columns > 0 && !r.validated) {
    overwrite_line(fitted(std::move(fields), columns), columns);
    open_ = true;
    return;
  }
  // A line that stays is not shortened, and one write keeps it whole: other
  // ranks share stderr.
  std::cerr << (columns > 0 ? "\r\033[K" : "") + fitted(fields, 0) + "\n";
  open_ = false;
}

std::string TrainingProgress::validation(const train::Report& r) const {
  char text[128];
  if (!unit_.empty()) {
    snprintf(text, sizeof(text), "validation %s %.4f (best %.4f)",
             unit_.c_str(), r.validation.loss * kBits, r.best * kBits);
    return text;
  }
  snprintf(text, sizeof(text), "validation loss %.4f", r.validation.loss);
  std::string line = text;
  for (const auto& [name, share] : r.validation.shares) {
    snprintf(text, sizeof(text), "  %s %.2f %%", name.c_str(), 100 * share);
    line += text;
  }
  return line + (r.validation.score == r.best ? " (best)" : "");
}

void TrainingProgress::close() {
  if (open_) std::cerr << '\n';
  open_ = false;
}

}  // namespace aft::cli
