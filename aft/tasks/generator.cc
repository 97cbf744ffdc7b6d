#include "aft/tasks/generator.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "aft/base/counted.h"
#include "aft/base/escape.h"
#include "aft/io/safetensors.h"
#include "aft/models/weights.h"
#include "aft/tasks/memory_limit.h"

namespace aft::tasks {

double next_random(uint64_t& state) {
  state = base::mix(state, 1);
  return std::ldexp(static_cast<double>(state >> 11), -53);
}

int64_t draw(const torch::Tensor& logits, const Sampling& s, double random) {
  const torch::Tensor x = logits.to(at::kDouble).contiguous();
  const double* value = x.data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(
      s.symbols > 0 ? std::min(s.symbols, x.numel()) : x.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  // The weights or the state have overflowed: any sample would be wrong.
  for (const int64_t i : order)
    TORCH_CHECK(!std::isnan(value[i]) && value[i] < INFINITY,
                "draw: logits must not be NaN or inf, got ", value[i],
                " for symbol ", i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return value[a] > value[b]; });
  if (s.temperature <= 0) return order[0];
  if (s.top_k > 0 && s.top_k < static_cast<int64_t>(order.size()))
    order.resize(static_cast<size_t>(s.top_k));
  std::vector<double> weight;
  double total = 0;
  for (const int64_t i : order) {
    weight.push_back(std::exp((value[i] - value[order[0]]) / s.temperature));
    total += weight.back();
  }
  double kept = 0;  // weight of the most likely symbols within top_p
  size_t n = 0;
  while (n < weight.size() && (n == 0 || kept < s.top_p * total))
    kept += weight[n++];
  double left = random * kept;
  for (size_t i = 0; i < n; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order[n - 1];
}

void Generator::check_prompts(const std::vector<std::vector<int64_t>>& prompts,
                              bool may_be_empty) const {
  TORCH_CHECK(!prompts.empty(), "Generator: expected a prompt, got none");
  for (size_t i = 0; i < prompts.size(); ++i) {
    TORCH_CHECK(may_be_empty || !prompts[i].empty(), "Generator: prompt ", i,
                " is empty");
    for (const int64_t symbol : prompts[i]) {
      TORCH_CHECK(symbol >= 0 && symbol < model_->config.inputs(),
                  "Generator: a symbol of prompt ", i, " must be in [0, ",
                  model_->config.inputs(), "), got ", symbol);
    }
  }
}

models::SequenceModelState Generator::fresh_state() const {
  return within_memory(
      [&] { return model_->start(static_cast<int64_t>(prompts_.size())); }, "",
      "the states of " + base::counted(prompts_.size(), "stream"));
}

Generator::Generator(models::SequenceModel model, const Sampling& sampling,
                     std::vector<std::vector<int64_t>> prompts)
    : model_(std::move(model)),
      sampling_(sampling),
      prompts_(std::move(prompts)),
      seen_(prompts_.size()) {
  check_prompts(prompts_, /*may_be_empty=*/false);
  for (size_t i = 0; i < prompts_.size(); ++i) {
    random_.push_back(base::mix(sampling.seed, sampling.first + i));
    inputs_.push_back(prompts_[i][0]);
  }
  // Not unconditionally: other threads may be using the model.
  if (model_->is_training()) model_->eval();
  state_ = fresh_state();
  time_ = 1;
}

namespace {

std::string name_of(size_t layer, const char* what) {
  return "layers." + std::to_string(layer) + "." + what;
}

/// The non-empty tensors of a state by name. A growing ring is cut to the
/// length in use.
models::NamedTensors tensors_of(const models::SequenceModelState& state,
                                const std::vector<bool>& grows) {
  models::NamedTensors out;
  for (size_t i = 0; i < state.layers.size(); ++i) {
    const ops::Stream& s = state.layers[i];
    const auto add = [&](const char* what, const torch::Tensor& x, bool cut) {
      if (x.defined() && x.numel() > 0)
        out.emplace_back(name_of(i, what),
                         cut ? x.narrow(1, 0, state.position) : x);
    };
    add("sums", s.sums, false);
    add("ring_k", s.ring_k, grows[i]), add("ring_v", s.ring_v, grows[i]);
  }
  return out;
}

/// Which layers keep all previous positions, in rings that grow from empty.
std::vector<bool> growing(const models::SequenceModelState& fresh) {
  std::vector<bool> out;
  for (const ops::Stream& s : fresh.layers) out.push_back(s.grows());
  return out;
}

std::string fingerprint(const models::SequenceModel& model) {
  return models::fingerprint(models::tensors_of(*model));
}

torch::Tensor rows_of(const std::vector<std::vector<int64_t>>& rows) {
  const int64_t B = static_cast<int64_t>(rows.size()),
                n = static_cast<int64_t>(rows[0].size());
  torch::Tensor out = at::empty({B, n}, at::kLong);
  for (int64_t b = 0; b < B; ++b)
    std::copy_n(rows[static_cast<size_t>(b)].data(), n,
                out.data_ptr<int64_t>() + b * n);
  return out;
}

}  // namespace

void Generator::save(const std::string& path) const {
  models::NamedTensors all = tensors_of(state_, growing(model_->start(1)));
  all.emplace_back("seen", rows_of(seen_));
  std::vector<std::vector<int64_t>> random, inputs;
  for (const uint64_t r : random_) random.push_back({static_cast<int64_t>(r)});
  for (const int64_t symbol : inputs_) inputs.push_back({symbol});
  all.emplace_back("random", rows_of(random));
  all.emplace_back("inputs", rows_of(inputs));
  models::save_tensors(path, all,
                       {{"position", std::to_string(state_.position)},
                        {"model", fingerprint(model_)}});
}

Generator::Generator(models::SequenceModel model, const Sampling& sampling,
                     const std::string& path,
                     std::vector<std::vector<int64_t>> prompts)
    : model_(std::move(model)),
      sampling_(sampling),
      prompts_(std::move(prompts)) {
  check_prompts(prompts_, /*may_be_empty=*/true);
  // Not unconditionally: other threads may be using the model.
  if (model_->is_training()) model_->eval();
  const auto& config = model_->config;
  const int64_t B = static_cast<int64_t>(prompts_.size());
  state_ = fresh_state();
  const std::vector<bool> grows = growing(state_);
  int64_t kept = 0;  // symbols in `seen`
  {
    const io::SafeTensors file = io::SafeTensors::open(path);
    const auto at = file.metadata().find("position");
    char* end = nullptr;
    if (at != file.metadata().end())
      state_.position = std::strtoll(at->second.c_str(), &end, 10);
    if (!end || *end != 0 || state_.position < 1 ||
        state_.position > (int64_t{1} << 62) ||
        (config.has_end() && state_.position > config.length)) {
      throw io::Error(path +
                      ": is not a state saved by `aft generate --save-state`: "
                      "expected its position in the metadata, got " +
                      (end ? "'" + base::printable(at->second) + "'" : "none"));
    }
    const auto saved_by = file.metadata().find("model");
    if (saved_by != file.metadata().end() &&
        saved_by->second != fingerprint(model_))
      throw io::Error(
          path +
          ": was saved with other weights, of another model or of "
          "this one after more training: expected the fingerprint " +
          fingerprint(model_) + ", got " + base::printable(saved_by->second));
    // Check the shapes against the file before allocating. A tensor [0, n]
    // occupies no bytes, so its n proves nothing.
    const std::vector<int64_t>& shape = file.at("seen").shape;
    if (shape.size() != 2 || shape[0] != B)
      throw io::Error(path + ": 'seen' must be [B, n] = [" + std::to_string(B) +
                      ", n], got " + c10::str(at::IntArrayRef(shape)));
    kept = shape[1];
    for (size_t i = 0; i < grows.size(); ++i) {
      if (!grows[i]) continue;
      const std::string name = name_of(i, "ring_v");
      const std::vector<int64_t>& ring = file.at(name).shape;
      const std::vector<int64_t> expected = {B, state_.position,
                                             state_.layers[i].ring_v.size(2)};
      if (ring != expected)
        throw io::Error(path + ": '" + name + "' must be " +
                        c10::str(at::IntArrayRef(expected), ", got ",
                                 at::IntArrayRef(ring)));
    }
  }
  for (size_t i = 0; i < grows.size(); ++i) {
    ops::Stream& s = state_.layers[i];
    s.position = state_.position;
    if (!grows[i]) continue;
    for (torch::Tensor* ring : {&s.ring_k, &s.ring_v})
      *ring = at::empty({B, s.position, ring->size(2)}, ring->options());
  }
  const torch::Tensor seen = at::empty({B, kept}, at::kLong),
                      random = at::empty({B, 1}, at::kLong),
                      inputs = at::empty({B, 1}, at::kLong);
  models::NamedTensors all = tensors_of(state_, grows);
  all.emplace_back("seen", seen);
  all.emplace_back("random", random);
  all.emplace_back("inputs", inputs);
  models::load_tensors(path, all);
  const auto check = [&](const char* name, int64_t symbol) {
    if (symbol < 0 || symbol >= config.inputs())
      throw io::Error(path + ": a symbol in '" + name + "' must be in [0, " +
                      std::to_string(config.inputs()) + "), got " +
                      std::to_string(symbol));
  };
  for (int64_t b = 0; b < B; ++b) {
    const int64_t* row = seen.data_ptr<int64_t>() + b * kept;
    seen_.emplace_back(row, row + kept);
    for (const int64_t symbol : seen_.back()) check("seen", symbol);
    inputs_.push_back(inputs.data_ptr<int64_t>()[b]);
    check("inputs", inputs_.back());
    random_.push_back(static_cast<uint64_t>(random.data_ptr<int64_t>()[b]));
  }
  if (config.has_end() && kept != state_.position)
    throw io::Error(path + ": 'seen' must have " +
                    std::to_string(state_.position) +
                    " symbols per stream, got " + std::to_string(kept));
}

torch::Tensor Generator::feed(const std::vector<int64_t>& symbols) {
  const auto& config = model_->config;
  if (config.has_end()) {
    if (state_.position == config.length) {
      // Replay the last half of the symbols from position 0.
      const size_t keep = static_cast<size_t>(config.length / 2);
      state_ = fresh_state();
      for (auto& s : seen_) s.erase(s.begin(), s.end() - keep);
      for (size_t t = 0; t < keep; ++t) {
        std::vector<int64_t> column;
        for (const auto& s : seen_) column.push_back(s[t]);
        model_->step(torch::tensor(column), state_);
      }
    }
    for (size_t i = 0; i < symbols.size(); ++i) seen_[i].push_back(symbols[i]);
  }
  return model_->step(torch::tensor(symbols), state_);
}

std::vector<int64_t> Generator::next() {
  const torch::Tensor logits = feed(inputs_);
  std::vector<int64_t> drawn;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (time_ < prompts_[i].size()) {
      drawn.push_back(-1);
      inputs_[i] = prompts_[i][time_];
      continue;
    }
    drawn.push_back(draw(logits[static_cast<int64_t>(i)], sampling_,
                         next_random(random_[i])));
    inputs_[i] = drawn.back();
  }
  ++time_;
  return drawn;
}

void Generator::prompt(std::vector<std::vector<int64_t>> prompts) {
  TORCH_CHECK(prompts.size() == prompts_.size(), "Generator: expected ",
              prompts_.size(), " prompts, got ", prompts.size());
  for (size_t i = 0; i < prompts_.size(); ++i)
    TORCH_CHECK(unread(i) == 0, "Generator: stream ", i,
                " has not read its prompt");
  check_prompts(prompts, /*may_be_empty=*/true);
  prompts_ = std::move(prompts);
  time_ = 0;
}

int64_t Generator::unread(size_t i) const {
  const size_t size = prompts_[i].size();
  return static_cast<int64_t>(size - std::min(time_, size));
}

}  // namespace aft::tasks
