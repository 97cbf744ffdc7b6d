#include "aft/nn/lambda.h"

#include <ATen/ATen.h>

#include <limits>

#include "aft/nn/heads.h"
#include "aft/ops/common.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {
namespace {

/// Normalises over the positions that are not padded; padded ones give 0.
torch::Tensor normed(BatchNorm& norm, const torch::Tensor& x,
                     const torch::Tensor& mask) {
  if (!mask.defined()) return norm(x);
  const torch::Tensor kept = mask.logical_not().unsqueeze(2).expand_as(x);
  return at::zeros_like(x).masked_scatter(
      kept, norm(x.masked_select(kept).view({-1, x.size(2)})));
}

/// softmax over positions, [B, N, k] to the same shape; 0 if padded.
torch::Tensor over_positions(const torch::Tensor& key,
                             const torch::Tensor& mask) {
  if (!mask.defined()) return key.softmax(1);
  const torch::Tensor padded = mask.unsqueeze(2);
  return key.masked_fill(padded, -std::numeric_limits<double>::infinity())
      .softmax(1)
      .masked_fill(padded, 0);
}

/// E_nm for all n, and for m in reverse order: [N, N, k]. In this order they
/// are sliding windows of the reversed table, and need no index tensor.
torch::Tensor windows(const torch::Tensor& offsets, int64_t rows,
                      int64_t columns) {
  const int64_t N = rows * columns, k = offsets.size(2);
  return offsets.narrow(0, (offsets.size(0) + 1) / 2 - rows, 2 * rows - 1)
      .narrow(1, (offsets.size(1) + 1) / 2 - columns, 2 * columns - 1)
      .flip({0, 1})
      .unfold(0, rows, 1)
      .unfold(1, columns, 1)
      .permute({0, 1, 3, 4, 2})
      .reshape({N, N, k});
}

/// sum_m (q_n . E_nm) v_m: q [B, N, heads, k], v [B, N, d] to [B, heads, N, d].
/// Multiplies with the query first, which takes heads (k + d) products per pair
/// of positions. Computing the lambdas, k d elements per position, would take k
/// d products per pair.
torch::Tensor by_offset(const torch::Tensor& q, const torch::Tensor& v,
                        const torch::Tensor& E) {
  const int64_t B = q.size(0), N = q.size(1), heads = q.size(2);
  const torch::Tensor scores =
      at::bmm(q.transpose(0, 1).reshape({N, B * heads, q.size(3)}),
              E.transpose(1, 2))
          .view({N, B, heads, N})
          .permute({1, 2, 0, 3});
  return at::matmul(scores, v.flip({1}).unsqueeze(1));
}

}  // namespace

MixerKind lambda_kind() {
  MixerKind kind = mixer_kind<LambdaImpl>("lambda", [](const MixerOptions& o) {
    return LambdaOptions(o.dim, 8, o.rows, o.columns);
  });
  kind.causal = false;
  kind.needs_grid = true;
  return kind;
}

void LambdaImpl::reset() {
  const auto& o = options;
  set_shape({"Lambda", o.dim(), o.heads(), /*causal=*/false});
  TORCH_CHECK(o.rows() >= 1 && o.columns() >= 1,
              "Lambda: rows and columns must be 1 or more, got ", o.rows(),
              " and ", o.columns());
  TORCH_CHECK(o.k() >= 1, "Lambda: k must be 1 or more, got ", o.k());
  const int64_t d = head_dim();
  query = linear("query", o.heads() * o.k(), /*bias=*/false);
  key = linear("key", o.k(), /*bias=*/false);
  value = linear("value", d, /*bias=*/false);
  query_norm = register_module("query_norm",
                               BatchNorm(BatchNormOptions(o.heads() * o.k())));
  value_norm = register_module("value_norm", BatchNorm(BatchNormOptions(d)));
  offsets = register_parameter(
      "offsets", at::randn({2 * o.rows() - 1, 2 * o.columns() - 1, o.k()}));
  out = o.out() ? linear("out", o.dim()) : PackedLinear(nullptr);
}

void LambdaImpl::pretty_print(std::ostream& stream) const {
  stream << "Lambda(dim=" << options.dim() << ", heads=" << options.heads()
         << ", rows=" << options.rows() << ", columns=" << options.columns()
         << ", k=" << options.k() << detail("out", options.out()) << ")";
}

void LambdaImpl::pack_for_inference() {
  at::NoGradGuard no_grad;
  const auto merge = [](PackedLinear& linear, const BatchNorm& norm) {
    const auto [scale, shift] = norm->scale_and_shift();
    linear.pack(
        linear->weight * scale.unsqueeze(1), shift,
        {norm->weight, norm->bias, norm->running_mean, norm->running_var});
  };
  merge(query, query_norm);
  merge(value, value_norm);
  key.pack();
  if (out) out.pack();
}

std::array<torch::Tensor, 3> LambdaImpl::project(const torch::Tensor& x,
                                                 const torch::Tensor& mask) {
  if (!query.is_packed() || !key.is_packed() || !value.is_packed()) {
    const auto of = [&](const torch::nn::Linear& l) {
      return ops::affine(x, l->weight);
    };
    return {normed(query_norm, of(query), mask), of(key),
            normed(value_norm, of(value), mask)};
  }
  const auto all = ops::PackedWeights::together(
      x, {&query.packed(), &key.packed(), &value.packed()});
  if (!mask.defined()) return {all[0], all[1], all[2]};
  const torch::Tensor padded = mask.unsqueeze(2);
  return {all[0].masked_fill(padded, 0), all[1], all[2].masked_fill(padded, 0)};
}

torch::Tensor LambdaImpl::forward(const torch::Tensor& x,
                                  const torch::Tensor& mask) {
  return forward_grid(x, {options.rows(), options.columns()}, mask);
}

torch::Tensor LambdaImpl::forward_grid(const torch::Tensor& x,
                                       const std::vector<int64_t>& grid,
                                       const torch::Tensor& mask) {
  check_sequence(x);
  TORCH_CHECK(grid.size() == 2 && grid[0] >= 1 && grid[1] >= 1 &&
                  grid[0] * grid[1] == x.size(1),
              "Lambda: the grid must be rows x columns of T = ", x.size(1),
              " positions, got ", at::IntArrayRef(grid));
  const int64_t B = x.size(0), N = x.size(1), rows = grid[0], columns = grid[1],
                k = options.k();
  TORCH_CHECK(rows <= options.rows() && columns <= options.columns(),
              "Lambda: the grid must be at most ", options.rows(), "x",
              options.columns(), ", got ", rows, "x", columns);
  check_mask(mask, x);
  const auto [q, key_map, v] = project(x, mask);
  const torch::Tensor heads = q.view({B, N, options.heads(), k});
  const torch::Tensor content =
      at::bmm(over_positions(key_map, mask).transpose(1, 2), v);
  const torch::Tensor y =
      at::bmm(heads.flatten(1, 2), content)
          .view({B, N, options.heads(), v.size(2)}) +
      by_offset(heads, v, windows(offsets, rows, columns)).transpose(1, 2);
  return out ? out(y.flatten(2)) : y.flatten(2);
}

ops::Stream LambdaImpl::start(int64_t B) const {
  check_stream(B);
  return {};
}

torch::Tensor LambdaImpl::step(const torch::Tensor& /*x*/,
                               ops::Stream& /*stream*/) {
  check_stream(1);
  return {};
}

}  // namespace aft::nn
