#include "cli/training_progress.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <utility>

#include "cli/model.h"

namespace aft::cli {

TrainingProgress::TrainingProgress(std::string unit, bool drawn)
    : unit_(std::move(unit)), drawn_(drawn), terminal_(isatty(STDERR_FILENO)) {}

void TrainingProgress::show(const train::Report& r, bool reported) {
  char text[256];
  snprintf(text, sizeof(text), "step %lld/%lld  loss %.4f",
           static_cast<long long>(r.step), static_cast<long long>(r.steps),
           r.loss);
  std::string line = text;
  if (!unit_.empty()) {
    snprintf(text, sizeof(text), "  %s %.4f", unit_.c_str(), r.loss * kBits);
    line += text;
  }
  snprintf(text, sizeof(text), "  %s %s/s  %s left  %.2f GB",
           count(r.tokens_per_second).c_str(),
           unit_.empty() ? "images" : "tokens",
           duration(r.seconds_left).c_str(), resident() / 1e9);
  line += text;
  if (r.validated) line += validation(r);
  if (r.sparsity) line += "  kernels: " + described(*r.sparsity, drawn_);
  if (terminal_) {
    std::cerr << "\r" + line + "\033[K" + (r.validated ? "\n" : "");
    open_ = !r.validated;
  } else if (reported) {
    std::cerr << line + "\n";  // in one write: other ranks share stderr
  }
}

std::string TrainingProgress::validation(const train::Report& r) const {
  char text[128];
  if (!unit_.empty()) {
    snprintf(text, sizeof(text), "  validation %s %.4f (best %.4f)",
             unit_.c_str(), r.validation.loss * kBits, r.best * kBits);
    return text;
  }
  snprintf(text, sizeof(text), "  validation loss %.4f", r.validation.loss);
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
