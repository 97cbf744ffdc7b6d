#include "aft/nn/linear_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "aft/nn/heads.h"
#include "aft/nn/prefix_sum_attention.h"
#include "aft/ops/common.h"

namespace aft::nn {
namespace {

constexpr double kEps = 1e-6;  // added to the denominator

/// elu(x) + 1 = e^min(x, 0) + max(x, 0), which does not round small values to
/// 0. The result is contiguous, and all that backward keeps.
struct Phi : torch::autograd::Function<Phi> {
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
    ops::refuse_double_backward("LinearAttention");
    // The derivative is e^x = phi below 0, where phi < 1, and 1 above.
    return {grads[0] * ctx->get_saved_variables()[0].clamp_max(1)};
  }
};

}  // namespace

LinearAttentionImpl::LinearAttentionImpl(const LinearAttentionOptions& o)
    : options(o) {
  reset();
}

void LinearAttentionImpl::reset() {
  check_heads("LinearAttention", options.dim(), options.heads());
  using torch::nn::Linear;
  qkv = register_module("qkv", Linear(options.dim(), 3 * options.dim()));
  out = register_module("out", Linear(options.dim(), options.dim()));
  qkv_ = out_ = PackedLinear();
}

void LinearAttentionImpl::pack_for_inference() {
  qkv_.pack(qkv), out_.pack(out);
}

void LinearAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "LinearAttention(dim=" << options.dim()
         << ", heads=" << options.heads()
         << ", causal=" << (options.causal() ? "true" : "false") << ")";
}

torch::Tensor LinearAttentionImpl::forward(const torch::Tensor& x,
                                           const torch::Tensor& mask) {
  check_sequence("LinearAttention", x, options.dim());
  const int64_t T = x.size(1), d = options.dim() / options.heads(),
                C = chunk_length(T, d, d, options.causal());
  const auto parts = qkv_(qkv, x).chunk(3, 2);
  const auto chunk = [&](int i) {
    return chunks(parts[i], options.heads(), C);
  };
  const torch::Tensor q = Phi::apply(chunk(0));
  torch::Tensor k = Phi::apply(chunk(1));
  if (mask.defined())
    k = k.masked_fill(chunks_of_mask("LinearAttention", mask, x.size(0), T, C),
                      0);
  const torch::Tensor y =
      prefix_attend(q, k, chunk(2), {}, kEps, options.causal());
  return out_(out, unchunk(y, T));
}

ops::Stream LinearAttentionImpl::start(int64_t B) const {
  const int64_t d = options.dim() / options.heads();
  return start_prefix("LinearAttention", options.causal(), /*with_c=*/false,
                      {B, options.heads(), d, d}, qkv->weight.options());
}

torch::Tensor LinearAttentionImpl::step(const torch::Tensor& x,
                                        ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position("LinearAttention", x, options.dim());
  const torch::Tensor now =
      qkv_(qkv, x).view({x.size(0), 3, options.heads(), -1});
  const torch::Tensor qk = Phi::apply(now.narrow(1, 0, 2));
  const torch::Tensor y =
      prefix_step("LinearAttention", stream, qk.select(1, 0), qk.select(1, 1),
                  now.select(1, 2), {}, kEps);
  return out_(out, y.flatten(1));
}

}  // namespace aft::nn
