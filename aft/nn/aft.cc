#include "aft/nn/aft.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <algorithm>
#include <sstream>

#include "aft/ops/common.h"
#include "aft/ops/ops.h"
#include "aft/ops/pointwise.h"

namespace aft::nn {
namespace {

constexpr double kBiasStd = 0.01;  // of u, v and dense w: the paper's N(0,
                                   // 10^-2), read as a standard deviation
constexpr double kRawStd = 0.02;  // of the raw kernels of conv, whose scale the
                                  // reparameterisation takes out

ops::Common common(const torch::Tensor& mask, bool causal,
                   const std::string& gate) {
  ops::Common c;
  if (mask.defined()) c.key_padding_mask = mask;
  c.causal = causal;
  c.gate = gate;
  return c;
}

std::string yes(bool x) { return x ? "true" : "false"; }

/// What AFTFull and AFTLocal share: their biases.
template <class Module>
void make_biases(Module& m) {
  const int64_t T = m.options.max_len(), r = m.options.rank();
  m.u = m.v = m.w = torch::Tensor();
  if (m.options.dense()) {
    m.w = m.register_parameter("w", at::empty({T, T}).normal_(0, kBiasStd));
  } else {
    m.u = m.register_parameter("u", at::empty({T, r}).normal_(0, kBiasStd));
    m.v = m.register_parameter("v", at::empty({T, r}).normal_(0, kBiasStd));
  }
}

template <class Module>
ops::PositionBias first_biases(const Module& m, int64_t T) {
  ops::PositionBias bias;
  if (m.w.defined()) {
    bias.w = m.w.narrow(0, 0, T).narrow(1, 0, T);
  } else {
    bias.u = m.u.narrow(0, 0, T);
    bias.v_pos = m.v.narrow(0, 0, T);
  }
  return bias;
}

/// w_tj for j in [t - count + 1, t].
template <class Module>
torch::Tensor row_biases(const Module& m, int64_t t, int64_t count) {
  TORCH_CHECK(t < m.options.max_len(), m.name(), ": step at position ", t,
              " is beyond max_len = ", m.options.max_len());
  const int64_t j = t + 1 - count;
  if (m.w.defined()) return m.w.detach()[t].narrow(0, j, count);
  return at::mv(m.v.detach().narrow(0, j, count), m.u.detach()[t]);
}

template <class Options>
void check_lengths(const char* name, const Options& o) {
  TORCH_CHECK(o.max_len() >= 1, name, ": max_len must be 1 or more, got ",
              o.max_len());
  TORCH_CHECK(o.dense() || o.rank() >= 1, name,
              ": rank must be 1 or more, got ", o.rank());
}

}  // namespace

void AFTLayer::make_projections(const Layer& layer) {
  layer_ = layer;
  query_ = key_ = value_ = out_ = Folded();
  TORCH_CHECK(layer.dim >= 1, layer.name, ": dim must be 1 or more, got ",
              layer.dim);
  ops::check_gate(layer.name, layer.gate);
  using torch::nn::Linear;
  query = layer.gate == "none"
              ? Linear(nullptr)
              : register_module("query", Linear(layer.dim, layer.dim));
  key = register_module("key", Linear(layer.dim, layer.heads));
  value = register_module("value", Linear(layer.dim, layer.dim));
  out = layer.out ? register_module("out", Linear(layer.dim, layer.dim))
                  : Linear(nullptr);
}

void AFTLayer::check_input(const torch::Tensor& x, int64_t max_len) const {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == layer_.dim, layer_.name,
              ": x must be [B, T, dim] = [B, T, ", layer_.dim, "], got ",
              ops::shape_of(x));
  TORCH_CHECK(max_len < 0 || x.size(1) <= max_len, layer_.name,
              ": a sequence of T = ", x.size(1),
              " positions is longer than max_len = ", max_len);
}

void AFTLayer::fold() {
  if (query) query_.fold(query);
  key_.fold(key), value_.fold(value);
  if (out) out_.fold(out);
}

std::array<torch::Tensor, 3> AFTLayer::project(const torch::Tensor& x) {
  if (!key_.defined())
    return {query ? query(x) : torch::Tensor(), key(x), value(x)};
  std::vector<const ops::PackedLinear*> layers{&key_.packed(),
                                               &value_.packed()};
  if (query) layers.push_back(&query_.packed());
  const auto all = ops::PackedLinear::together(x, layers);
  return {query ? all[2] : torch::Tensor(), all[0], all[1]};
}

torch::Tensor AFTLayer::finish(const torch::Tensor& y) {
  return out ? out_(out, y) : y;
}

ops::Stream AFTLayer::start_stream(int64_t B, int64_t window) const {
  TORCH_CHECK(layer_.causal, layer_.name, ": streaming needs a causal layer");
  TORCH_CHECK(B >= 1, layer_.name, ": a stream needs B of 1 or more, got ", B);
  auto options = key->weight.options().requires_grad(false);
  if (key->weight.scalar_type() != at::kDouble)
    options = options.dtype(at::kFloat);
  return ops::start_stream(B, layer_.dim, window, options);
}

torch::Tensor AFTLayer::stream_step(const torch::Tensor& x, ops::Stream& stream,
                                    const torch::Tensor& w, bool window_only) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(x.dim() == 2 && x.size(1) == layer_.dim, layer_.name,
              ": step takes x [B, dim] = [B, ", layer_.dim, "], got ",
              ops::shape_of(x));
  torch::Tensor k = key_(key, x),
                q = query ? query_(query, x) : torch::Tensor();
  if (layer_.heads != layer_.dim)
    k = k.repeat_interleave(layer_.dim / layer_.heads, 1);
  const bool fused = layer_.gate == "sigmoid";
  torch::Tensor y = ops::step(stream, fused ? q : torch::Tensor(), k,
                              value_(value, x), w, window_only)
                        .to(x.scalar_type());
  if (!fused) y = ops::apply_gate(layer_.gate, q, y);
  return finish(y);
}

void AFTLayer::print(std::ostream& stream, const std::string& details) const {
  stream << layer_.name << "(dim=" << layer_.dim << details
         << ", causal=" << yes(layer_.causal) << ", out=" << yes(layer_.out)
         << ", gate=" << layer_.gate << ")";
}

// ---- simple

AFTSimpleImpl::AFTSimpleImpl(const AFTSimpleOptions& o) : options(o) {
  reset();
}

void AFTSimpleImpl::reset() {
  make_projections({"AFTSimple", options.dim(), options.dim(), options.causal(),
                    options.out(), options.gate()});
}

void AFTSimpleImpl::pretty_print(std::ostream& stream) const {
  print(stream, "");
}

torch::Tensor AFTSimpleImpl::forward(const torch::Tensor& x,
                                     const torch::Tensor& mask) {
  check_input(x, -1);
  const auto [q, k, v] = project(x);
  return finish(
      ops::simple(q, k, v, common(mask, options.causal(), options.gate())));
}

ops::Stream AFTSimpleImpl::start(int64_t B) const { return start_stream(B, 0); }

torch::Tensor AFTSimpleImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  return stream_step(x, stream, {}, false);
}

// ---- full

AFTFullImpl::AFTFullImpl(const AFTFullOptions& o) : options(o) { reset(); }

void AFTFullImpl::reset() {
  check_lengths("AFTFull", options);
  make_projections({"AFTFull", options.dim(), options.dim(), options.causal(),
                    options.out(), options.gate()});
  make_biases(*this);
}

void AFTFullImpl::pretty_print(std::ostream& stream) const {
  const std::string bias = options.dense()
                               ? ", dense=true"
                               : ", rank=" + std::to_string(options.rank());
  print(stream, ", max_len=" + std::to_string(options.max_len()) + bias);
}

torch::Tensor AFTFullImpl::forward(const torch::Tensor& x,
                                   const torch::Tensor& mask) {
  check_input(x, options.max_len());
  const auto [q, k, v] = project(x);
  return finish(ops::full(q, k, v, first_biases(*this, x.size(1)),
                          common(mask, options.causal(), options.gate())));
}

ops::Stream AFTFullImpl::start(int64_t B) const {
  return start_stream(B, options.max_len());
}

torch::Tensor AFTFullImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  return stream_step(x, stream,
                     row_biases(*this, stream.position, stream.position + 1),
                     false);
}

// ---- local

AFTLocalImpl::AFTLocalImpl(const AFTLocalOptions& o) : options(o) { reset(); }

void AFTLocalImpl::reset() {
  check_lengths("AFTLocal", options);
  TORCH_CHECK(options.window() >= 0, "AFTLocal: window must be 0 or more, got ",
              options.window());
  TORCH_CHECK(options.window() > 0 || !options.window_only(),
              "AFTLocal: window_only needs a window of 1 or more");
  make_projections({"AFTLocal", options.dim(), options.dim(), options.causal(),
                    options.out(), options.gate()});
  if (options.window() > 0) make_biases(*this);
}

void AFTLocalImpl::pretty_print(std::ostream& stream) const {
  const std::string bias = options.dense()
                               ? ", dense=true"
                               : ", rank=" + std::to_string(options.rank());
  print(stream, ", max_len=" + std::to_string(options.max_len()) +
                    ", window=" + std::to_string(options.window()) + bias +
                    (options.window_only() ? ", window_only=true" : ""));
}

torch::Tensor AFTLocalImpl::forward(const torch::Tensor& x,
                                    const torch::Tensor& mask) {
  check_input(x, options.max_len());
  const auto [q, k, v] = project(x);
  return finish(ops::local(q, k, v, options.window(),
                           options.window() > 0 ? first_biases(*this, x.size(1))
                                                : ops::PositionBias(),
                           options.window_only(),
                           common(mask, options.causal(), options.gate())));
}

ops::Stream AFTLocalImpl::start(int64_t B) const {
  return start_stream(B, std::min(options.window(), options.max_len()));
}

torch::Tensor AFTLocalImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  const int64_t count = std::min(stream.position + 1, options.window());
  return stream_step(
      x, stream,
      count > 0 ? row_biases(*this, stream.position, count) : torch::Tensor(),
      options.window_only());
}

// ---- conv

AFTConvImpl::AFTConvImpl(const AFTConvOptions& o) : options(o) { reset(); }

void AFTConvImpl::reset() {
  const auto& o = options;
  TORCH_CHECK(o.heads() >= 1 && o.dim() % o.heads() == 0,
              "AFTConv: heads must divide dim = ", o.dim(), ", got ",
              o.heads());
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
  make_projections(
      {"AFTConv", o.dim(), o.heads(), o.causal(), o.out(), o.gate()});
  std::vector<int64_t> shape{o.heads()};
  shape.insert(shape.end(), o.kernel().begin(), o.kernel().end());
  gamma = beta = bias_ = torch::Tensor();
  // Raw w must not be constant: with gamma = 0, gamma learns from the shape of
  // w, and w only once gamma has moved.
  w = register_parameter("w", at::empty(shape).normal_(
                                  0, o.reparameterise() ? kRawStd : kBiasStd));
  if (o.reparameterise()) {
    gamma = register_parameter("gamma", at::zeros({o.heads()}));
    beta = register_parameter("beta", at::zeros({o.heads()}));
  }
}

void AFTConvImpl::pretty_print(std::ostream& stream) const {
  std::ostringstream details;
  details << ", heads=" << options.heads()
          << ", kernel=" << at::IntArrayRef(options.kernel())
          << (options.reparameterise() ? "" : ", reparameterise=false")
          << (options.window_only() ? ", window_only=true" : "");
  print(stream, details.str());
}

torch::Tensor AFTConvImpl::bias() const {
  if (!options.reparameterise()) return w;
  constexpr double kEps = 1e-5;  // a kernel of one tap has no spread
  const torch::Tensor flat = w.flatten(1);
  const torch::Tensor spread =
      flat.std(1, /*unbiased=*/false, /*keepdim=*/true) + kEps;
  return (gamma.unsqueeze(1) * (flat - flat.mean(1, true)) / spread +
          beta.unsqueeze(1))
      .view_as(w);
}

void AFTConvImpl::fold() {
  AFTLayer::fold();
  bias_ = bias().detach();
}

torch::Tensor AFTConvImpl::forward(const torch::Tensor& x,
                                   const torch::Tensor& mask) {
  const int64_t dims = static_cast<int64_t>(options.kernel().size());
  if (dims == 1) {
    check_input(x, -1);
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
  check_input(x, -1);
  const auto [q, k, v] = project(x);
  return finish(ops::conv(q, k, v, bias_.defined() ? bias_ : bias(), grid,
                          options.window_only(),
                          common(mask, options.causal(), options.gate())));
}

ops::Stream AFTConvImpl::start(int64_t B) const {
  return start_stream(B, options.kernel()[0]);
}

torch::Tensor AFTConvImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  at::NoGradGuard no_grad;
  const int64_t s = options.kernel()[0],
                count = std::min(stream.position + 1, s);
  const torch::Tensor taps = bias().narrow(1, s - count, count).t();
  return stream_step(x, stream,
                     taps.repeat_interleave(options.dim() / options.heads(), 1),
                     options.window_only());
}

}  // namespace aft::nn
