#include "aft/ops/band.h"

#include <ATen/ATen.h>

#include "aft/kernels/kernels.h"
#include "aft/ops/composite.h"
#include "aft/ops/function.h"

namespace aft::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Gives the kernels access to pieces of w and of its gradient.
template <class T>
kernels::BandBias<T> band_bias(const at::Tensor& u, const at::Tensor& v_pos,
                               const at::Tensor& w, int64_t window,
                               bool window_only) {
  kernels::BandBias<T> bias;
  bias.window = window;
  bias.window_only = window_only;
  if (w.defined()) {
    const T* dense = w.data_ptr<T>();
    const int64_t keys = w.size(1);
    bias.rows = [=](int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* out,
                    int64_t ld) {
      for (int64_t t = t0; t < t1; ++t)
        std::copy(dense + t * keys + j0, dense + t * keys + j1,
                  out + (t - t0) * ld);
    };
    bias.keys = [=](int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* out,
                    int64_t ld) {
      constexpr int64_t kBlock = 16;
      for (int64_t s = t0; s < t1; s += kBlock) {
        for (int64_t j = j0; j < j1; ++j) {
          for (int64_t t = s; t < std::min(s + kBlock, t1); ++t)
            out[(j - j0) * ld + t - t0] = dense[t * keys + j];
        }
      }
    };
    return bias;
  }
  const T *a = u.data_ptr<T>(), *b = v_pos.data_ptr<T>();
  const int64_t r = u.size(1);
  bias.rows = [=](int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* out,
                  int64_t ld) {
    kernels::band_kernels<T>().outer(t1 - t0, j1 - j0, r, a + t0 * r,
                                     b + j0 * r, out, ld);
  };
  bias.keys = [=](int64_t t0, int64_t t1, int64_t j0, int64_t j1, T* out,
                  int64_t ld) {
    kernels::band_kernels<T>().outer(j1 - j0, t1 - t0, r, b + j0 * r,
                                     a + t0 * r, out, ld);
  };
  return bias;
}

struct Band {
  static constexpr char kName[] = "aft::full and aft::local";

  static at::Tensor forward(AutogradContext* ctx, const OptionalTensor& q_,
                            const at::Tensor& k, const at::Tensor& v,
                            const OptionalTensor& u_,
                            const OptionalTensor& v_pos_,
                            const OptionalTensor& w_,
                            const OptionalTensor& padded_, int64_t Tq,
                            int64_t window, bool window_only, bool causal,
                            bool use_kernels, bool record) {
    const at::Tensor q = value(q_), u = value(u_), v_pos = value(v_pos_),
                     w = value(w_), padded = value(padded_);
    ctx->saved_data["Tq"] = Tq;
    ctx->saved_data["window"] = window;
    ctx->saved_data["window_only"] = window_only;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["use_kernels"] = use_kernels;
    if (!use_kernels) {
      const auto out = composite::forward(
          k, v, padded, {u, v_pos, w, window, window_only, {}}, Tq, causal);
      ctx->save_for_backward({q, k, v, u, v_pos, w, padded, out.r, out.lse});
      return out.r;
    }
    at::Tensor y = at::empty({k.size(0), Tq, v.size(2)}, v.options()), r, den,
               unsafe;
    if (record) {
      r = q.defined() ? at::empty_like(y)
                      : y;  // without a gate, r is the result
      den = at::empty_like(y);
      unsafe = at::empty({Tq}, v.options().dtype(at::kByte));
    }
    AT_DISPATCH_FLOATING_TYPES(k.scalar_type(), "aft::band", [&] {
      kernels::run_band<scalar_t>(
          at_exec(y), problem<scalar_t>(q, k, v, padded, Tq, causal),
          band_bias<scalar_t>(u, v_pos, w, window, window_only),
          y.data_ptr<scalar_t>(),
          {q.defined() ? data<scalar_t>(r) : nullptr, data<scalar_t>(den),
           data<uint8_t>(unsafe)});
    });
    ctx->save_for_backward({q, k, v, u, v_pos, w, padded, r, den, unsafe});
    return y;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    const at::Tensor &q = s[0], &k = s[1], &v = s[2], &u = s[3], &v_pos = s[4],
                     &w = s[5], &padded = s[6];
    const at::Tensor dy = grads[0].contiguous();
    const int64_t window = ctx->saved_data["window"].toInt();
    const bool window_only = ctx->saved_data["window_only"].toBool(),
               causal = ctx->saved_data["causal"].toBool();
    const auto wanted = needed(ctx, {q, k, v, u, v_pos, w});
    const bool bias_wanted = wanted[3] || wanted[4] || wanted[5];
    at::Tensor dq, dk, dv, du, dv_pos, dw;
    if (!ctx->saved_data["use_kernels"].toBool()) {
      const auto g = composite::backward(
          dy, k, v, padded, {u, v_pos, w, window, window_only, {}}, causal,
          s[7], s[8], {wanted[1], wanted[2], bias_wanted});
      dk = g.dk, dv = g.dv, du = g.du, dv_pos = g.dv_pos, dw = g.dw;
    } else {
      // The kernels always compute dq, dk and dv.
      if (q.defined()) dq = at::empty_like(q);
      dk = at::empty_like(k), dv = at::empty_like(v);
      if (wanted[3]) du = at::zeros_like(u);
      if (wanted[4]) dv_pos = at::zeros_like(v_pos);
      if (wanted[5]) dw = at::zeros_like(w);
      AT_DISPATCH_FLOATING_TYPES(k.scalar_type(), "aft::band", [&] {
        auto bias = band_bias<scalar_t>(u, v_pos, w, window, window_only);
        if (bias_wanted) {
          bias.take = [&](int64_t t0, int64_t t1, int64_t j0, int64_t j1,
                          const scalar_t* piece, int64_t ld,
                          kernels::BandSide side) {
            const bool rows = side == kernels::BandSide::kRows;
            if (!(rows ? du.defined() || dw.defined() : dv_pos.defined()))
              return;
            at::NoGradGuard no_grad;  // grad mode is per thread
            const at::Tensor g =
                at::from_blob(const_cast<scalar_t*>(piece), {t1 - t0, j1 - j0},
                              {ld, 1}, k.options());
            if (rows && dw.defined()) {
              dw.narrow(0, t0, t1 - t0).narrow(1, j0, j1 - j0).add_(g);
            } else if (rows) {
              du.narrow(0, t0, t1 - t0).addmm_(g, v_pos.narrow(0, j0, j1 - j0));
            } else {
              dv_pos.narrow(0, j0, j1 - j0)
                  .addmm_(g.t(), u.narrow(0, t0, t1 - t0));
            }
          };
        }
        kernels::run_band_backward<scalar_t>(
            at_exec(dy),
            problem<scalar_t>(q, k, v, padded, ctx->saved_data["Tq"].toInt(),
                              causal),
            bias, dy.data_ptr<scalar_t>(),
            {data<scalar_t>(s[7]), data<scalar_t>(s[8]), data<uint8_t>(s[9])},
            {data<scalar_t>(dq), dk.data_ptr<scalar_t>(),
             dv.data_ptr<scalar_t>()});
      });
    }
    const at::Tensor none;
    return {wanted[0] ? dq : none,
            wanted[1] ? dk : none,
            wanted[2] ? dv : none,
            wanted[3] ? du : none,
            wanted[4] ? dv_pos : none,
            dw,
            none,
            none,
            none,
            none,
            none,
            none,
            none};
  }
};

}  // namespace

at::Tensor band(const Checked& c, const PositionBias& bias, int64_t window,
                bool window_only) {
  const auto given = [](const OptionalTensor& x) { return x && x->defined(); };
  at::Tensor u, v_pos, w;
  if (given(bias.w)) {
    TORCH_CHECK(!given(bias.u) && !given(bias.v_pos), "aft::", c.op,
                ": expected either w or the pair u and v_pos, got both");
    w = c.parameter("w", *bias.w, {c.Tq, c.Tk},
                    c10::str("[Tq, Tk] = [", c.Tq, ", ", c.Tk, "]"));
  } else {
    TORCH_CHECK(given(bias.u) && given(bias.v_pos), "aft::", c.op,
                ": expected w or both u and v_pos, got ",
                given(bias.u)       ? "u alone"
                : given(bias.v_pos) ? "v_pos alone"
                                    : "none of them");
    u = c.parameter("u", *bias.u, {c.Tq, -1},
                    c10::str("[T, r] = [", c.Tq, ", r]"));
    v_pos = c.parameter("v_pos", *bias.v_pos, {c.Tk, u.size(1)},
                        c10::str("[T, r] = [", c.Tk, ", ", u.size(1), "]"));
  }
  const at::Tensor q = c.fused_q();
  return c.finish(OnceDifferentiable<Band>::apply(
      maybe(q), c.k, c.v, maybe(u), maybe(v_pos), maybe(w), maybe(c.padded),
      c.Tq, window, window_only, c.causal, c.use_kernels(),
      records({q, c.k, c.v, u, v_pos, w})));
}

}  // namespace aft::ops
