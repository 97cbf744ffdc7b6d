// Symbols from a model, one after the other: streams that read and draw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/models/sequence_model.h"

namespace aft::tasks {

/// How the next symbol is drawn.
struct Sampling {
  double temperature = 1;  ///< 0: the likeliest
  int64_t top_k = 0;       ///< only the k likeliest; 0: all
  double top_p = 1;        ///< only the likeliest that sum to p
  int64_t symbols = 0;     ///< only symbols below it; 0: the whole vocabulary
  uint64_t seed = 1;
  uint64_t first = 0;  ///< number of the first stream, for its random numbers
};

/// B streams from one model, in step with each other: while the prompt of one
/// still feeds it, a shorter one is already drawing. A model with an end
/// (positions, full, local) starts again on the last half of its length when it
/// gets there, so streams never end.
class Generator {
 public:
  /// Prompts of symbols, one or more each. A stream draws the same whatever the
  /// others do, but for rounding. Throws ConfigError where their states would
  /// take more memory than the machine has.
  Generator(models::SequenceModel model, const Sampling& sampling,
            std::vector<std::vector<int64_t>> prompts);
  /// Goes on where the generator that wrote `path` stood: the streams, what
  /// they are about to draw and their random numbers are its own; of `sampling`
  /// the seed has no effect. Prompts, one a stream, may be empty, and are fed
  /// first. Throws io::Error for a file that does not fit the model.
  Generator(models::SequenceModel model, const Sampling& sampling,
            const std::string& path, std::vector<std::vector<int64_t>> prompts);
  /// Writes all that it takes to go on, as safetensors. Throws io::Error.
  void save(const std::string& path) const;

  /// One position: each stream reads a symbol and draws the next. Returns what
  /// was drawn, -1 where a prompt goes on. What is drawn last has not been
  /// read.
  std::vector<int64_t> next();
  const models::SequenceModelState& state() const { return state_; }

 private:
  void check_prompts(bool may_be_empty) const;
  models::SequenceModelState fresh_state() const;
  torch::Tensor feed(const std::vector<int64_t>& symbols);

  models::SequenceModel model_;
  Sampling sampling_;
  std::vector<std::vector<int64_t>> prompts_, seen_;  // seen: for a new start
  std::vector<uint64_t> random_;
  models::SequenceModelState state_;
  std::vector<int64_t> inputs_;  // what each stream reads next
  size_t time_ = 0;              // symbols taken from the prompts
};

/// The next random number in [0, 1) of a stream.
double next_random(uint64_t& state);
/// One symbol from logits [vocabulary]; random in [0, 1). Throws c10::Error for
/// logits that are NaN or +inf.
int64_t draw(const torch::Tensor& logits, const Sampling& sampling,
             double random);

}  // namespace aft::tasks
