#include "aft/models/weight_norm.h"

#include <ATen/ATen.h>

#include <vector>

#include "aft/ops/common.h"
#include "aft/ops/function.h"
#include "aft/ops/pointwise.h"

namespace aft::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PaddedElu {
  static constexpr char kName[] = "padded_elu";

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            bool both, int64_t top, int64_t left,
                            int64_t right) {
    const int64_t C = x.size(1), H = x.size(2), W = x.size(3);
    at::Tensor y = at::empty(
        {x.size(0), both ? 2 * C : C, top + H, left + W + right}, x.options());
    // Clears only what is not written below.
    if (top > 0) y.narrow(2, 0, top).zero_();
    if (left > 0) y.narrow(3, 0, left).zero_();
    if (right > 0) y.narrow(3, left + W, right).zero_();
    const at::Tensor inner = y.narrow(2, top, H).narrow(3, left, W);
    at::Tensor plus = inner.narrow(1, 0, C);
    at::elu_out(plus, x);
    if (both) {
      at::Tensor minus = inner.narrow(1, C, C);
      at::neg_out(minus, x);
      at::elu_(minus);
    }
    // The following convolution keeps y anyway, so saving it costs no memory.
    ctx->save_for_backward({y});
    ctx->saved_data["sizes"] =
        std::vector<int64_t>{both ? 1 : 0, C, H, W, top, left};
    return y;
  }

  static variable_list backward(AutogradContext* ctx,
                                const variable_list& grads) {
    const std::vector<int64_t> s = ctx->saved_data["sizes"].toIntVector();
    const int64_t C = s[1], H = s[2], W = s[3], top = s[4], left = s[5];
    const auto inner = [&](const at::Tensor& t, int64_t first) {
      return t.narrow(1, first, C).narrow(2, top, H).narrow(3, left, W);
    };
    const at::Tensor y = ctx->get_saved_variables()[0];
    const auto part = [&](int64_t first) {
      return at::elu_backward(inner(grads[0], first), 1, 1, 1,
                              /*is_result=*/true, inner(y, first));
    };
    at::Tensor dx = part(0);
    if (s[0]) dx.sub_(part(C));
    const at::Tensor none;
    return {dx, none, none, none, none};
  }
};

}  // namespace

torch::Tensor padded_elu(const torch::Tensor& x, bool both,
                         const Padding& padding) {
  return ops::OnceDifferentiable<PaddedElu>::apply(x, both, padding.top,
                                                   padding.left, padding.right);
}

torch::Tensor shifted_down(const torch::Tensor& x) {
  return at::constant_pad_nd(x, {0, 0, 1, -1});
}

torch::Tensor shifted_right(const torch::Tensor& x) {
  return at::constant_pad_nd(x, {1, -1});
}

WeightNormConvImpl::WeightNormConvImpl(const WeightNormConvOptions& o)
    : options(o) {
  reset();
}

void WeightNormConvImpl::reset() {
  const auto& o = options;
  TORCH_CHECK(o.in() >= 1 && o.out() >= 1 && o.rows() >= 1 && o.columns() >= 1,
              "WeightNormConv: channels and kernel must be 1 or more, got ",
              o.in(), " to ", o.out(), " and ", o.rows(), "x", o.columns());
  TORCH_CHECK(!o.centred() || o.columns() % 2 == 1,
              "WeightNormConv: a centred kernel must have an odd number of "
              "columns, got ",
              o.columns());
  TORCH_CHECK(!o.up() || (o.stride() == 2 && o.rows() == 2 &&
                          o.columns() == (o.centred() ? 3 : 2)),
              "WeightNormConv: up must have stride 2 and a kernel of 2x2, or "
              "2x3 if centred, got ",
              o.stride(), " and ", o.rows(), "x", o.columns());
  const int64_t a = o.up() ? o.in() : o.out(), b = o.up() ? o.out() : o.in();
  v = register_parameter(
      "v", at::empty({a, b, o.rows(), o.columns()}).normal_(0, 0.05));
  g = register_parameter("g", at::full({o.out()}, o.scale()));
  bias = register_parameter("bias", at::zeros({o.out()}));
}

void WeightNormConvImpl::pretty_print(std::ostream& stream) const {
  const auto& o = options;
  stream << "WeightNormConv(" << o.in() << ", " << o.out()
         << ", kernel=" << o.rows() << "x" << o.columns()
         << (o.centred() ? ", centred" : "") << ", stride=" << o.stride()
         << (o.up() ? ", up" : "") << ")";
}

Padding WeightNormConvImpl::padding() const {
  if (options.up()) return {};
  const int64_t wide = options.columns() - 1;
  return options.centred() ? Padding{options.rows() - 1, wide / 2, wide / 2}
                           : Padding{options.rows() - 1, wide, 0};
}

torch::Tensor WeightNormConvImpl::forward(const torch::Tensor& x) {
  const int64_t s = options.up() ? 1 : options.stride();
  TORCH_CHECK(x.dim() == 4 && x.size(1) == options.in() && x.size(2) % s == 0 &&
                  x.size(3) % s == 0,
              "WeightNormConv: x must be [B, ", options.in(),
              ", H, W], H and W multiples of ", s, ", got ", ops::shape_of(x));
  const Padding p = padding();
  if (p.top + p.left + p.right == 0) return valid(x);
  return valid(at::constant_pad_nd(x, {p.left, p.right, p.top, 0}));
}

torch::Tensor WeightNormConvImpl::valid(const torch::Tensor& x) {
  const int64_t dim = options.up() ? 1 : 0, s = options.stride();
  std::vector<int64_t> shape(4, 1);
  shape[dim] = options.out();
  // One product per channel and one per weight, instead of two per weight.
  const torch::Tensor norm = at::norm_except_dim(v, 2, dim).clamp_min(1e-6),
                      weight = v * (g.view(shape) / norm);
  if (!options.up()) return at::conv2d(x, weight, bias, at::IntArrayRef{s, s});
  // For a centred kernel, the first column falls outside the image.
  const int64_t cut = options.centred() ? 1 : 0;
  return at::conv_transpose2d(x, weight, bias, at::IntArrayRef{s, s},
                              /*padding=*/at::IntArrayRef{0, cut},
                              /*output_padding=*/at::IntArrayRef{0, cut});
}

GatedResnetImpl::GatedResnetImpl(const GatedResnetOptions& o) : options(o) {
  reset();
}

void GatedResnetImpl::reset() {
  const auto& o = options;
  const int64_t signs = o.both() ? 2 : 1, F = o.filters();
  const auto conv = [&](int64_t out, double scale) {
    return WeightNormConv(WeightNormConvOptions(signs * F, out)
                              .rows(o.rows())
                              .columns(o.columns())
                              .centred(o.centred())
                              .scale(scale));
  };
  conv1 = register_module("conv1", conv(F, 1));
  side = nullptr;
  if (o.side() > 0)
    side = register_module(
        "side", WeightNormConv(WeightNormConvOptions(signs * o.side(), F)));
  // Small initial scale, so that a deep network starts close to the identity.
  conv2 = register_module("conv2", conv(2 * F, 0.1));
}

torch::Tensor GatedResnetImpl::forward(const torch::Tensor& x,
                                       const torch::Tensor& a, double dropout,
                                       uint64_t seed) {
  TORCH_CHECK(x.dim() == 4 && x.size(1) == options.filters(),
              "GatedResnet: x must be [B, ", options.filters(), ", H, W], got ",
              ops::shape_of(x));
  TORCH_CHECK(a.defined() == (options.side() > 0),
              "GatedResnet: a must be defined if and only if side > 0, got ",
              a.defined() ? "a" : "no a", " and side = ", options.side());
  const bool both = options.both();
  torch::Tensor h = conv1->valid(padded_elu(x, both, conv1->padding()));
  if (a.defined()) h = h + side->valid(padded_elu(a, both));
  h = ops::dropout_add({}, padded_elu(h, both, conv2->padding()), dropout,
                       seed);
  return x + at::glu(conv2->valid(h), 1);
}

}  // namespace aft::models
