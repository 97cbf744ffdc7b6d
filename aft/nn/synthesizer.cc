#include "aft/nn/synthesizer.h"

#include <ATen/ATen.h>

#include <limits>

#include "aft/nn/heads.h"
#include "aft/ops/common.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {

SynthesizerImpl::SynthesizerImpl(const SynthesizerOptions& o) : options(o) {
  reset();
}

void SynthesizerImpl::reset() {
  const int64_t dim = options.dim();
  check_heads("Synthesizer", dim, options.heads());
  TORCH_CHECK(options.max_len() >= 1,
              "Synthesizer: max_len must be 1 or more, got ",
              options.max_len());
  using torch::nn::Linear;
  hidden = register_module("hidden", Linear(dim, dim));
  logits = register_module("logits",
                           Linear(dim / options.heads(), options.max_len()));
  value = register_module("value", Linear(dim, dim));
  out = register_module("out", Linear(dim, dim));
  hidden_ = value_ = out_ = PackedLinear();
}

void SynthesizerImpl::pack_for_inference() {
  // The logits are not packed, because T selects their rows.
  hidden_.pack(hidden), value_.pack(value), out_.pack(out);
}

void SynthesizerImpl::pretty_print(std::ostream& stream) const {
  stream << "Synthesizer(dim=" << options.dim() << ", heads=" << options.heads()
         << ", max_len=" << options.max_len()
         << ", causal=" << (options.causal() ? "true" : "false") << ")";
}

torch::Tensor SynthesizerImpl::first_logits(const torch::Tensor& rows,
                                            int64_t n) const {
  return ops::affine(rows, logits->weight.narrow(0, 0, n),
                     logits->bias.narrow(0, 0, n));
}

torch::Tensor SynthesizerImpl::forward(const torch::Tensor& x,
                                       const torch::Tensor& mask) {
  check_sequence("Synthesizer", x, options.dim());
  const int64_t B = x.size(0), T = x.size(1);
  TORCH_CHECK(T <= options.max_len(), "Synthesizer: a sequence of ", T,
              " positions is longer than max_len = ", options.max_len());
  torch::Tensor unseen;  // bool, true: masked
  if (options.causal())
    unseen = at::ones({T, T}, x.options().dtype(at::kBool)).triu_(1);
  if (mask.defined()) {
    TORCH_CHECK(mask.dim() == 2 && mask.size(0) == B && mask.size(1) == T &&
                    mask.scalar_type() == at::kBool,
                "Synthesizer: mask must be bool [B, T] = [", B, ", ", T,
                "], got ", mask.scalar_type(), " ", ops::shape_of(mask));
    const torch::Tensor padded = mask.view({B, 1, 1, T});
    unseen = unseen.defined() ? at::logical_or(unseen, padded) : padded;
  }
  const torch::Tensor rows =
      split_heads(at::relu(hidden_(hidden, x)), options.heads())
          .reshape({-1, options.dim() / options.heads()});
  torch::Tensor weights =
      first_logits(rows, T).view({B, options.heads(), T, T});
  if (unseen.defined())
    weights.masked_fill_(unseen, -std::numeric_limits<double>::infinity());
  weights = weights.softmax(-1);
  // If all keys of a row are padded, it sees none.
  if (mask.defined()) weights = weights.masked_fill(unseen, 0);
  return out_(out,
              join_heads(at::matmul(
                  weights, split_heads(value_(value, x), options.heads()))));
}

ops::Stream SynthesizerImpl::start(int64_t B) const {
  return start_cache("Synthesizer", options.causal(), B, 0, options.dim(),
                     logits->weight.options());
}

torch::Tensor SynthesizerImpl::step(const torch::Tensor& x,
                                    ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position("Synthesizer", x, options.dim());
  TORCH_CHECK(stream.position < options.max_len(),
              "Synthesizer: step at position ", stream.position,
              " is beyond max_len = ", options.max_len());
  const int64_t B = x.size(0), heads = options.heads();
  remember(stream, x.narrow(1, 0, 0), value_(value, x));
  const int64_t seen = stream.position;
  const torch::Tensor rows = at::relu(hidden_(hidden, x));
  const torch::Tensor weights =
      first_logits(rows.view({B * heads, -1}), seen).softmax(-1);
  const torch::Tensor y =
      at::matmul(weights.view({B, heads, 1, seen}),
                 split_heads(stream.ring_v.narrow(1, 0, seen), heads));
  return out_(out, y.reshape({B, options.dim()}));
}

}  // namespace aft::nn
