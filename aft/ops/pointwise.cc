#include "aft/ops/pointwise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "aft/kernels/pointwise.h"
#include "aft/ops/common.h"
#include "aft/ops/function.h"

namespace aft::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 15;  // minimum elements per thread

bool has_kernels(const at::Tensor& x) {
  return x.device().is_cpu() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
}

/// gelu(h + bias) for rows h [rows, n].
at::Tensor gelu(const at::Tensor& h, const at::Tensor& bias) {
  at::Tensor y = at::empty_like(h);
  const int64_t n = bias.size(0), rows = h.size(0);
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "aft::mlp", [&] {
    const scalar_t *from = h.data_ptr<scalar_t>(),
                   *b = bias.data_ptr<scalar_t>();
    scalar_t* to = y.data_ptr<scalar_t>();
    at::parallel_for(0, rows, kGrain / n + 1, [&](int64_t begin, int64_t end) {
      kernels::pointwise_kernels<scalar_t>().gelu(
          end - begin, n, from + begin * n, b, to + begin * n);
    });
  });
  return y;
}

/// Replaces g by g gelu'(h + bias) and returns the gradient of the bias.
at::Tensor gelu_backward(const at::Tensor& h, const at::Tensor& bias,
                         at::Tensor& g) {
  const int64_t n = bias.size(0), rows = h.size(0);
  // One partial sum per thread, added in order: deterministic for a fixed
  // number of threads.
  const int64_t threads = at::get_num_threads(),
                each = std::max<int64_t>((rows + threads - 1) / threads,
                                         kGrain / n + 1),
                parts = std::max<int64_t>((rows + each - 1) / each, 1);
  const at::Tensor db = at::zeros({parts, n}, bias.options());
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "aft::mlp", [&] {
    const scalar_t *from = h.data_ptr<scalar_t>(),
                   *b = bias.data_ptr<scalar_t>();
    scalar_t *to = g.data_ptr<scalar_t>(), *sums = db.data_ptr<scalar_t>();
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t r0 = part * each, r1 = std::min(r0 + each, rows);
        kernels::pointwise_kernels<scalar_t>().gelu_backward(
            std::max<int64_t>(r1 - r0, 0), n, from + r0 * n, b, to + r0 * n,
            to + r0 * n, sums + part * n);
      }
    });
  });
  return db.sum(0);
}

struct Mlp {
  static constexpr char kName[] = "aft::mlp";

  /// x is [rows, n].
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w1, const at::Tensor& b1,
                            const at::Tensor& w2, const at::Tensor& b2) {
    const at::Tensor h = affine(x, w1);
    ctx->save_for_backward({x, h, w1, b1, w2});
    return affine(gelu(h, b1), w2, b2);
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &h = saved[1], &w1 = saved[2],
                     &b1 = saved[3], &w2 = saved[4];
    const auto wanted = needed(ctx, {x, w1, b1, w2, w2});  // as (..., w2, b2)
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx, dw1, db1, dw2, db2;
    if (wanted[4]) db2 = dy.sum(0);
    if (wanted[3]) dw2 = at::mm(dy.t(), gelu(h, b1));
    if (wanted[0] || wanted[1] || wanted[2]) {
      at::Tensor g = at::mm(dy, w2);
      const at::Tensor db = gelu_backward(h, b1, g);
      if (wanted[2]) db1 = db;
      if (wanted[1]) dw1 = at::mm(g.t(), x);
      if (wanted[0]) dx = at::mm(g, w1);
    }
    return {dx, dw1, db1, dw2, db2};
  }
};

thread_local int64_t first_row = 0;

/// Which elements of x the kernel would keep, counted from index `first`, in
/// ATen calls: bool, shaped like x.
at::Tensor kept(const at::Tensor& x, const kernels::Dropout& how,
                int64_t first) {
  constexpr int64_t kTurn = int64_t{1} << 32, kMask = kTurn - 1;
  const auto options = x.options().dtype(at::kLong);
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < x.numel();) {
    const int64_t from = (first + i) & kMask,
                  count = std::min(x.numel() - i, kTurn - from);
    const auto words = how.words(static_cast<uint64_t>(first + i));
    const auto word = [](uint32_t w) { return static_cast<int64_t>(w); };
    // 32-bit arithmetic in 64-bit integers.
    at::Tensor h = at::arange(from, from + count, options);
    h.bitwise_xor_(word(words.a));
    h.bitwise_xor_(h.bitwise_right_shift(16)).mul_(word(0x85EBCA6Bu));
    h.add_(word(words.b)).bitwise_and_(kMask);
    h.bitwise_xor_(h.bitwise_right_shift(13)).mul_(word(0xC2B2AE35u));
    h.bitwise_and_(kMask);
    h.bitwise_xor_(h.bitwise_right_shift(16));
    parts.push_back(h.ge(word(how.limit())));
    i += count;
  }
  return parts.empty() ? at::empty_like(x, x.options().dtype(at::kBool))
                       : at::cat(parts).view_as(x);
}

/// y = r + drop(x); r may be undefined. row: the index of the first row.
at::Tensor drop(const at::Tensor& x, const at::Tensor& r, double p,
                uint64_t seed, int64_t row) {
  const int64_t index = row > 0 ? x.numel() / x.size(0) * row : 0;
  if (!has_kernels(x)) {
    const at::Tensor y = (x * (1 / (1 - p))).mul_(kept(x, {seed, p}, index));
    return r.defined() ? r + y : y;
  }
  at::Tensor y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::dropout_add", [&] {
    const scalar_t *from = x.data_ptr<scalar_t>(), *add = data<scalar_t>(r);
    scalar_t* to = y.data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernels::pointwise_kernels<scalar_t>().dropout(
          {seed, p}, index + begin, end - begin, from + begin,
          add ? add + begin : nullptr, to + begin);
    });
  });
  return y;
}

struct DropoutAdd {
  static constexpr char kName[] = "aft::dropout_add";

  static at::Tensor forward(AutogradContext* ctx, const OptionalTensor& r,
                            const at::Tensor& x, double p, int64_t seed) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["seed"] = seed;
    ctx->saved_data["residual"] = r.has_value();
    ctx->saved_data["row"] = first_row;
    return drop(x, value(r), p, static_cast<uint64_t>(seed), first_row);
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const at::Tensor dy = grads[0].contiguous(), none;
    const auto wanted =
        needed(ctx, {ctx->saved_data["residual"].toBool() ? dy : none, dy});
    at::Tensor dx;
    if (wanted[1])
      dx = drop(dy, none, ctx->saved_data["p"].toDouble(),
                static_cast<uint64_t>(ctx->saved_data["seed"].toInt()),
                ctx->saved_data["row"].toInt());
    return {wanted[0] ? dy : none, dx, none, none};
  }
};

}  // namespace

at::Tensor softmax(const at::Tensor& x) {
  if (!has_kernels(x) || !x.is_contiguous()) return x.softmax(-1);
  const int64_t n = x.size(-1), rows = n > 0 ? x.numel() / n : 0;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "aft::softmax", [&] {
    scalar_t* data = x.data_ptr<scalar_t>();
    at::parallel_for(0, rows, kGrain / (n + 1) + 1,
                     [&](int64_t begin, int64_t end) {
                       kernels::pointwise_kernels<scalar_t>().softmax(
                           end - begin, n, data + begin * n);
                     });
  });
  return x;
}

at::Tensor affine(const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& b) {
  if (x.dim() == 2 && x.size(0) == 1 && x.size(1) == w.size(-1) &&
      !autocast_enabled(x)) {
    const at::Tensor row = x.squeeze(0);
    return (b.defined() ? at::addmv(b, w, row) : at::mv(w, row)).unsqueeze(0);
  }
  return at::linear(x, w, maybe(b));
}

at::Tensor mlp(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& b1,
               const at::Tensor& w2, const at::Tensor& b2) {
  TORCH_CHECK(w1.dim() == 2 && w2.dim() == 2 && b1.dim() == 1 &&
                  b2.dim() == 1 && x.dim() >= 1 && x.size(-1) == w1.size(1) &&
                  b1.size(0) == w1.size(0) && w2.size(1) == w1.size(0) &&
                  b2.size(0) == w2.size(0) && b1.size(0) > 0,
              "aft::mlp: expected x [..., n], w1 [m, n], b1 [m], w2 [n', m] "
              "and b2 [n'], m >= 1, got ",
              shape_of(x), ", ", shape_of(w1), ", ", shape_of(b1), ", ",
              shape_of(w2), " and ", shape_of(b2));
  const bool autocast = autocast_enabled(x);
  for (const at::Tensor& p : {w1, b1, w2, b2}) {
    TORCH_CHECK((autocast || p.scalar_type() == x.scalar_type()) &&
                    p.device() == x.device(),
                "aft::mlp: weights must have the type and device of x, ",
                x.scalar_type(), " on ", x.device(), ", got ", p.scalar_type(),
                " on ", p.device());
  }
  if (autocast || !has_kernels(x))
    return at::linear(at::gelu(at::linear(x, w1, b1)), w2, b2);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w2.size(0);
  return OnceDifferentiable<Mlp>::apply(
             x.reshape({-1, w1.size(1)}).contiguous(), w1, b1.contiguous(), w2,
             b2)
      .view(shape);
}

FirstRow::FirstRow(int64_t row) : before_(first_row) { first_row = row; }
FirstRow::~FirstRow() { first_row = before_; }
int64_t FirstRow::current() { return first_row; }

at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x,
                       double p, uint64_t seed) {
  TORCH_CHECK(p >= 0 && p < 1, "aft::dropout_add: p must be in [0, 1), got ",
              p);
  const bool autocast = autocast_enabled(x);
  TORCH_CHECK(
      !residual.defined() ||
          (residual.sizes() == x.sizes() && residual.device() == x.device() &&
           (autocast || residual.scalar_type() == x.scalar_type())),
      "aft::dropout_add: residual must have the shape, type and device of x, ",
      shape_of(x), " ", x.scalar_type(), " on ", x.device(), ", got ",
      shape_of(residual), " ", residual.scalar_type(), " on ",
      residual.device());
  if (p == 0) return residual.defined() ? residual + x : x;
  const at::ScalarType type = promoted_type({residual, x});
  return OnceDifferentiable<DropoutAdd>::apply(
      maybe(residual.defined() ? residual.to(type).contiguous() : residual),
      x.to(type).contiguous(), p, static_cast<int64_t>(seed));
}

}  // namespace aft::ops
