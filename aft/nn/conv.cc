// AFTConv, whose biases are kernels over relative positions, one per head; and
// two tools to make these kernels sparse: their entropy, and restriction to a
// single position per head by Gumbel-softmax samples,
//   w' = w softmax((w + g) / tau), g = -log(-log U), U uniform.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "aft/nn/aft.h"
#include "aft/ops/common.h"
#include "aft/ops/ops.h"

namespace aft::nn {
namespace {

constexpr double kKernelStd = 0.01;  // of w itself, as in full and local
/// Of raw kernels; the reparameterisation removes their scale.
constexpr double kRawStd = 0.02;

/// Sets all but the largest tap of each head to 0.
torch::Tensor only_largest(const torch::Tensor& all) {
  const torch::Tensor flat = all.flatten(1),
                      at = flat.argmax(1, /*keepdim=*/true);
  return at::zeros_like(flat).scatter(1, at, flat.gather(1, at)).view_as(all);
}

}  // namespace

MixerKind aft_conv_kind() {
  MixerKind kind =
      aft_traits(mixer_kind<AFTConvImpl>("aft-conv", [](const MixerOptions& o) {
        const std::vector<int64_t> kernel(static_cast<size_t>(o.grid), 32);
        return AFTConvOptions(o.dim, 8, kernel).causal(o.causal);
      }));
  kind.needs_grid = kind.relative_biases = kind.odd_window = true;
  kind.position_embeddings = false;
  kind.imported_heads = 32;
  kind.exclusive = "gumbel";
  return kind;
}

void AFTConvImpl::reset() {
  const auto& o = options;
  TORCH_CHECK(!o.kernel().empty() && o.kernel().size() <= 3,
              "AFTConv: kernel must have 1, 2 or 3 sizes, got ",
              o.kernel().size());
  TORCH_CHECK(!o.causal() || o.kernel().size() == 1,
              "AFTConv: causal needs a kernel of 1 size, got ",
              o.kernel().size());
  for (int64_t s : o.kernel()) {
    TORCH_CHECK(s >= 1 && (o.causal() || s % 2 == 1),
                "AFTConv: kernel sizes must be odd, to have a centre, got ",
                at::IntArrayRef(o.kernel()));
  }
  TORCH_CHECK(o.gumbel() == 0 || (o.gumbel() >= 0.01 && o.gumbel() <= 100),
              "AFTConv: gumbel must be 0 (off) or a temperature in [0.01, "
              "100], got ",
              o.gumbel());
  make_projections({"AFTConv", o.dim(), o.heads(), o.causal()}, o.out(),
                   o.gate());
  std::vector<int64_t> shape{o.heads()};
  shape.insert(shape.end(), o.kernel().begin(), o.kernel().end());
  gamma = beta = bias_ = torch::Tensor();
  one_tap_ = {};
  from_ = {};
  // Raw w must not be constant: gamma, initially 0, would then have no
  // gradient, and w has one only if gamma is nonzero.
  w = register_parameter(
      "w",
      at::empty(shape).normal_(0, o.reparameterise() ? kRawStd : kKernelStd));
  if (o.reparameterise()) {
    gamma = register_parameter("gamma", at::zeros({o.heads()}));
    beta = register_parameter("beta", at::zeros({o.heads()}));
  }
}

std::string AFTConvImpl::details() const {
  std::ostringstream text;
  text << ", heads=" << options.heads()
       << ", kernel=" << at::IntArrayRef(options.kernel())
       << (options.reparameterise() ? "" : ", reparameterise=false")
       << (options.window_only() ? ", window_only=true" : "");
  if (options.gumbel() > 0) text << ", gumbel=" << options.gumbel();
  return text.str();
}

torch::Tensor AFTConvImpl::kernels() const {
  if (!options.reparameterise()) return w;
  constexpr double kEps = 1e-5;  // a kernel of one tap has deviation 0
  const torch::Tensor flat = w.flatten(1);
  const torch::Tensor spread =
      flat.std(1, /*unbiased=*/false, /*keepdim=*/true) + kEps;
  return (gamma.unsqueeze(1) * (flat - flat.mean(1, true)) / spread +
          beta.unsqueeze(1))
      .view_as(w);
}

/// w times one sample per head.
torch::Tensor AFTConvImpl::sample(const torch::Tensor& all) const {
  const torch::Tensor flat = all.flatten(1);
  // Drawn on the CPU in float, so that samples do not depend on the device or
  // type of the module. An exponential variate is -log U; 0 would make g
  // infinite.
  torch::Tensor g = at::empty(flat.sizes(), at::kFloat);
  if (seed_) {
    g.exponential_(1, at::detail::createCPUGenerator(*seed_));
  } else {
    g.exponential_(1);
  }
  g = g.clamp_min_(1e-30).log_().neg_().to(flat.options());
  const torch::Tensor low = flat - flat.detach().amax(1, /*keepdim=*/true);
  return (flat * ((low + g) / options.gumbel()).softmax(1)).view_as(all);
}

AFTConvImpl::OneTap AFTConvImpl::one_tap() const {
  const auto [top, at] = kernels().flatten(1).max(1);
  std::vector<torch::Tensor> places;
  torch::Tensor rest = at;
  for (size_t i = options.kernel().size(); i-- > 0;) {
    const int64_t size = options.kernel()[i],
                  centre = options.causal() ? size - 1 : size / 2;
    places.insert(places.begin(), rest.remainder(size) - centre);
    rest = rest.div(size, "floor");
  }
  return {top, at::stack(places, 1)};
}

torch::Tensor AFTConvImpl::bias() const {
  const torch::Tensor all = kernels();
  if (options.gumbel() == 0) return all;
  return is_training() ? sample(all) : only_largest(all);
}

void AFTConvImpl::redraw(uint64_t seed) { seed_ = seed; }

void AFTConvImpl::pack_for_inference() {
  AFTLayer::pack_for_inference();
  at::NoGradGuard no_grad;
  bias_ = options.gumbel() == 0 ? kernels().detach().clone()
                                : only_largest(kernels());
  one_tap_ = one_tap();
  from_ = Snapshot({w, gamma, beta});
}

bool AFTConvImpl::is_packed() const {
  return bias_.defined() && from_.valid({w, gamma, beta});
}

torch::Tensor AFTConvImpl::forward(const torch::Tensor& x,
                                   const torch::Tensor& mask) {
  const int64_t dims = static_cast<int64_t>(options.kernel().size());
  if (dims == 1) {
    check_sequence(x);
    return forward_grid(x, {x.size(1)}, mask);
  }
  TORCH_CHECK(x.dim() == dims + 2 && x.size(1) == options.dim(),
              "AFTConv: x must be [B, dim, ", dims == 2 ? "H, W" : "D, H, W",
              "] with dim = ", options.dim(),
              ", or [B, T, dim] with its grid, got ", ops::shape_of(x));
  const std::vector<int64_t> grid = x.sizes().slice(2).vec();
  const torch::Tensor y =
      forward_grid(x.flatten(2).transpose(1, 2), grid, mask);
  return y.transpose(1, 2).reshape(x.sizes());
}

torch::Tensor AFTConvImpl::forward_grid(const torch::Tensor& x,
                                        const std::vector<int64_t>& grid,
                                        const torch::Tensor& mask) {
  check_sequence(x);
  const auto [q, k, v] = project(x);
  // one_tap sums over all keys, so it does not apply if window_only.
  const bool packed = is_packed();
  if (options.gumbel() > 0 && !options.window_only() &&
      (packed || !is_training())) {
    const OneTap one = packed ? one_tap_ : one_tap();
    return finish(
        ops::one_tap(q, k, v, one.w, one.offsets, grid, common(mask)));
  }
  return finish(ops::conv(q, k, v, packed ? bias_ : bias(), grid,
                          options.window_only(), common(mask)));
}

ops::Stream AFTConvImpl::start(int64_t B) const {
  return start_stream(B, options.kernel()[0]);
}

torch::Tensor AFTConvImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  const int64_t s = options.kernel()[0],
                count = std::min(stream.position + 1, s);
  const torch::Tensor taps =
      (is_packed() ? bias_ : bias()).narrow(1, s - count, count).t();
  return stream_step(x, stream,
                     taps.repeat_interleave(options.dim() / options.heads(), 1),
                     options.window_only());
}

namespace {

/// Calls f(log softmax(w) [heads, taps]) for each AFTConv.
template <class F>
void for_kernels(const torch::nn::Module& model, const F& f) {
  const auto look = [&](const torch::nn::Module& m) {
    if (const auto* conv = m.as<AFTConvImpl>())
      f(conv->kernels().flatten(1).log_softmax(1));
  };
  look(model);
  for (const auto& m : model.modules(/*include_self=*/false)) look(*m);
}

/// The entropy per head.
torch::Tensor entropy(const torch::Tensor& log_shares) {
  return -(log_shares.exp() * log_shares).sum(1);
}

}  // namespace

torch::Tensor kernel_entropy(const torch::nn::Module& model) {
  torch::Tensor sum;
  for_kernels(model, [&](const torch::Tensor& log_shares) {
    const torch::Tensor one = entropy(log_shares).sum();
    sum = sum.defined() ? sum + one : one;
  });
  return sum;
}

c10::optional<Sparsity> sparsity(const torch::nn::Module& model) {
  at::NoGradGuard no_grad;
  Sparsity out;
  double heads = 0;
  for_kernels(model, [&](const torch::Tensor& log_shares) {
    const double n = static_cast<double>(log_shares.size(0));
    heads += n;
    out.entropy += entropy(log_shares).sum().item<double>();
    out.most += n * std::log(static_cast<double>(log_shares.size(1)));
    out.top += log_shares.amax(1).exp().sum().item<double>();
  });
  if (heads == 0) return c10::nullopt;
  out.entropy /= heads, out.most /= heads, out.top /= heads;
  return out;
}

}  // namespace aft::nn
