// Generates symbols from a model, one at a time, in several parallel streams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aft/models/sequence_model.h"

namespace aft::tasks {

/// How the next symbol is sampled.
struct Sampling {
  double temperature = 1;  ///< 0: always the most likely symbol
  int64_t top_k = 0;       ///< only the k most likely; 0: all
  double top_p = 1;        ///< only the most likely with total probability p
  int64_t symbols = 0;     ///< only symbols below this; 0: all
  uint64_t seed = 1;
  uint64_t first = 0;  ///< index of the first stream, for its random numbers
};

/// B streams from one model that advance together. Prompts may differ in
/// length: a stream with a short prompt already samples while others still read
/// theirs. A model with a maximum length (positions, full, local) is restarted
/// on the last half of that length when it reaches it, so streams never end.
class Generator {
 public:
  /// Starts streams on prompts of one or more symbols. The output of a stream
  /// does not depend on the other streams, except for rounding. Throws
  /// ConfigError if the states would need more memory than the machine has.
  Generator(models::SequenceModel model, const Sampling& sampling,
            std::vector<std::vector<int64_t>> prompts);
  /// Resumes the generator that wrote `path`: its streams, pending symbols and
  /// random states. sampling.seed is ignored. Prompts, one per stream, may be
  /// empty and are read first. Throws io::Error for a file that another model
  /// wrote.
  Generator(models::SequenceModel model, const Sampling& sampling,
            const std::string& path, std::vector<std::vector<int64_t>> prompts);
  /// Writes everything needed to resume, except unread prompts, as safetensors.
  /// Throws io::Error.
  void save(const std::string& path) const;

  /// Advances by one position: each stream reads a symbol and samples the next.
  /// Returns the sampled symbols, -1 for streams that are still reading their
  /// prompt. The last sampled symbol has not been read by the model yet.
  std::vector<int64_t> next();
  /// Gives each stream a further prompt, which may be empty: it is read after
  /// the last sampled symbol. Throws c10::Error unless all streams have read
  /// their prompts.
  void prompt(std::vector<std::vector<int64_t>> prompts);
  /// How many symbols of its prompt stream i has not been given yet.
  int64_t unread(size_t i) const;
  /// The symbols of the last prompt of stream i.
  int64_t prompt_size(size_t i) const {
    return static_cast<int64_t>(prompts_[i].size());
  }
  const models::SequenceModelState& state() const { return state_; }

 private:
  void check_prompts(const std::vector<std::vector<int64_t>>& prompts,
                     bool may_be_empty) const;
  models::SequenceModelState fresh_state() const;
  torch::Tensor feed(const std::vector<int64_t>& symbols);

  models::SequenceModel model_;
  Sampling sampling_;
  std::vector<std::vector<int64_t>> prompts_,
      seen_;  // seen: kept for a restart
  std::vector<uint64_t> random_;
  models::SequenceModelState state_;
  std::vector<int64_t> inputs_;  // the next input of each stream
  size_t time_ = 0;              // symbols consumed from the prompts
};

/// The next random number of a stream, in [0, 1).
double next_random(uint64_t& state);
/// Samples one symbol from logits [vocabulary] with a random number in [0, 1).
/// Throws c10::Error if a logit is NaN or +inf.
int64_t draw(const torch::Tensor& logits, const Sampling& sampling,
             double random);

}  // namespace aft::tasks
