#include "aft/nn/prefix_sum_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "aft/nn/heads.h"
#include "aft/ops/common.h"
#include "aft/ops/function.h"

namespace aft::nn {
namespace {

using at::Tensor;

/// Less than any c: the maximum over no keys, for a new stream.
constexpr double kNothing = -1e30;

Tensor flip(const Tensor& x) { return x.transpose(-2, -1); }

/// Calls f(begin, count) for ranges of the G sequences and heads, in parallel.
/// Each thread takes its range through all chunks, with buffers that stay in
/// its cache.
template <class F>
void for_groups(const Tensor& x, const F& f) {
  const int64_t G = x.size(1);
  if (!x.is_cpu()) return f(0, G);
  at::parallel_for(0, G, 1, [&](int64_t begin, int64_t end) {
    at::NoGradGuard no_grad;  // grad mode is per thread
    f(begin, end - begin);
  });
}

/// [v, 1]: gives numerator and denominator in one product.
Tensor with_one(const Tensor& v) {
  std::vector<int64_t> shape = v.sizes().vec();
  const int64_t D = shape.back()++;
  Tensor both = at::empty(shape, v.options());
  both.narrow(-1, 0, D).copy_(v);
  both.select(-1, D).fill_(1);
  return both;
}

/// The denominators, with 0 replaced by 1.
Tensor denominator(const Tensor& both, double eps) {
  Tensor den = both.narrow(-1, both.size(-1) - 1, 1) + eps;
  return den.masked_fill_(den == 0, 1);
}

/// Splits e^c into factors of at most 1, using two maxima: top, the largest c
/// up to the end of a chunk, and row, the largest c that a row sees.
struct Weights {
  Tensor c, row;  ///< [N, G, C]; undefined: no c, all factors are 1
  Tensor in;      ///< [N, G, C, 1], e^(c - top): from keys to sums
  Tensor keep;    ///< [N - 1, G, 1, 1]: sums from one top to the next
  Tensor out;     ///< [N - 1, G, C, 1], e^(top - row): sums to later rows

  explicit Weights(const Tensor& c) : c(c) {
    if (!c.defined()) return;
    const int64_t later = c.size(0) - 1;
    const Tensor top = std::get<0>(at::cummax(c.amax(-1, true), 0)),
                 before = top.narrow(0, 0, later);
    row = std::get<0>(at::cummax(c, -1));
    Tensor rows = row.narrow(0, 1, later);
    rows.copy_(at::maximum(rows, before));
    in = (c - top).exp_().unsqueeze(-1);
    keep = (before - top.narrow(0, 1, later)).exp_().unsqueeze(-1);
    out = (before - rows).exp_().unsqueeze(-1);
  }
};

/// A range of groups, accessed chunk by chunk.
class Part {
 public:
  Part(const Weights& weights, int64_t begin, int64_t count)
      : w_(weights), begin_(begin), count_(count) {}

  Tensor operator()(const Tensor& x, int64_t n) const {
    return x[n].narrow(0, begin_, count_);
  }
  Tensor zeros(int64_t rows, int64_t columns, const Tensor& like) const {
    return at::zeros({count_, rows, columns}, like.options());
  }

  /// x y^T for the keys that a row sees, times the key's weight for the row.
  void scores(Tensor& into, const Tensor& x, const Tensor& y, int64_t n) const {
    at::bmm_out(into, (*this)(x, n), flip((*this)(y, n)));
    if (!w_.c.defined()) {
      into.tril_();
      return;
    }
    // The upper triangle may contain inf, which tril_ clears.
    into.mul_(
        ((*this)(w_.c, n).unsqueeze(-2) - (*this)(w_.row, n).unsqueeze(-1))
            .exp_()
            .tril_());
  }
  /// Scales keys, or values that belong to keys, as they enter the sums.
  Tensor entering(const Tensor& x, int64_t n) const {
    return w_.c.defined() ? x * (*this)(w_.in, n) : x;
  }
  /// Scales what the rows of chunk n > 0 read from the sums before it.
  Tensor leaving(const Tensor& x, int64_t n) const {
    return w_.c.defined() ? x * (*this)(w_.out, n - 1) : x;
  }
  /// Rescales the sums from chunk n - 1 to n, or back.
  void decay(Tensor& sums, int64_t n) const {
    if (w_.c.defined() && n > 0) sums.mul_((*this)(w_.keep, n - 1));
  }
  /// Adds k [v, 1]^T of chunk n to the sums.
  void absorb(Tensor& sums, const Tensor& k, const Tensor& v1,
              int64_t n) const {
    decay(sums, n);
    sums.baddbmm_(flip((*this)(k, n)), entering((*this)(v1, n), n));
  }

 private:
  const Weights& w_;
  int64_t begin_, count_;
};

/// Multiplies queries and keys within chunks, and uses sums between chunks.
struct Prefix {
  static constexpr char kName[] = "prefix_attend";

  /// B and H are merged to G: q, k [N, G, C, M], c [N, G, C] to [N, G, C, D].
  /// Only v is [N, B, H, C, D], because it is copied anyway.
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q,
                        const Tensor& k, const Tensor& v,
                        const ops::OptionalTensor& c, double eps) {
    const Tensor v1 = with_one(v).flatten(1, 2);
    const int64_t N = q.size(0), C = q.size(2), M = q.size(3), D = v.size(4);
    const Weights weights(ops::value(c));
    const Tensor both = at::empty_like(v1);
    for_groups(q, [&](int64_t begin, int64_t count) {
      const Part part(weights, begin, count);
      Tensor scores = part.zeros(C, C, q), sums = part.zeros(M, D + 1, q);
      for (int64_t n = 0; n < N; ++n) {
        Tensor y = part(both, n);
        part.scores(scores, q, k, n);
        at::bmm_out(y, scores, part(v1, n));
        if (n > 0) y.add_(part.leaving(at::bmm(part(q, n), sums), n));
        if (n + 1 < N) part.absorb(sums, k, v1, n);
      }
    });
    const Tensor den = denominator(both, eps), y = both.narrow(-1, 0, D) / den;
    ctx->save_for_backward({q, k, v1, ops::value(c), y, den});
    ctx->saved_data["B"] = v.size(1);
    return y;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v1 = saved[2], &c = saved[3],
                 &y = saved[4], &den = saved[5];
    const int64_t N = q.size(0), C = q.size(2), M = q.size(3), D = y.size(3);
    const Weights weights(c);
    // The gradients of numerator and denominator.
    const Tensor g = at::empty_like(v1), dq = at::empty_like(q),
                 dk = at::empty_like(k), dv = at::empty_like(v1);
    Tensor gn = g.narrow(-1, 0, D), gd = g.narrow(-1, D, 1);
    at::div_out(gn, grads[0], den);
    at::sum_out(gd, gn * y, -1, true).neg_();
    for_groups(q, [&](int64_t begin, int64_t count) {
      const Part part(weights, begin, count);
      Tensor scores = part.zeros(C, C, q), sums = part.zeros(M, D + 1, q);
      for (int64_t n = 0; n < N; ++n) {
        Tensor dqn = part(dq, n), dkn = part(dk, n);
        part.scores(scores, g, v1, n);
        at::bmm_out(dqn, scores, part(k, n));
        at::bmm_out(dkn, flip(scores), part(q, n));
        if (n > 0) dqn.baddbmm_(part.leaving(part(g, n), n), flip(sums));
        if (n + 1 < N) part.absorb(sums, k, v1, n);
      }
      // Then the gradient of the sums, from all later rows.
      sums.zero_();
      for (int64_t n = N; n-- > 0;) {
        Tensor dkn = part(dk, n), dvn = part(dv, n);
        part.scores(scores, q, k, n);
        at::bmm_out(dvn, flip(scores), part(g, n));
        if (n + 1 < N) {
          dkn.baddbmm_(part.entering(part(v1, n), n), flip(sums));
          dvn.add_(part.entering(at::bmm(part(k, n), sums), n));
        }
        part.decay(sums, n);
        if (n > 0) sums.baddbmm_(flip(part(q, n)), part.leaving(part(g, n), n));
      }
    });
    // e^c multiplies v just as it multiplies k, and the maxima cancel in y.
    const Tensor dc = c.defined() ? (v1 * dv).sum(-1) : Tensor();
    const Tensor dv5 =
        dv.narrow(-1, 0, D).unflatten(1, {ctx->saved_data["B"].toInt(), -1});
    return {dq, dk, dv5, dc, Tensor()};
  }
};

}  // namespace

int64_t chunk_length(int64_t T, int64_t M, int64_t D, bool causal) {
  if (!causal) return T;
  // Both parts cost the same if T C = T / C M D; but very small products are
  // slow.
  int64_t C = 32;
  while (2 * C * C < M * D) C *= 2;
  return std::min(T, C);
}

Tensor chunks(const Tensor& x, int64_t heads, int64_t C) {
  const int64_t T = x.size(1), N = (T + C - 1) / C;
  const Tensor full =
      N * C == T ? x : at::constant_pad_nd(x, {0, 0, 0, N * C - T});
  return full.unflatten(2, {heads, x.size(2) / heads})
      .unflatten(1, {N, C})
      .permute({1, 0, 3, 2, 4});
}

Tensor unchunk(const Tensor& y, int64_t T) {
  // [B, N, C, heads, D]
  return y.permute({1, 0, 3, 2, 4}).flatten(3).flatten(1, 2).narrow(1, 0, T);
}

Tensor prefix_attend(const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& c, double eps, bool causal) {
  if (causal) {
    const Tensor y = ops::OnceDifferentiable<Prefix>::apply(
        q.flatten(1, 2), k.flatten(1, 2), v,
        ops::maybe(c.defined() ? c.flatten(1, 2) : c), eps);
    return y.view(v.sizes());
  }
  Tensor v1 = at::cat({v, at::ones_like(v.narrow(-1, 0, 1))}, -1);
  if (c.defined())
    v1 = v1 * (c - c.detach().amax(-1, true)).exp().unsqueeze(-1);
  const Tensor both = at::matmul(q, at::matmul(flip(k), v1));
  const auto parts = both.split_with_sizes({v.size(-1), 1}, -1);
  const Tensor den = parts[1] + eps;
  return parts[0] / den.masked_fill(den == 0, 1);
}

ops::Stream start_prefix(bool with_c, at::IntArrayRef shape,
                         const at::TensorOptions& options) {
  ops::Stream stream;
  const at::TensorOptions plain = options.requires_grad(false);
  stream.sums = at::zeros({shape[0], shape[1], shape[2], shape[3] + 1}, plain);
  if (with_c)
    stream.ring_k = at::full({shape[0], shape[1], 1}, kNothing, plain);
  return stream;
}

Tensor prefix_step(const char* name, ops::Stream& stream, const Tensor& q,
                   const Tensor& k, const Tensor& v, const Tensor& c,
                   double eps) {
  at::NoGradGuard no_grad;
  check_fits(name, stream, q);
  Tensor v1 = with_one(v);
  if (c.defined()) {
    Tensor& top = stream.ring_k;
    const Tensor now = at::maximum(top, c);
    stream.sums.mul_((top - now).exp_().unsqueeze(-1));
    v1.mul_((c - now).exp_());
    top.copy_(now);
  }
  stream.sums.addcmul_(k.unsqueeze(-1), v1.unsqueeze(-2));
  ++stream.position;
  const Tensor both = at::matmul(q.unsqueeze(-2), stream.sums).squeeze(-2);
  return both.narrow(-1, 0, v.size(-1)) / denominator(both, eps);
}

}  // namespace aft::nn
