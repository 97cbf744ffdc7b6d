// Calls of operators, through ops.h or through the dispatcher, and the oracle's
// results.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aft/kernels/reference.h"
#include "aft/ops/ops.h"
#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::ops {

using at::Tensor;
using kernels::Data;
using kernels::Numbers;
using kernels::Operator;
using kernels::shape_of;
using testing::Mode;
using testing::Random;
using testing::relative_error;

/// An operator, its inputs, and factors of w where rank > 0.
struct Call {
  std::string name;
  Operator op;
  Data data;
  int64_t rank = 0;
  Numbers u = {}, v_pos = {};

  int64_t Tq() const { return data.shape.Tq; }
  int64_t Tk() const { return data.shape.Tk; }
};

/// w as u v_pos^T, both of `rank` columns.
inline void factorise(Call* call, int64_t rank, uint64_t seed) {
  Random random(seed);
  call->rank = rank;
  call->u = random.normals(call->Tq() * rank);
  call->v_pos = random.normals(call->Tk() * rank, 0.5);
  call->op.w = reference::factorised(call->u.data(), call->v_pos.data(),
                                     call->Tq(), call->Tk(), rank);
}

/// The results of a call: values of y and of the gradients, empty if absent.
struct Outcome {
  kernels::Result all;
  Numbers du, dv_pos;
};

inline Outcome expected(const Call& call) {
  Outcome out{kernels::expected(call.op, call.data), {}, {}};
  if (call.rank > 0) {
    out.du.assign(call.u.size(), 0.0);
    out.dv_pos.assign(call.v_pos.size(), 0.0);
    reference::factorised_backward(out.all.dw.data(), call.u.data(),
                                   call.v_pos.data(), call.Tq(), call.Tk(),
                                   call.rank, out.du.data(), out.dv_pos.data());
    out.all.dw.clear();
  }
  return out;
}

inline Tensor tensor(const Numbers& x, at::IntArrayRef shape,
                     at::ScalarType type) {
  Tensor out = at::empty(shape, at::kDouble);
  std::copy(x.begin(), x.end(), out.data_ptr<double>());
  return out.to(type);
}

inline Numbers numbers(const Tensor& x) {
  if (!x.defined()) return {};
  const Tensor y = x.detach().to(at::kDouble).contiguous();
  return {y.data_ptr<double>(), y.data_ptr<double>() + y.numel()};
}

struct Tensors {
  Tensor q, k, v, mask, u, v_pos, w, dy;  // undefined if absent

  std::vector<Tensor*> differentiable() {
    std::vector<Tensor*> all;
    for (Tensor* x : {&q, &k, &v, &u, &v_pos, &w}) {
      if (x->defined()) all.push_back(x);
    }
    return all;
  }
  Tensors& requires_grad() {
    for (Tensor* x : differentiable()) x->requires_grad_(true);
    return *this;
  }
};

inline Tensor mask_of(const Data& data) {
  if (data.padded.empty()) return {};
  const Tensor mask = at::empty({data.shape.B, data.shape.Tk}, at::kBool);
  std::copy(data.padded.begin(), data.padded.end(), mask.data_ptr<bool>());
  return mask;
}

inline Tensors tensors(const Call& call, at::ScalarType type) {
  const reference::Shape& s = call.data.shape;
  const Data& data = call.data;
  Tensors t;
  if (!data.q.empty()) t.q = tensor(data.q, {s.B, s.Tq, s.D}, type);
  t.k = tensor(data.k, {s.B, s.Tk, s.H}, type);
  t.v = tensor(data.v, {s.B, s.Tk, s.D}, type);
  t.dy = tensor(data.dy, {s.B, s.Tq, s.D}, type);
  t.mask = mask_of(data);
  if (call.rank > 0) {
    t.u = tensor(call.u, {s.Tq, call.rank}, type);
    t.v_pos = tensor(call.v_pos, {s.Tk, call.rank}, type);
  } else if (call.op.kind == Operator::kBand) {
    t.w = tensor(call.op.w, {s.Tq, s.Tk}, type);
  } else if (call.op.kind == Operator::kConv) {
    std::vector<int64_t> shape = call.op.kernel;
    shape.insert(shape.begin(), s.H);
    t.w = tensor(call.op.w, shape, type);
  }
  return t;
}

inline OptionalTensor maybe(const Tensor& x) {
  return x.defined() ? OptionalTensor(x) : OptionalTensor();
}

/// Through ops.h.
inline Tensor apply(const Call& call, const Tensors& t,
                    const std::string& gate = "sigmoid") {
  const Common common{maybe(t.mask), call.data.shape.causal, gate};
  const PositionBias bias{maybe(t.u), maybe(t.v_pos), maybe(t.w)};
  const Operator& op = call.op;
  if (op.kind == Operator::kSimple) return simple(maybe(t.q), t.k, t.v, common);
  if (op.kind == Operator::kConv) {
    return conv(maybe(t.q), t.k, t.v, t.w, op.grid, op.window_only, common);
  }
  if (op.window < 0) return full(maybe(t.q), t.k, t.v, bias, common);
  return local(maybe(t.q), t.k, t.v, op.window, bias, op.window_only, common);
}

/// Through the dispatcher, as from Python.
inline Tensor dispatch(const Call& call, const Tensors& t,
                       const std::string& gate = "sigmoid") {
  using c10::IValue;
  const Operator& op = call.op;
  const bool band = op.kind == Operator::kBand, wide = band && op.window < 0;
  const char* name = op.kind == Operator::kSimple ? "aft::simple"
                     : op.kind == Operator::kConv ? "aft::conv"
                     : wide                       ? "aft::full"
                                                  : "aft::local";
  const auto optional = [](const Tensor& x) {
    return x.defined() ? IValue(x) : IValue();
  };
  std::vector<IValue> stack = {optional(t.q), t.k, t.v};
  if (band && !wide) stack.push_back(op.window);
  if (band) {
    for (const Tensor& x : {t.u, t.v_pos, t.w}) stack.push_back(optional(x));
  }
  if (op.kind == Operator::kConv)
    stack.push_back(t.w), stack.push_back(op.grid);
  if (op.kind == Operator::kConv || (band && !wide)) {
    stack.push_back(op.window_only);
  }
  stack.push_back(optional(t.mask));
  stack.push_back(call.data.shape.causal);
  stack.push_back(gate);
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return stack.at(0).toTensor();
}

/// y and the gradients of sum(dy y) in all defined inputs.
template <class Apply>
Outcome outcome(const Call& call, Tensors t, const Apply& apply_) {
  t.requires_grad();
  const Tensor y = apply_(call, t);
  y.backward(t.dy);
  // With window 0, local is simple and w is not used.
  const auto gradient = [&](const Tensor& x) {
    if (!x.defined()) return Numbers();
    if (call.op.window == 0 && !x.grad().defined()) {
      return Numbers(x.numel(), 0.0);
    }
    return numbers(x.grad());
  };
  return {{numbers(y), gradient(t.q), gradient(t.k), gradient(t.v),
           gradient(t.w), 1, 1},
          gradient(t.u),
          gradient(t.v_pos)};
}

inline Outcome outcome(const Call& call, at::ScalarType type) {
  return outcome(call, tensors(call, type),
                 [](const Call& c, const Tensors& t) { return apply(c, t); });
}

/// `want` comes from expected().
inline void expect_close(const Outcome& got, const Outcome& want,
                         double tolerance) {
  kernels::expect_close(got.all, want.all, tolerance);
  // Sums of products with dw over the other axis.
  const double scale = want.all.w_scale;
  EXPECT_LE(relative_error(got.du, want.du, scale), tolerance) << "du";
  EXPECT_LE(relative_error(got.dv_pos, want.dv_pos, scale), tolerance)
      << "dv_pos";
}

inline void expect_identical(const Outcome& a, const Outcome& b) {
  kernels::expect_identical(a.all, b.all);
  EXPECT_EQ(kernels::first_difference(a.du, b.du), -1) << "du";
  EXPECT_EQ(kernels::first_difference(a.dv_pos, b.dv_pos), -1) << "dv_pos";
}

/// One small call of each operator in each of its forms.
inline std::vector<Call> calls(bool causal, bool padded = true,
                               bool gated = true) {
  const Mode mode{"", causal, padded, gated};
  const int64_t T = 20, D = 10, H = 5;
  const Data data({2, T, T, D, D}, mode, 21), heads({2, T, T, D, H}, mode, 22);
  const Numbers w = Random(23).normals(T * T);
  const Numbers taps = Random(24).normals(H * 15);
  std::vector<Call> all = {
      {"simple", kernels::simple(), data},
      {"full dense", kernels::full(w), data},
      {"full", kernels::full(w), data},
      {"local dense", kernels::local(w, 4), data},
      {"local", kernels::local(w, 4), data},
      {"local only", kernels::local(w, 4, true), data},
      {"conv", kernels::conv(taps, {T}, {15}), heads},
      {"conv only", kernels::conv(taps, {T}, {15}, true), heads}};
  for (int i : {2, 4, 5}) factorise(&all[i], 3, 25);
  if (!causal) {
    all.push_back({"conv 2d", kernels::conv(taps, {4, 5}, {3, 5}), heads});
    all.push_back(
        {"conv 3d", kernels::conv(taps, {2, 2, 5}, {3, 1, 5}), heads});
  }
  return all;
}

}  // namespace aft::ops
