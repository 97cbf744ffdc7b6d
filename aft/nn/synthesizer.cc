#include "aft/nn/synthesizer.h"

#include <ATen/ATen.h>

#include <limits>

#include "aft/nn/heads.h"
#include "aft/ops/common.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

MixerKind synthesizer_kind() {
  MixerKind kind =
      mixer_kind<SynthesizerImpl>("synthesizer", [](const MixerOptions& o) {
        return SynthesizerOptions(o.dim, 8, o.max_len).causal(o.causal);
      });
  kind.grows = kind.has_max_len = true;
  return kind;
}

void SynthesizerImpl::reset() {
  const int64_t dim = options.dim();
  set_shape({"Synthesizer", dim, options.heads(), options.causal()});
  TORCH_CHECK(options.max_len() >= 1,
              "Synthesizer: max_len must be 1 or more, got ",
              options.max_len());
  hidden = linear("hidden", dim);
  logits = register_module("logits",
                           torch::nn::Linear(head_dim(), options.max_len()));
  value = linear("value", dim);
  out = linear("out", dim);
}

void SynthesizerImpl::pack_for_inference() {
  // The logits are not packed, because T selects their rows.
  hidden.pack(), value.pack(), out.pack();
}

std::string SynthesizerImpl::details() const {
  return detail("max_len", options.max_len());
}

torch::Tensor SynthesizerImpl::first_logits(const torch::Tensor& rows,
                                            int64_t n) const {
  return ops::affine(rows, logits->weight.narrow(0, 0, n),
                     logits->bias.narrow(0, 0, n));
}

torch::Tensor SynthesizerImpl::forward(const torch::Tensor& x,
                                       const torch::Tensor& mask) {
  check_sequence(x);
  const int64_t B = x.size(0), T = x.size(1);
  TORCH_CHECK(T <= options.max_len(), "Synthesizer: a sequence of ", T,
              " positions is longer than max_len = ", options.max_len());
  check_mask(mask, x);
  const torch::Tensor hidden_keys =
      masked_keys(T, options.causal(), mask, x.device());
  const torch::Tensor rows = split_heads(at::relu(hidden(x)), options.heads())
                                 .reshape({-1, head_dim()});
  torch::Tensor weights =
      first_logits(rows, T).view({B, options.heads(), T, T});
  if (hidden_keys.defined())
    weights.masked_fill_(hidden_keys, -std::numeric_limits<double>::infinity());
  weights = weights.softmax(-1);
  // With padding, all keys of a row may be masked.
  if (mask.defined()) weights = weights.masked_fill(hidden_keys, 0);
  return out(
      join_heads(at::matmul(weights, split_heads(value(x), options.heads()))));
}

ops::Stream SynthesizerImpl::start(int64_t B) const {
  return start_cache(B, 0, options.dim());
}

torch::Tensor SynthesizerImpl::step(const torch::Tensor& x,
                                    ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position(x);
  TORCH_CHECK(stream.position < options.max_len(),
              "Synthesizer: step at position ", stream.position,
              " is beyond max_len = ", options.max_len());
  const int64_t B = x.size(0), heads = options.heads();
  const torch::Tensor now = ops::full_precision(value(x));
  check_fits(shape_.name, stream, now);
  remember(stream, x.narrow(1, 0, 0), now);
  const int64_t seen = stream.position;
  const torch::Tensor rows = at::relu(hidden(x));
  const torch::Tensor weights =
      first_logits(rows.view({B * heads, -1}), seen).softmax(-1);
  const torch::Tensor y =
      at::matmul(weights.view({B, heads, 1, seen}),
                 split_heads(stream.ring_v.narrow(1, 0, seen), heads));
  return out(y.reshape({B, options.dim()}));
}

}  // namespace aft::nn
