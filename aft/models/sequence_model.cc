#include "aft/models/sequence_model.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <cmath>

#include "aft/models/checks.h"
#include "aft/ops/common.h"
#include "aft/ops/pointwise.h"

namespace aft::models {

bool SequenceModelConfig::has_end() const {
  return positions || mixer.traits().has_max_len;
}

SequenceModelState SequenceModelState::clone() const {
  SequenceModelState copy = *this;
  for (ops::Stream& s : copy.layers) {
    for (torch::Tensor* x : {&s.sums, &s.ring_k, &s.ring_v})
      if (x->defined()) *x = x->clone();
  }
  return copy;
}

int64_t SequenceModelState::bytes() const {
  int64_t total = 0;
  for (const ops::Stream& s : layers) total += s.bytes();
  return total;
}

SequenceModelImpl::SequenceModelImpl(const SequenceModelConfig& c) : config(c) {
  reset();
}

void SequenceModelImpl::reset() {
  const auto& c = config;
  check_positive({{"layers", c.layers},
                  {"width", c.width},
                  {"length", c.length},
                  {"vocabulary", c.vocabulary},
                  {"mlp", c.mlp}});
  nn::MixerOptions mixer = c.mixer.options();
  mixer.dim = c.width, mixer.max_len = c.length, mixer.columns = c.columns;

  embedding =
      register_module("embedding", torch::nn::Embedding(c.inputs(), c.width));
  positions = torch::Tensor();
  if (c.positions)
    positions = register_parameter("positions", at::empty({c.length, c.width}));
  blocks = make_blocks(*this, c.layers, [&](int64_t) {
    return nn::BlockOptions(mixer).mlp(c.mlp).dropout(c.dropout);
  });
  norm = register_module(
      "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.width})));
  head = register_module(
      "head", torch::nn::Linear(
                  torch::nn::LinearOptions(c.width, c.vocabulary).bias(false)));

  at::NoGradGuard no_grad;
  constexpr double kStd = 0.02;
  const double joining = kStd / std::sqrt(2.0 * static_cast<double>(c.layers));
  for (const auto& m : modules(/*include_self=*/false)) {
    if (auto* linear = m->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kStd);
      if (linear->bias.defined()) linear->bias.zero_();
    }
  }
  embedding->weight.normal_(0, kStd);
  if (positions.defined()) positions.normal_(0, kStd);
  for (const nn::Block& b : blocks) {
    b->fc2->weight.normal_(0, joining);
    torch::Tensor last = b->mixer->last_weight();
    if (last.defined()) last.normal_(0, joining);
  }
}

torch::Tensor SequenceModelImpl::forward(const torch::Tensor& tokens,
                                         uint64_t seed) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
              "SequenceModel: tokens must be int64 [B, T], got ",
              tokens.scalar_type(), " ", ops::shape_of(tokens));
  const int64_t T = tokens.size(1);
  TORCH_CHECK(!config.has_end() || T <= config.length,
              "SequenceModel: a sequence of ", T,
              " is longer than model.length = ", config.length);
  torch::Tensor x = embedding(tokens);
  if (positions.defined()) x = x + positions.narrow(0, 0, T);
  x = run_blocks(blocks, x, is_training() ? config.dropout : 0, seed,
                 recompute_);
  return head(norm(x));
}

SequenceModelState SequenceModelImpl::start(int64_t B) const {
  SequenceModelState state;
  for (const nn::Block& b : blocks) state.layers.push_back(b->mixer->start(B));
  return state;
}

torch::Tensor SequenceModelImpl::step(const torch::Tensor& tokens,
                                      SequenceModelState& state) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(tokens.dim() == 1 && tokens.scalar_type() == at::kLong,
              "SequenceModel: step: tokens must be int64 [B], got ",
              tokens.scalar_type(), " ", ops::shape_of(tokens));
  TORCH_CHECK(state.layers.size() == blocks.size(),
              "SequenceModel: the state must have ", blocks.size(),
              " layers, got ", state.layers.size());
  TORCH_CHECK(!config.has_end() || state.position < config.length,
              "SequenceModel: step at position ", state.position,
              " is beyond model.length = ", config.length);
  torch::Tensor x = embedding(tokens);
  if (positions.defined()) x = x + positions[state.position];
  for (size_t i = 0; i < blocks.size(); ++i)
    x = blocks[i]->step(x, state.layers[i]);
  ++state.position;
  return ops::affine(norm(x), head->weight);
}

}  // namespace aft::models
