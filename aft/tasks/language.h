// Byte language modelling: what a run is (config.json), training it, measuring
// it, and generating from it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aft/models/config.h"
#include "aft/models/language_model.h"
#include "aft/tasks/text.h"
#include "aft/train/trainer.h"

namespace aft::tasks {

struct DataConfig {
  std::string path;              ///< a file; "": the built-in text
  std::string mode = "bytes";    ///< Text: bytes, txl or eos
  int64_t valid_bytes = 100000;  ///< of the validation part, used in training
  std::string symbols;           ///< of a trained model: Text::symbols()
  std::string fingerprint;       ///< of a run: Text::fingerprint()

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("path", s.path), f("mode", s.mode), f("valid_bytes", s.valid_bytes);
    f("symbols", s.symbols), f("fingerprint", s.fingerprint);
  }
};

/// config.json, and a preset.
struct LanguageConfig {
  std::string task = "language";
  models::LanguageModelConfig model;
  DataConfig data;
  train::TrainConfig train;

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("task", s.task), f("model", s.model), f("data", s.data);
    f("train", s.train);
  }
};

/// Training a model on a text.
class LanguageTask : public train::Task {
 public:
  /// The model's first weights come from config.train.seed. Throws DataError,
  /// c10::Error.
  LanguageTask(const LanguageConfig& config, Text text);
  torch::nn::Module& model() override { return *model_; }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) override;
  double validate() override;
  int64_t tokens() const override { return config_.model.length; }
  models::LanguageModel language_model() const { return model_; }

 private:
  LanguageConfig config_;
  Text text_;
  Windows windows_;
  models::LanguageModel model_{nullptr};
};

/// The mean loss of a text in nats a byte, each byte predicted once, from what
/// came before it in windows of T bytes, `stride` apart: stride = T does not
/// overlap, a smaller one gives every byte but the first ones at least T -
/// stride bytes of context. progress(done, all) may be empty.
double evaluate(models::LanguageModel model, Bytes text, int64_t T,
                int64_t stride, int64_t batch,
                const std::function<void(int64_t, int64_t)>& progress = {});

/// How the next byte is drawn.
struct Sampling {
  double temperature = 1;  ///< 0: the likeliest
  int64_t top_k = 0;       ///< only the k likeliest; 0: all
  double top_p = 1;        ///< only the likeliest that sum to p
  int64_t symbols = 0;     ///< only symbols below it; 0: the whole vocabulary
  uint64_t seed = 1;
};

/// B streams from one model, in step with each other: while the prompt of one
/// still feeds it, a shorter one is already drawing. A model with an end
/// (positions, full, local) starts again on the last half of its length when it
/// gets there, so streams never end.
class Generator {
 public:
  /// Prompts of symbols, one or more each. A stream draws the same whatever the
  /// others do, but for rounding.
  Generator(models::LanguageModel model, const Sampling& sampling,
            std::vector<std::vector<int64_t>> prompts);
  /// Goes on where the generator that wrote `path` stood: the streams, what
  /// they are about to draw and their random numbers are its own; of `sampling`
  /// the seed has no effect. Prompts, one a stream, may be empty, and are fed
  /// first. Throws io::Error for a file that does not fit the model.
  Generator(models::LanguageModel model, const Sampling& sampling,
            const std::string& path, std::vector<std::vector<int64_t>> prompts);
  /// Writes all that it takes to go on, as safetensors. Throws io::Error.
  void save(const std::string& path) const;

  /// One position: what each stream drew, -1 where it was still fed.
  std::vector<int64_t> next();
  const models::LanguageModelState& state() const { return state_; }

 private:
  void check_prompts(bool may_be_empty) const;
  torch::Tensor feed(const std::vector<int64_t>& symbols);

  models::LanguageModel model_;
  Sampling sampling_;
  std::vector<std::vector<int64_t>> prompts_, seen_;  // seen: for a new start
  std::vector<uint64_t> random_;
  models::LanguageModelState state_;
  torch::Tensor logits_;  // [B, vocabulary]
  size_t time_ = 0;
};

/// One symbol from logits [vocabulary]; random in [0, 1).
int64_t draw(const torch::Tensor& logits, const Sampling& sampling,
             double random);

/// A model directory: config.json and model.safetensors. Throws ConfigError,
/// io::Error, c10::Error.
LanguageConfig load_config(const std::string& directory);
models::LanguageModel load_model(const std::string& directory,
                                 const LanguageConfig& config);

}  // namespace aft::tasks
