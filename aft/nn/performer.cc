#include "aft/nn/performer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "aft/nn/heads.h"
#include "aft/nn/prefix_sum_attention.h"
#include "aft/ops/common.h"
#include "aft/ops/function.h"

namespace aft::nn {
namespace {

using at::Tensor;

constexpr double kFeatureEps = 1e-6;  // relative to the largest feature
constexpr double kPadded = -1e30;     // c of a masked key

/// Computes phi(x) e^-c and c: x [..., d] to [..., m] and [...]. With s = x^
/// omega^T, c = max_f s_f - |x^|^2 / 2. omega is already scaled by d^(-1/4).
struct Features {
  static constexpr char kName[] = "Performer";

  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& x,
      const Tensor& omega) {
    const int64_t d = x.size(-1);
    const Tensor rows = x.reshape({-1, d});
    Tensor phi = at::mm(rows, omega.t()), top, best;
    std::tie(top, best) = phi.max(1, true);
    phi.sub_(top).exp_().add_(kFeatureEps);
    const double half = 0.5 / std::sqrt(static_cast<double>(d));
    std::vector<int64_t> shape = x.sizes().vec();
    shape.pop_back();
    const Tensor c = top.squeeze(1).sub(rows.square().sum(1), half).view(shape);
    shape.push_back(omega.size(0));
    phi = phi.view(shape);
    ctx->save_for_backward({rows, omega, phi, best});
    return {phi, c};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &rows = saved[0], &omega = saved[1], &phi = saved[2],
                 &best = saved[3];
    const double scale = 1 / std::sqrt(static_cast<double>(rows.size(1)));
    const Tensor ds =
        ((phi - kFeatureEps).mul_(grads[0])).view({-1, omega.size(0)});
    const Tensor dc = grads[1].reshape({-1, 1});
    // The gradient through the maximum: its feature gets the negative sum over
    // all features.
    Tensor dx = at::mm(ds, omega);
    dx.addcmul_(omega.index_select(0, best.view(-1)), dc - ds.sum(1, true));
    dx.addcmul_(rows, dc, -scale);
    std::vector<int64_t> shape = phi.sizes().vec();
    shape.back() = rows.size(1);
    return {dx.view(shape), Tensor()};
  }
};

}  // namespace

torch::Tensor orthogonal_features(int64_t m, int64_t d,
                                  c10::optional<at::Generator> generator) {
  const auto gaussian = [&](at::IntArrayRef shape) {
    return at::randn(shape, generator, at::kDouble);
  };
  Tensor q, r;
  std::tie(q, r) = at::linalg_qr(gaussian({(m + d - 1) / d, d, d}));
  // The signs of a Householder QR depend on the matrix: without this
  // correction, the first vector of a block would always point to the same
  // side.
  const Tensor signs = r.diagonal(0, -2, -1).sign().unsqueeze(-2);
  const Tensor rows =
      (q * signs).transpose(-2, -1).reshape({-1, d}).narrow(0, 0, m);
  return rows * gaussian({m, d}).norm(2, {1}, true);
}

MixerKind performer_kind() {
  return mixer_kind<PerformerImpl>("performer", [](const MixerOptions& o) {
    return PerformerOptions(o.dim, 8).causal(o.causal);
  });
}

void PerformerImpl::reset() {
  TORCH_CHECK(options.features() >= 0,
              "Performer: features must be 0 or more, got ",
              options.features());
  TORCH_CHECK(options.redraw_every() >= 0,
              "Performer: redraw_every must be 0 or more, got ",
              options.redraw_every());
  make_layers({"Performer", options.dim(), options.heads(), options.causal()});
  const int64_t d = head_dim();
  const double rule = static_cast<double>(d) * std::log(d);
  const int64_t m = options.features() > 0
                        ? options.features()
                        : std::max<int64_t>(static_cast<int64_t>(rule), 1);
  omega = register_buffer(
      "omega", orthogonal_features(m, d).to(qkv->weight.scalar_type()));
}

void PerformerImpl::redraw(uint64_t seed) {
  const auto every = static_cast<uint64_t>(options.redraw_every());
  if (every == 0 || seed % every != 0) return;
  at::NoGradGuard no_grad;
  omega.copy_(orthogonal_features(omega.size(0), omega.size(1),
                                  at::detail::createCPUGenerator(seed)));
}

std::string PerformerImpl::details() const {
  return detail("features", features()) +
         detail("redraw_every", options.redraw_every());
}

torch::Tensor PerformerImpl::forward(const torch::Tensor& x,
                                     const torch::Tensor& mask) {
  check_sequence(x);
  check_mask(mask, x);
  const int64_t T = x.size(1), d = head_dim(),
                C = chunk_length(T, features(), d, options.causal());
  const auto parts = project(x);
  const auto chunk = [&](int i) {
    return chunks(parts[i], options.heads(), C);
  };
  // A copy, so that backward does not see omega change in redraw().
  const Tensor scaled = omega * std::pow(d, -0.25);
  const Tensor q =
      ops::OnceDifferentiable<Features>::apply(chunk(0), scaled)[0];
  const auto key = ops::OnceDifferentiable<Features>::apply(chunk(1), scaled);
  Tensor k = key[0], c = key[1];
  if (mask.defined()) {
    const Tensor padded = chunks(mask.unsqueeze(2), 1, C);
    k = k.masked_fill(padded, 0);
    c = c.masked_fill(padded.squeeze(-1), kPadded);
  }
  const Tensor y = prefix_attend(q, k, chunk(2), c, 0, options.causal());
  return out(unchunk(y, T));
}

ops::Stream PerformerImpl::start(int64_t B) const {
  check_stream(B);
  return start_prefix(/*with_c=*/true,
                      {B, options.heads(), features(), head_dim()},
                      qkv->weight.options());
}

torch::Tensor PerformerImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  check_position(x);
  const Tensor now =
      ops::full_precision(qkv(x)).view({x.size(0), 3, options.heads(), -1});
  const auto qk = ops::OnceDifferentiable<Features>::apply(
      now.narrow(1, 0, 2), omega * std::pow(omega.size(1), -0.25));
  const Tensor y =
      prefix_step("Performer", stream, qk[0].select(1, 0), qk[0].select(1, 1),
                  now.select(1, 2), qk[1].select(1, 1).unsqueeze(-1), 0);
  return out(y.flatten(1));
}

}  // namespace aft::nn
