#include "aft/tasks/language.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>

#include "aft/base/counted.h"

namespace aft::tasks {
namespace {

/// Gathers the windows that begin at `starts`: int64 [count, T].
torch::Tensor gather(data::Bytes text, const std::vector<int64_t>& starts,
                     int64_t T) {
  torch::Tensor out =
      at::empty({static_cast<int64_t>(starts.size()), T}, at::kLong);
  int64_t* to = out.data_ptr<int64_t>();
  for (const int64_t start : starts) {
    for (int64_t t = 0; t < T; ++t) *to++ = text.data[start + t];
  }
  return out;
}

Json complete_language_config(const Json& given) {
  LanguageConfig config;
  config.task = "language";
  base::from_json(given, config);
  try {
    data::TextCodec::from_counts(config.data.mode, {});
  } catch (const data::DataError& e) {
    throw base::ConfigError(e.what());
  }
  const Json out = base::to_json(config);
  base::check_sizes(out["model"]);
  return out;
}

/// Throws DataError if the training part, nine tenths, is too small.
void check_length(const LanguageConfig& config, const data::Text& text) {
  const int64_t least = 2 * config.model.length;
  if (config.model.length < 1 || text.train().size >= least) return;
  const int64_t all = text.split("all").size;
  const std::string unit = config.data.mode == "bytes" ? "byte" : "symbol";
  throw data::DataError(
      (config.data.path.empty() ? "the built-in text" : config.data.path) +
      ": has " + base::counted(all, unit) + ", of which nine tenths, " +
      std::to_string(text.train().size) +
      ", are for training; windows of model.length = " +
      std::to_string(config.model.length) + " need " + std::to_string(least) +
      ": use a text (--data, data.path) of at least " +
      std::to_string((least + 8) / 9 * 10) + " " + unit +
      "s or a smaller model.length");
}

std::unique_ptr<train::Task> make_language_task(Json& json,
                                                const ProgressCallback&) {
  LanguageConfig config = config_as<LanguageConfig>(json);
  auto& data = config.data;
  data::Text text = data::Text::open(data.path, data.mode, data.symbols);
  const std::string found = text.fingerprint();
  check_fingerprint(data.path.empty() ? "the built-in text" : data.path,
                    data.fingerprint, found);
  check_length(config, text);
  if (!data.path.empty()) data.path = absolute(data.path);
  data.symbols = text.codec().symbols(), data.fingerprint = found;
  json = base::to_json(config);
  return std::make_unique<LanguageTask>(config, std::move(text));
}

}  // namespace

TaskKind language_kind() {
  return {"language",
          "bpc",
          "`aft generate DIR` generates text",
          {"mode", "symbols"},
          {"fingerprint", "valid_bytes"},
          /*derived=*/{},
          complete_language_config,
          make_language_task,
          sequence_model};
}

LanguageTask::LanguageTask(const LanguageConfig& config, data::Text text)
    : config_(config),
      text_(std::move(text)),
      windows_(text_.train().size, config.model.length,
               static_cast<uint64_t>(config.train.seed)) {
  TORCH_CHECK(config.model.vocabulary >= text_.codec().vocabulary(),
              "model.vocabulary must be ", text_.codec().vocabulary(),
              " or more for this text, got ", config.model.vocabulary);
  TORCH_CHECK(std::min(text_.valid().size, config.data.valid_bytes) >= 2,
              "validation needs at least 2 symbols, but the text has ",
              text_.valid().size, " for it and data.valid_bytes is ",
              config.data.valid_bytes);
  torch::manual_seed(static_cast<uint64_t>(config.train.seed));
  model_ = models::SequenceModel(config.model);
  model_->recompute(config.train.recompute);
}

torch::Tensor LanguageTask::loss(int64_t first, int64_t count, uint64_t seed) {
  const int64_t T = config_.model.length;
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < count; ++i)
    starts.push_back(windows_.start(first + i));
  const torch::Tensor bytes =
      gather(text_.train(), starts, T + 1).to(device_of(*model_));
  return cross_entropy(model_->forward(bytes.narrow(1, 0, T), seed),
                       bytes.narrow(1, 1, T), /*mean=*/true);
}

train::Validation LanguageTask::validate(int part, int parts) {
  const int64_t T = config_.model.length,
                predictions =
                    std::min(text_.valid().size, config_.data.valid_bytes) - 1,
                windows = (predictions + T - 1) / T,
                begin = windows * part / parts * T,
                end = std::min(windows * (part + 1) / parts * T, predictions);
  if (begin >= end) return {0, 0, {}, 0};
  const data::Bytes text{text_.valid().data + begin, end - begin + 1};
  const double loss = evaluate(model_, text, T, T, config_.train.batch_size);
  return {loss, loss, {}, static_cast<double>(end - begin)};
}

double evaluate(models::SequenceModel model, data::Bytes text, int64_t T,
                int64_t stride, int64_t batch,
                const ProgressCallback& progress) {
  TORCH_CHECK(text.size >= 2, "evaluation needs at least 2 bytes, got ",
              text.size);
  TORCH_CHECK(T >= 1 && stride >= 1 && stride <= T,
              "evaluation needs 1 <= stride <= length, got ", stride, " and ",
              T);
  at::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  const int64_t all = text.size - 1;  // number of predictions
  double total = 0;
  // Window i covers inputs [i stride, i stride + T). Only predictions that no
  // earlier window made are counted.
  std::vector<int64_t> starts;
  int64_t done = 0;
  const auto run = [&] {
    if (starts.empty()) return;
    const int64_t width = std::min(T, all - starts.back());
    const torch::Tensor bytes =
        gather(text, starts, width + 1).to(device_of(*model));
    const torch::Tensor losses =
        cross_entropy(model->forward(bytes.narrow(1, 0, width)),
                      bytes.narrow(1, 1, width), /*mean=*/false)
            .view({-1, width});
    for (size_t i = 0; i < starts.size(); ++i) {
      const int64_t first = std::max<int64_t>(done - starts[i], 0);
      total += losses[static_cast<int64_t>(i)]
                   .narrow(0, first, width - first)
                   .sum(at::kDouble)
                   .item<double>();
      done = starts[i] + width;
    }
    starts.clear();
    if (progress) progress(done, all);
  };
  for (int64_t start = 0; done < all; start += stride) {
    const bool shorter = start + T > all;
    if (shorter) run();  // all windows of a batch have the same length
    if (done >= all) break;
    starts.push_back(start);
    if (shorter || static_cast<int64_t>(starts.size()) == batch ||
        start + T == all)
      run();
  }
  model->train(was_training);
  return total / static_cast<double>(all);
}

}  // namespace aft::tasks
