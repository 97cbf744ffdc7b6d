// aft::conv: biases of the relative position on a grid, per head.
#include <ATen/ATen.h>

#include "aft/ops/common.h"
#include "aft/ops/composite.h"
#include "aft/ops/function.h"
#include "aft/ops/ops.h"

namespace aft::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
kernels::ConvBias<T> conv_bias(const at::Tensor& w,
                               const std::vector<int64_t>& grid,
                               bool window_only, T* dw) {
  kernels::ConvBias<T> bias{
      {1, 1, 1}, {1, 1, 1}, window_only, w.data_ptr<T>(), dw};
  const size_t first = 3 - grid.size();
  for (size_t i = 0; i < grid.size(); ++i) {
    bias.grid[first + i] = grid[i];
    bias.kernel[first + i] = w.size(static_cast<int64_t>(i) + 1);
  }
  return bias;
}

struct Conv {
  static constexpr char kName[] = "aft::conv";

  static at::Tensor forward(AutogradContext* ctx, const OptionalTensor& q_,
                            const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& w, const OptionalTensor& padded_,
                            std::vector<int64_t> grid, bool window_only,
                            bool causal, bool use_kernels, bool record) {
    const at::Tensor q = value(q_), padded = value(padded_);
    ctx->saved_data["grid"] = grid;
    ctx->saved_data["window_only"] = window_only;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["use_kernels"] = use_kernels;
    const int64_t T = k.size(1);
    if (!use_kernels) {
      const auto out = composite::forward(
          k, v, padded, {{}, {}, w, -1, window_only, grid}, T, causal);
      ctx->save_for_backward({q, k, v, w, padded, out.r, out.lse});
      return out.r;
    }
    at::Tensor y = at::empty_like(v), r, den, unsafe;
    if (record) {
      r = q.defined() ? at::empty_like(v) : y;
      den = at::empty_like(k);
      unsafe = at::empty({v.size(0), v.size(2)}, v.options().dtype(at::kByte));
    }
    AT_DISPATCH_FLOATING_TYPES(k.scalar_type(), "aft::conv", [&] {
      kernels::run_conv<scalar_t>(
          at_exec(y), problem<scalar_t>(q, k, v, padded, T, causal),
          conv_bias<scalar_t>(w, grid, window_only, nullptr),
          y.data_ptr<scalar_t>(),
          {q.defined() ? data<scalar_t>(r) : nullptr, data<scalar_t>(den),
           data<uint8_t>(unsafe)});
    });
    ctx->save_for_backward({q, k, v, w, padded, r, den, unsafe});
    return y;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    const at::Tensor &q = s[0], &k = s[1], &v = s[2], &w = s[3], &padded = s[4];
    const at::Tensor dy = grads[0].contiguous();
    const auto grid = ctx->saved_data["grid"].toIntVector();
    const bool window_only = ctx->saved_data["window_only"].toBool(),
               causal = ctx->saved_data["causal"].toBool();
    const auto wanted = needed(ctx, {q, k, v, w});
    at::Tensor dq, dk, dv, dw;
    if (ctx->saved_data["use_kernels"].toBool()) {
      // The kernels always compute dq, dk and dv.
      if (q.defined()) dq = at::empty_like(q);
      dk = at::empty_like(k), dv = at::empty_like(v);
      if (wanted[3]) dw = at::empty_like(w);
      AT_DISPATCH_FLOATING_TYPES(k.scalar_type(), "aft::conv", [&] {
        kernels::run_conv_backward<scalar_t>(
            at_exec(dy), problem<scalar_t>(q, k, v, padded, k.size(1), causal),
            conv_bias<scalar_t>(w, grid, window_only, data<scalar_t>(dw)),
            dy.data_ptr<scalar_t>(),
            {s[5].data_ptr<scalar_t>(), s[6].data_ptr<scalar_t>(),
             s[7].data_ptr<uint8_t>()},
            {data<scalar_t>(dq), dk.data_ptr<scalar_t>(),
             dv.data_ptr<scalar_t>()});
      });
    } else {
      const auto g = composite::backward(
          dy, k, v, padded, {{}, {}, w, -1, window_only, grid}, causal, s[5],
          s[6], {wanted[1], wanted[2], wanted[3]});
      dk = g.dk, dv = g.dv, dw = g.dw;
    }
    const at::Tensor none;
    return {wanted[0] ? dq : none,
            wanted[1] ? dk : none,
            wanted[2] ? dv : none,
            dw,
            none,
            none,
            none,
            none,
            none,
            none};
  }
};

}  // namespace

at::Tensor conv(const OptionalTensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& w,
                const std::vector<int64_t>& grid, bool window_only,
                const Common& common) {
  const Checked c = check("conv", q, k, v, common, true);
  c.check_grid(grid);
  const int64_t dims = static_cast<int64_t>(grid.size());
  TORCH_CHECK(w.defined() && w.dim() == dims + 1 && w.size(0) == c.H,
              "aft::conv: w must be [H, kernel...] = [", c.H, ", ", dims,
              " kernel sizes] for k ", shape_of(k), " and a grid of ", dims,
              " sizes, got ", w.defined() ? shape_of(w) : "nothing");
  for (int64_t i = 1; i <= dims; ++i) {
    TORCH_CHECK(w.size(i) >= 1,
                "aft::conv: kernel sizes must be 1 or more, got w ",
                shape_of(w));
    TORCH_CHECK(c.causal || w.size(i) % 2 == 1,
                "aft::conv: kernel sizes must be odd, to have a centre, got ",
                w.size(i), " in w ", shape_of(w));
  }
  std::vector<int64_t> any(dims + 1, -1);
  const at::Tensor parameter = c.parameter("w", w, any, "[H, kernel...]");
  const at::Tensor gate = c.fused_q();
  return c.finish(OnceDifferentiable<Conv>::apply(
      maybe(gate), c.k, c.v, parameter, maybe(c.padded), grid, window_only,
      c.causal, c.use_kernels(), records({gate, c.k, c.v, parameter})));
}

}  // namespace aft::ops
