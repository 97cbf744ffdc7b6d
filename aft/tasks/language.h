// Byte-level language modelling: configuration, training and evaluation.
#pragma once

#include <cstdint>
#include <string>

#include "aft/data/text.h"
#include "aft/tasks/task.h"

namespace aft::tasks {

struct TextConfig {
  std::string path;            ///< a file; "": the built-in text
  std::string mode = "bytes";  ///< see data::Text: bytes, txl or eos
  int64_t valid_bytes =
      100000;               ///< bytes of the validation part used in training
  std::string symbols;      ///< set by a run: data::TextCodec::symbols()
  std::string fingerprint;  ///< set by a run: data::Text::fingerprint()

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("path", s.path), f("mode", s.mode), f("valid_bytes", s.valid_bytes);
    f("symbols", s.symbols), f("fingerprint", s.fingerprint);
  }
};

using LanguageConfig = RunConfig<models::SequenceModelConfig, TextConfig>;

TaskKind language_kind();

/// Trains a model on a text.
class LanguageTask : public train::Task {
 public:
  /// The initial weights are drawn with config.train.seed. Throws
  /// data::DataError, c10::Error.
  LanguageTask(const LanguageConfig& config, data::Text text);
  torch::nn::Module& model() override { return *model_; }
  torch::Tensor loss(int64_t first, int64_t count, uint64_t seed) override;
  using train::Task::validate;
  train::Validation validate(int part, int parts) override;
  int64_t tokens() const override { return config_.model.length; }

 private:
  LanguageConfig config_;
  data::Text text_;
  data::Windows windows_;
  models::SequenceModel model_{nullptr};
};

/// The mean loss of a text in nats per byte. Each byte is predicted once, from
/// the preceding bytes of a window of T bytes; windows start `stride` apart.
/// With stride = T they do not overlap; a smaller stride gives every byte
/// except the first ones at least T - stride bytes of context.
double evaluate(models::SequenceModel model, data::Bytes text, int64_t T,
                int64_t stride, int64_t batch,
                const ProgressCallback& progress = {});

}  // namespace aft::tasks
