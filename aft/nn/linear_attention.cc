#include "aft/nn/linear_attention.h"

#include <ATen/ATen.h>

#include "aft/nn/heads.h"
#include "aft/nn/prefix_sum_attention.h"
#include "aft/ops/common.h"
#include "aft/ops/function.h"

namespace aft::nn {
namespace {

constexpr double kEps = 1e-6;  // added to the denominator

/// elu(x) + 1 = e^min(x, 0) + max(x, 0), which does not round small values to
/// 0. The result is contiguous, and all that backward keeps.
struct Phi {
  static constexpr char kName[] = "LinearAttention";

  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x) {
    at::Tensor y = at::empty(x.sizes(), x.options());
    at::clamp_max_out(y, x, 0).exp_();
    y.add_(x.clamp_min(0));
    ctx->save_for_backward({y});
    return y;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    // The derivative is e^x = phi below 0, where phi < 1, and 1 above.
    return {grads[0] * ctx->get_saved_variables()[0].clamp_max(1)};
  }
};

}  // namespace

MixerKind linear_attention_kind() {
  return mixer_kind<LinearAttentionImpl>(
      "linear-attention", [](const MixerOptions& o) {
        return LinearAttentionOptions(o.dim, 8).causal(o.causal);
      });
}

void LinearAttentionImpl::reset() {
  make_layers(
      {"LinearAttention", options.dim(), options.heads(), options.causal()});
}

torch::Tensor LinearAttentionImpl::forward(const torch::Tensor& x,
                                           const torch::Tensor& mask) {
  check_sequence(x);
  check_mask(mask, x);
  const int64_t T = x.size(1), d = head_dim(),
                C = chunk_length(T, d, d, options.causal());
  const auto parts = project(x);
  const auto chunk = [&](int i) {
    return chunks(parts[i], options.heads(), C);
  };
  const torch::Tensor q = ops::OnceDifferentiable<Phi>::apply(chunk(0));
  torch::Tensor k = ops::OnceDifferentiable<Phi>::apply(chunk(1));
  if (mask.defined()) k = k.masked_fill(chunks(mask.unsqueeze(2), 1, C), 0);
  const torch::Tensor y =
      prefix_attend(q, k, chunk(2), {}, kEps, options.causal());
  return out(unchunk(y, T));
}

ops::Stream LinearAttentionImpl::start(int64_t B) const {
  check_stream(B);
  return start_prefix(/*with_c=*/false,
                      {B, options.heads(), head_dim(), head_dim()},
                      qkv->weight.options());
}

torch::Tensor LinearAttentionImpl::step(const torch::Tensor& x,
                                        ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position(x);
  const torch::Tensor now =
      ops::full_precision(qkv(x)).view({x.size(0), 3, options.heads(), -1});
  const torch::Tensor qk =
      ops::OnceDifferentiable<Phi>::apply(now.narrow(1, 0, 2));
  const torch::Tensor y =
      prefix_step("LinearAttention", stream, qk.select(1, 0), qk.select(1, 1),
                  now.select(1, 2), {}, kEps);
  return out(y.flatten(1));
}

}  // namespace aft::nn
