#include "cli/measure/rivals.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "aft/nn/tiled_attention.h"
#include "aft/ops/ops.h"

namespace aft::cli {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int64_t kHeads = 8;  // of attention

/// exp(x - max x): the maximum cancels out of num / den, so it needs no
/// gradient.
at::Tensor shifted_exp(const at::Tensor& x, at::IntArrayRef axes) {
  return (x - x.detach().amax(axes, true)).exp_();
}

Side naive_simple(const Case& c, const Data& data) {
  return autograd_side(
      "naive", {data.q, data.k, data.v}, data.dy, [=](const Tensors& x) {
        const at::Tensor e = shifted_exp(x[1], {1});
        const at::Tensor ev = e * x[2];
        const at::Tensor num = c.causal ? ev.cumsum(1) : ev.sum(1, true);
        const at::Tensor den = c.causal ? e.cumsum(1) : e.sum(1, true);
        return at::sigmoid(x[0]) * num / den;
      });
}

Side naive_dense(const Case& c, const Data& data) {
  const at::Tensor ones = at::ones({c.T, c.T}, at::kBool);
  at::Tensor outside, future;
  if (c.variant == "local") {
    outside = at::logical_or(ones.tril(-c.window), ones.triu(c.window));
  }
  if (c.causal) future = ones.triu(1);
  return autograd_side(
      "naive", {data.q, data.k, data.v, data.bias[0], data.bias[1]}, data.dy,
      [=](const Tensors& x) {
        at::Tensor w = at::mm(x[3], x[4].t());
        if (outside.defined()) w = w.masked_fill(outside, 0.);
        if (future.defined()) w = w.masked_fill(future, kMinusInfinity);
        const at::Tensor ew = shifted_exp(w, {1});
        const at::Tensor e = shifted_exp(x[1], {1});
        // einsum makes one large product of it, and is faster than matmul, bmm
        // and one product with [e v | e] (measured on each case).
        const at::Tensor num = at::einsum("tj,bjd->btd", {ew, e * x[2]});
        const at::Tensor den = at::einsum("tj,bjd->btd", {ew, e});
        return at::sigmoid(x[0]) * num / den;
      });
}

Side naive_conv(const Case& c, const Data& data, bool channels_last) {
  const auto as_image = [=](const at::Tensor& x) {
    std::vector<int64_t> shape = {c.B, x.size(2)};
    shape.insert(shape.end(), c.grid.begin(), c.grid.end());
    const at::Tensor image = x.transpose(1, 2).contiguous().view(shape);
    return channels_last && c.grid.size() == 2
               ? image.contiguous(at::MemoryFormat::ChannelsLast)
               : image;
  };
  const auto convolve = [=](const at::Tensor& x, const at::Tensor& w,
                            int64_t groups) {
    if (c.grid.size() == 2) {
      const int64_t pad = c.window / 2;
      return at::conv2d(x, w, {}, {1, 1}, at::IntArrayRef{pad, pad}, {1, 1},
                        groups);
    }
    const at::Tensor padded = at::constant_pad_nd(x, {c.window - 1, 0});
    return at::conv1d(padded, w, {}, {1}, at::IntArrayRef{0}, {1}, groups);
  };
  std::vector<int64_t> axes = {2};
  if (c.grid.size() == 2) axes.push_back(3);
  // Over all cells, or those so far.
  const auto sums = [=](const at::Tensor& x) {
    return c.causal ? x.cumsum(2) : x.sum(axes, true);
  };
  Side side = autograd_side(
      channels_last ? "naive channels-last" : "naive",
      {as_image(data.q), as_image(data.k), as_image(data.v), data.bias[0]},
      as_image(data.dy), [=](const Tensors& x) {
        const int64_t each = c.D / c.H;
        const at::Tensor e = shifted_exp(x[1], axes);
        const at::Tensor ev =
            (each == 1 ? e : e.repeat_interleave(each, 1)) * x[2];
        const at::Tensor kernel = x[3].expm1().unsqueeze(1);
        const at::Tensor wide =
            each == 1 ? kernel : kernel.repeat_interleave(each, 0);
        const at::Tensor num = convolve(ev, wide, c.D) + sums(ev);
        const at::Tensor den = convolve(e, kernel, c.H) + sums(e);
        return at::sigmoid(x[0]) * num /
               (each == 1 ? den : den.repeat_interleave(each, 1));
      });
  side.as_aft = [](Tensors x) {
    for (size_t i = 0; i < std::min<size_t>(x.size(), 4); ++i) {
      x[i] = x[i].flatten(2).transpose(1, 2);  // y, dq, dk, dv
    }
    return x;
  };
  return side;
}

/// The keys of each channel, [B, T, D].
at::Tensor keys_of(const Case& c, const Data& data) {
  return c.H == c.D ? data.k : data.k.repeat_interleave(c.D / c.H, 2);
}

}  // namespace

Side naive_side(const Case& c, const Data& data, bool channels_last) {
  if (c.variant == "simple") return naive_simple(c, data);
  if (c.variant == "conv") return naive_conv(c, data, channels_last);
  return naive_dense(c, data);
}

Side attention_side(const Case& c, const Data& data) {
  // The layout in which the mixer computes them.
  const at::Tensor qkv = at::cat({data.q, keys_of(c, data), data.v}, 2);
  return autograd_side("attention", {qkv}, data.dy, [=](const Tensors& x) {
    return nn::attend_all(x[0], kHeads, c.causal, {});
  });
}

Side naive_attention_side(const Case& c, const Data& data) {
  const int64_t width = c.D / kHeads;
  at::Tensor mask;
  if (c.causal) {
    mask = at::full({c.T, c.T}, kMinusInfinity, at::kFloat).triu_(1);
  }
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  return autograd_side(
      "naive attention", {data.q, keys_of(c, data), data.v}, data.dy,
      [=](const Tensors& x) {
        const auto heads = [&](const at::Tensor& y) {
          return y.view({c.B, c.T, kHeads, width}).transpose(1, 2);
        };
        at::Tensor scores =
            at::matmul(heads(x[0] * scale), heads(x[1]).transpose(2, 3));
        if (mask.defined()) scores.add_(mask);
        const at::Tensor y = at::matmul(scores.softmax(-1), heads(x[2]));
        return y.transpose(1, 2).reshape({c.B, c.T, c.D});
      });
}

Side gemm_side(const Case& c, const Data& data) {
  if (c.variant != "full") {
    throw std::invalid_argument("bench: rival gemm is for full, got " +
                                c.variant);
  }
  const at::Tensor ew = at::mm(data.bias[0], data.bias[1].t()).exp_();
  const auto panel = [&](const at::Tensor& a, const at::Tensor& b) {
    return at::cat({a, b}, 2).transpose(0, 1).reshape({c.T, -1}).contiguous();
  };
  const at::Tensor e = data.k.exp();
  const at::Tensor keys = panel(e * data.v, e);
  const at::Tensor rows = panel(data.dy, data.q);
  const int64_t T = c.T, block = c.causal ? std::min<int64_t>(128, T) : T;
  Side side;
  side.name = "gemm";
  side.run = [=](Pass pass) -> Tensors {
    const auto each_block = [&](const auto& f) {
      for (int64_t t = 0; t < T; t += block) f(t, std::min(t + block, T));
    };
    at::Tensor sums = at::empty_like(keys);
    each_block([&](int64_t t0, int64_t t1) {
      at::Tensor out = sums.slice(0, t0, t1);
      at::mm_out(out, ew.slice(0, t0, t1).slice(1, 0, t1),
                 keys.slice(0, 0, t1));
    });
    if (pass == Pass::kForward) return {sums};
    at::Tensor dkeys = at::empty_like(keys), dw = at::empty_like(ew);
    each_block([&](int64_t t0, int64_t t1) {
      const int64_t first = c.causal ? t0 : 0;
      at::Tensor out = dkeys.slice(0, t0, t1);
      at::mm_out(out, ew.slice(0, first).slice(1, t0, t1).t(),
                 rows.slice(0, first));
      out = dw.slice(0, t0, t1).slice(1, 0, t1);
      at::mm_out(out, rows.slice(0, t0, t1), keys.slice(0, 0, t1).t());
    });
    return {sums, dkeys, dw};
  };
  return side;
}

Side simple_side(const Case& c, const Data& data) {
  if (c.variant != "one_tap") {
    throw std::invalid_argument("bench: rival simple is for one_tap, got " +
                                c.variant);
  }
  return autograd_side(
      "simple", {data.q, keys_of(c, data), data.v}, data.dy,
      [](const Tensors& x) { return ops::simple(x[0], x[1], x[2]); });
}

Side make_rival(const std::string& name, const Case& c, const Data& data) {
  if (name == "naive") return naive_side(c, data);
  if (name == "naive channels-last") return naive_side(c, data, true);
  if (name == "attention") return attention_side(c, data);
  if (name == "naive attention") return naive_attention_side(c, data);
  if (name == "gemm") return gemm_side(c, data);
  if (name == "simple") return simple_side(c, data);
  throw std::invalid_argument(
      "bench: rival must be naive, naive channels-last, attention, naive "
      "attention, gemm or simple, got " +
      name);
}

}  // namespace aft::cli
