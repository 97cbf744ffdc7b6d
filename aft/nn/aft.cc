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

/// Of u, v and dense w: the paper's N(0, 10^-2), read as a standard deviation.
constexpr double kBiasStd = 0.01;

/// Creates the biases of AFTFull and AFTLocal.
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
std::string bias_detail(const Options& o) {
  return o.dense() ? detail("dense", true) : detail("rank", o.rank());
}

template <class Options>
void check_lengths(const char* name, const Options& o) {
  TORCH_CHECK(o.max_len() >= 1, name, ": max_len must be 1 or more, got ",
              o.max_len());
  TORCH_CHECK(o.dense() || o.rank() >= 1, name,
              ": rank must be 1 or more, got ", o.rank());
}

}  // namespace

void AFTLayer::make_projections(const Shape& shape, bool with_out,
                                const std::string& gate) {
  set_shape(shape);
  ops::check_gate(shape.name, gate);
  gate_ = gate;
  query = gate == "none" ? PackedLinear(nullptr) : linear("query", shape.dim);
  key = linear("key", shape.heads);
  value = linear("value", shape.dim);
  out = with_out ? linear("out", shape.dim) : PackedLinear(nullptr);
}

void AFTLayer::check_input(const torch::Tensor& x, int64_t max_len) const {
  check_sequence(x);
  TORCH_CHECK(x.size(1) <= max_len, shape_.name,
              ": a sequence of T = ", x.size(1),
              " positions is longer than max_len = ", max_len);
}

void AFTLayer::pack_for_inference() {
  for (PackedLinear* layer : {&query, &key, &value, &out})
    if (*layer) layer->pack();
}

std::array<torch::Tensor, 3> AFTLayer::project(const torch::Tensor& x) {
  if (!key.is_packed() || !value.is_packed() || (query && !query.is_packed()))
    return {query ? query(x) : torch::Tensor(), key(x), value(x)};
  std::vector<const ops::PackedWeights*> layers{&key.packed(), &value.packed()};
  if (query) layers.push_back(&query.packed());
  const auto all = ops::PackedWeights::together(x, layers);
  return {query ? all[2] : torch::Tensor(), all[0], all[1]};
}

ops::Common AFTLayer::common(const torch::Tensor& mask) const {
  ops::Common c;
  if (mask.defined()) c.key_padding_mask = mask;
  c.causal = shape_.causal;
  c.gate = gate_;
  return c;
}

ops::Stream AFTLayer::start_stream(int64_t B, int64_t window) const {
  check_stream(B);
  auto options = key->weight.options().requires_grad(false);
  if (key->weight.scalar_type() != at::kDouble)
    options = options.dtype(at::kFloat);
  return ops::start_stream(B, shape_.dim, window, options);
}

torch::Tensor AFTLayer::stream_step(const torch::Tensor& x, ops::Stream& stream,
                                    const torch::Tensor& w, bool window_only) {
  at::NoGradGuard no_grad;
  check_position(x);
  torch::Tensor k = key(x), q = query ? query(x) : torch::Tensor();
  if (head_dim() != 1) k = k.repeat_interleave(head_dim(), 1);
  const bool fused = gate_ == "sigmoid";
  torch::Tensor y = ops::step(stream, fused ? q : torch::Tensor(), k, value(x),
                              w, window_only)
                        .to(x.scalar_type());
  if (!fused) y = ops::apply_gate(gate_, q, y);
  return finish(y);
}

void AFTLayer::pretty_print(std::ostream& stream) const {
  stream << shape_.name << "(dim=" << shape_.dim << details()
         << detail("causal", shape_.causal) << detail("out", bool(out))
         << ", gate=" << gate_ << ")";
}

MixerKind aft_traits(MixerKind kind) {
  kind.aft = true;
  // The inputs and results of both norms, q, k, v, num / den, den and y.
  kind.kept_channels = 12;
  return kind;
}

// ---- simple

MixerKind aft_simple_kind() {
  return aft_traits(
      mixer_kind<AFTSimpleImpl>("aft-simple", [](const MixerOptions& o) {
        return AFTSimpleOptions(o.dim).causal(o.causal);
      }));
}

void AFTSimpleImpl::reset() {
  make_projections(
      {"AFTSimple", options.dim(), options.dim(), options.causal()},
      options.out(), options.gate());
}

torch::Tensor AFTSimpleImpl::forward(const torch::Tensor& x,
                                     const torch::Tensor& mask) {
  check_sequence(x);
  const auto [q, k, v] = project(x);
  return finish(ops::simple(q, k, v, common(mask)));
}

ops::Stream AFTSimpleImpl::start(int64_t B) const { return start_stream(B, 0); }

torch::Tensor AFTSimpleImpl::step(const torch::Tensor& x, ops::Stream& stream) {
  return stream_step(x, stream, {}, false);
}

// ---- full

MixerKind aft_full_kind() {
  MixerKind kind =
      aft_traits(mixer_kind<AFTFullImpl>("aft-full", [](const MixerOptions& o) {
        return AFTFullOptions(o.dim, o.max_len).causal(o.causal);
      }));
  kind.grows = kind.has_max_len = true;
  return kind;
}

void AFTFullImpl::reset() {
  check_lengths("AFTFull", options);
  make_projections({"AFTFull", options.dim(), options.dim(), options.causal()},
                   options.out(), options.gate());
  make_biases(*this);
}

std::string AFTFullImpl::details() const {
  return detail("max_len", options.max_len()) + bias_detail(options);
}

torch::Tensor AFTFullImpl::forward(const torch::Tensor& x,
                                   const torch::Tensor& mask) {
  check_input(x, options.max_len());
  const auto [q, k, v] = project(x);
  return finish(
      ops::full(q, k, v, first_biases(*this, x.size(1)), common(mask)));
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

MixerKind aft_local_kind() {
  MixerKind kind = aft_traits(
      mixer_kind<AFTLocalImpl>("aft-local", [](const MixerOptions& o) {
        return AFTLocalOptions(o.dim, o.max_len, 32).causal(o.causal);
      }));
  kind.has_max_len = true;
  return kind;
}

void AFTLocalImpl::reset() {
  check_lengths("AFTLocal", options);
  TORCH_CHECK(options.window() >= 0, "AFTLocal: window must be 0 or more, got ",
              options.window());
  TORCH_CHECK(options.window() > 0 || !options.window_only(),
              "AFTLocal: window_only needs a window of 1 or more");
  make_projections({"AFTLocal", options.dim(), options.dim(), options.causal()},
                   options.out(), options.gate());
  if (options.window() > 0) make_biases(*this);
}

std::string AFTLocalImpl::details() const {
  return detail("max_len", options.max_len()) +
         detail("window", options.window()) + bias_detail(options) +
         (options.window_only() ? ", window_only=true" : "");
}

torch::Tensor AFTLocalImpl::forward(const torch::Tensor& x,
                                    const torch::Tensor& mask) {
  check_input(x, options.max_len());
  const auto [q, k, v] = project(x);
  return finish(ops::local(q, k, v, options.window(),
                           options.window() > 0 ? first_biases(*this, x.size(1))
                                                : ops::PositionBias(),
                           options.window_only(), common(mask)));
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

}  // namespace aft::nn
