// aft::simple: w = 0.
#include <ATen/ATen.h>

#include "aft/kernels/kernels.h"
#include "aft/ops/common.h"
#include "aft/ops/composite.h"
#include "aft/ops/function.h"
#include "aft/ops/ops.h"

namespace aft::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

composite::Bias no_bias() {
  composite::Bias bias;
  bias.window = 0;
  return bias;
}

struct Simple {
  static constexpr char kName[] = "aft::simple";

  static at::Tensor forward(AutogradContext* ctx, const OptionalTensor& q_,
                            const at::Tensor& k, const at::Tensor& v,
                            const OptionalTensor& padded_, int64_t Tq,
                            bool causal, bool use_kernels, bool record) {
    const at::Tensor q = value(q_), padded = value(padded_);
    ctx->saved_data["Tq"] = Tq;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["use_kernels"] = use_kernels;
    if (!use_kernels) {
      const composite::Reduced out =
          composite::forward(k, v, padded, no_bias(), Tq, causal);
      ctx->save_for_backward({q, k, v, padded, out.r, out.lse});
      return out.r;
    }
    at::Tensor y = at::empty({k.size(0), Tq, v.size(2)}, v.options()), states;
    if (record && causal) {
      states = at::empty({k.size(0), kernels::simple_states(Tq), 3, v.size(2)},
                         v.options());
    }
    ctx->save_for_backward({q, k, v, padded, states});
    AT_DISPATCH_FLOATING_TYPES(k.scalar_type(), "aft::simple", [&] {
      kernels::run_simple(at_exec(y),
                          problem<scalar_t>(q, k, v, padded, Tq, causal),
                          y.data_ptr<scalar_t>(), data<scalar_t>(states));
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2],
                     &padded = saved[3];
    const at::Tensor dy = grads[0].contiguous();
    const int64_t Tq = ctx->saved_data["Tq"].toInt();
    const bool causal = ctx->saved_data["causal"].toBool();
    const auto wanted = needed(ctx, {q, k, v});
    at::Tensor dq, dk, dv;
    if (ctx->saved_data["use_kernels"].toBool()) {
      // The kernels always compute all three.
      if (q.defined()) dq = at::empty_like(q);
      dk = at::empty_like(k), dv = at::empty_like(v);
      AT_DISPATCH_FLOATING_TYPES(k.scalar_type(), "aft::simple", [&] {
        kernels::run_simple_backward<scalar_t>(
            at_exec(dy), problem<scalar_t>(q, k, v, padded, Tq, causal),
            dy.data_ptr<scalar_t>(), data<scalar_t>(saved[4]),
            {data<scalar_t>(dq), dk.data_ptr<scalar_t>(),
             dv.data_ptr<scalar_t>()});
      });
    } else {
      const auto g =
          composite::backward(dy, k, v, padded, no_bias(), causal, saved[4],
                              saved[5], {wanted[1], wanted[2]});
      dk = g.dk, dv = g.dv;
    }
    const at::Tensor none;
    return {wanted[0] ? dq : none,
            wanted[1] ? dk : none,
            wanted[2] ? dv : none,
            none,
            none,
            none,
            none,
            none};
  }
};

}  // namespace

at::Tensor simple(const OptionalTensor& q, const at::Tensor& k,
                  const at::Tensor& v, const Common& common) {
  const Checked c = check("simple", q, k, v, common);
  const at::Tensor fused_q = c.fused_q();
  return c.finish(OnceDifferentiable<Simple>::apply(
      maybe(fused_q), c.k, c.v, maybe(c.padded), c.Tq, c.causal,
      c.use_kernels(), records({fused_q, c.k, c.v})));
}

}  // namespace aft::ops
