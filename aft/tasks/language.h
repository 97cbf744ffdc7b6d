// Byte language modelling: what a run is, training it, measuring it.
#pragma once

#include <cstdint>
#include <string>

#include "aft/tasks/task.h"
#include "aft/tasks/text.h"

namespace aft::tasks {

struct TextConfig {
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

using LanguageConfig = RunConfig<models::SequenceModelConfig, TextConfig>;

TaskKind language_kind();

/// Training a model on a text.
class LanguageTask : public train::Task {
 public:
  /// The model's first weights come from config.train.seed. Throws DataError,
  /// c10::Error.
  LanguageTask(const LanguageConfig& config, Text text);
  torch::nn::Module& model() override { return *model_; }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) override;
  using train::Task::validate;
  train::Validation validate(int part, int parts) override;
  int64_t tokens() const override { return config_.model.length; }

 private:
  LanguageConfig config_;
  Text text_;
  Windows windows_;
  models::SequenceModel model_{nullptr};
};

/// The mean loss of a text in nats a byte, each byte predicted once, from what
/// came before it in windows of T bytes, `stride` apart: stride = T does not
/// overlap, a smaller one gives every byte but the first ones at least T -
/// stride bytes of context.
double evaluate(models::SequenceModel model, Bytes text, int64_t T,
                int64_t stride, int64_t batch, const Progress& progress = {});

}  // namespace aft::tasks
