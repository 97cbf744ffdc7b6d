#include "aft/ops/pointwise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "aft/kernels/pointwise.h"
#include "aft/ops/common.h"

namespace aft::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 15;  // numbers that are worth a thread

bool has_kernels(const at::Tensor& x) {
  return x.device().is_cpu() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& bias) {
    ctx->save_for_backward({x, bias});
    at::Tensor y = at::empty_like(x);
    const int64_t n = bias.size(0), rows = x.numel() / std::max<int64_t>(n, 1);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::bias_gelu", [&] {
      const scalar_t *from = x.data_ptr<scalar_t>(),
                     *b = bias.data_ptr<scalar_t>();
      scalar_t* to = y.data_ptr<scalar_t>();
      at::parallel_for(
          0, rows, kGrain / n + 1, [&](int64_t begin, int64_t end) {
            kernels::pointwise_kernels<scalar_t>().gelu(
                end - begin, n, from + begin * n, b, to + begin * n);
          });
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    refuse_double_backward("bias_gelu");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &bias = saved[1];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    const int64_t n = bias.size(0), rows = x.numel() / std::max<int64_t>(n, 1);
    // A sum for each thread, added up in order: the same for a fixed number of
    // threads.
    const int64_t threads = at::get_num_threads(),
                  each = std::max<int64_t>((rows + threads - 1) / threads,
                                           kGrain / n + 1),
                  parts = std::max<int64_t>((rows + each - 1) / each, 1);
    at::Tensor db = at::zeros({parts, n}, bias.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::bias_gelu", [&] {
      const scalar_t *from = x.data_ptr<scalar_t>(),
                     *b = bias.data_ptr<scalar_t>(),
                     *g = dy.data_ptr<scalar_t>();
      scalar_t *to = dx.data_ptr<scalar_t>(), *sums = db.data_ptr<scalar_t>();
      at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t r0 = part * each, r1 = std::min(r0 + each, rows);
          kernels::pointwise_kernels<scalar_t>().gelu_backward(
              std::max<int64_t>(r1 - r0, 0), n, from + r0 * n, b, g + r0 * n,
              to + r0 * n, sums + part * n);
        }
      });
    });
    return {dx, db.sum(0)};
  }
};

/// y = r + drop(x); r may be undefined.
at::Tensor drop(const at::Tensor& x, const at::Tensor& r, double p,
                uint64_t seed) {
  at::Tensor y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::dropout_add", [&] {
    const scalar_t *from = x.data_ptr<scalar_t>(), *add = data<scalar_t>(r);
    scalar_t* to = y.data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernels::pointwise_kernels<scalar_t>().dropout(
          {seed, p}, begin, end - begin, from + begin,
          add ? add + begin : nullptr, to + begin);
    });
  });
  return y;
}

struct DropoutAdd : torch::autograd::Function<DropoutAdd> {
  static at::Tensor forward(AutogradContext* ctx, const OptionalTensor& r,
                            const at::Tensor& x, double p, int64_t seed) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["seed"] = seed;
    ctx->saved_data["residual"] = r.has_value();
    return drop(x, value(r), p, static_cast<uint64_t>(seed));
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    refuse_double_backward("dropout_add");
    const at::Tensor dy = grads[0].contiguous(), none;
    const at::Tensor dx =
        drop(dy, none, ctx->saved_data["p"].toDouble(),
             static_cast<uint64_t>(ctx->saved_data["seed"].toInt()));
    return {ctx->saved_data["residual"].toBool() ? dy : none, dx, none, none};
  }
};

}  // namespace

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(bias.dim() == 1 && x.dim() >= 1 && x.size(-1) == bias.size(0) &&
                  bias.size(0) > 0,
              "aft::bias_gelu: expected x [..., n] and bias [n], n >= 1, got ",
              shape_of(x), " and ", shape_of(bias));
  TORCH_CHECK(
      x.scalar_type() == bias.scalar_type() && x.device() == bias.device(),
      "aft::bias_gelu: bias must have the type and device of x, ",
      x.scalar_type(), " on ", x.device(), ", got ", bias.scalar_type(), " on ",
      bias.device());
  if (!has_kernels(x)) return at::gelu(x + bias);
  return BiasGelu::apply(x.contiguous(), bias.contiguous());
}

at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x,
                       double p, uint64_t seed) {
  TORCH_CHECK(p >= 0 && p < 1, "aft::dropout_add: p must be in [0, 1), got ",
              p);
  TORCH_CHECK(
      !residual.defined() || (residual.sizes() == x.sizes() &&
                              residual.scalar_type() == x.scalar_type()),
      "aft::dropout_add: residual must be like x, ", shape_of(x), " ",
      x.scalar_type(), ", got ",
      residual.defined() ? shape_of(residual) : "nothing");
  if (p == 0) return residual.defined() ? residual + x : x;
  if (!has_kernels(x)) {
    const at::Tensor dropped = at::dropout(x, p, /*train=*/true);
    return residual.defined() ? residual + dropped : dropped;
  }
  return DropoutAdd::apply(
      residual.defined() ? OptionalTensor(residual.contiguous()) : c10::nullopt,
      x.contiguous(), p, static_cast<int64_t>(seed));
}

}  // namespace aft::ops
