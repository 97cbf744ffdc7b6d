// Types and layouts of the arguments: half precisions, tensors that are not
// contiguous, parameters of another type, empty tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "tests/ops/calls.h"

namespace aft::ops {
namespace {

/// The call with all its values rounded to a type.
Call rounded(Call call, at::ScalarType type) {
  const auto round = [&](Numbers* x) {
    if (x->empty()) return;
    *x = numbers(tensor(*x, {static_cast<int64_t>(x->size())}, type));
  };
  Data& d = call.data;
  for (Numbers* x :
       {&d.q, &d.k, &d.v, &d.dy, &call.u, &call.v_pos, &call.op.w}) {
    round(x);
  }
  if (call.rank > 0) {
    call.op.w = reference::factorised(call.u.data(), call.v_pos.data(),
                                      call.Tq(), call.Tk(), call.rank);
  }
  return call;
}

// Sums are in float, so the only error is the rounding of the results.
TEST(Layout, HalfPrecisions) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (auto [type, precision] :
         {std::pair<at::ScalarType, double>{at::kHalf, 0x1p-11},
          {at::kBFloat16, 0x1p-8}}) {
      for (bool causal : {false, true}) {
        for (const Call& exact : calls(causal)) {
          SCOPED_TRACE(::testing::Message() << exact.name << ", " << type
                                            << ", composite " << composite);
          const Call call = rounded(exact, type);
          expect_close(outcome(call, type), expected(call), 1.1 * precision);
          Tensors t = tensors(call, type);
          t.requires_grad();
          const Tensor y = apply(call, t);
          EXPECT_EQ(y.scalar_type(), type);
          y.sum().backward();
          for (Tensor* x : t.differentiable()) {
            EXPECT_EQ(x->grad().scalar_type(), type);
          }
        }
      }
    }
  }
}

TEST(Layout, EveryGateInHalf) {
  const Call call = rounded(calls(true)[4], at::kHalf);
  for (const char* gate : {"sigmoid", "relu", "tanh", "gelu", "silu",
                           "softplus", "identity", "none"}) {
    const Tensors t = tensors(call, at::kHalf);
    const Tensors wide = tensors(call, at::kDouble);
    const Tensor y = apply(call, t, gate), want = apply(call, wide, gate);
    EXPECT_EQ(y.scalar_type(), at::kHalf);
    EXPECT_LE(relative_error(numbers(y), numbers(want)), 1.1 * 0x1p-11) << gate;
  }
}

TEST(Layout, LargeSumsInHalf) {
  // 4096 equal keys: a sum in half would stop at 2048.
  const Tensor k = at::zeros({1, 4096, 3}, at::kHalf);
  const Tensor v = at::ones({1, 4096, 3}, at::kHalf);
  for (bool causal : {false, true}) {
    Common common;
    common.causal = causal;
    const Tensor y = simple({}, k, v, common);
    EXPECT_TRUE(at::equal(y, at::ones_like(y)));
  }
}

// Parameters may be float if activations are half.
TEST(Layout, ParametersOfAnotherType) {
  for (const Call& exact : calls(true)) {
    SCOPED_TRACE(exact.name);
    const Call call = rounded(exact, at::kBFloat16);
    Tensors t = tensors(call, at::kBFloat16);
    const Tensors wide = tensors(call, at::kFloat);
    t.u = wide.u, t.v_pos = wide.v_pos, t.w = wide.w;
    t.requires_grad();
    const Tensor y = apply(call, t);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_LE(relative_error(numbers(y), expected(call).all.y), 1.1 * 0x1p-8);
    y.backward(t.dy);
    for (const Tensor& x : {t.u, t.v_pos, t.w}) {
      if (!x.defined()) continue;
      EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
    }
  }
}

/// The same values in another layout, as leaves.
Tensor transposed(const Tensor& x) {
  if (!x.defined() || x.dim() < 2) return x;
  return x.transpose(0, 1).contiguous().transpose(0, 1);
}
Tensor sliced(const Tensor& x) {
  if (!x.defined()) return x;
  std::vector<int64_t> shape = x.sizes().vec();
  for (int64_t& n : shape) n = 2 * n + 1;
  Tensor wide = at::empty(shape, x.options());
  if (x.is_floating_point()) wide.fill_(NAN);
  for (int64_t i = 0; i < x.dim(); ++i) {
    wide = wide.slice(i, 1, 2 * x.size(i) + 1, 2);
  }
  return wide.copy_(x);
}

void check_layout(const Call& call, Tensor (*layout)(const Tensor&)) {
  const Outcome want = outcome(call, at::kFloat);
  Tensors t = tensors(call, at::kFloat);
  for (Tensor* x : {&t.q, &t.k, &t.v, &t.mask, &t.u, &t.v_pos, &t.w, &t.dy}) {
    *x = layout(*x);
  }
  EXPECT_FALSE(t.k.is_contiguous() && t.v.is_contiguous());
  expect_identical(
      outcome(call, t,
              [](const Call& c, const Tensors& x) { return apply(c, x); }),
      want);
}

TEST(Layout, NotContiguous) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (bool causal : {false, true}) {
      for (const Call& call : calls(causal)) {
        SCOPED_TRACE(::testing::Message()
                     << call.name << ", composite " << composite);
        check_layout(call, transposed);
        check_layout(call, sliced);
      }
    }
  }
}

// One row expanded to the whole batch, and a gradient expanded from one value.
TEST(Layout, Expanded) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (const Call& call : calls(false)) {
      SCOPED_TRACE(call.name);
      Tensors t = tensors(call, at::kFloat);
      const Tensor q = t.q.narrow(0, 0, 1).clone().requires_grad_(true);
      const Tensor k = t.k.narrow(0, 0, 1).clone().requires_grad_(true);
      const Tensor v = t.v.narrow(2, 0, 1).clone().requires_grad_(true);
      t.q = q.expand_as(t.q), t.k = k.expand_as(t.k), t.v = v.expand_as(t.v);
      apply(call, t).sum().backward();
      Tensors copy = t;
      copy.q = t.q.detach().clone(), copy.k = t.k.detach().clone();
      copy.v = t.v.detach().contiguous().clone();
      copy.requires_grad();
      apply(call, copy).backward(at::ones_like(copy.q));
      EXPECT_TRUE(at::allclose(q.grad(), copy.q.grad().sum(0, true)));
      EXPECT_TRUE(
          at::allclose(k.grad(), copy.k.grad().sum(0, true), 1e-4, 1e-5));
      EXPECT_TRUE(at::allclose(v.grad(), copy.v.grad().sum(2, true)));
    }
  }
}

// Inputs are not modified.
TEST(Layout, InputsAreNotChanged) {
  for (const Call& call : calls(true)) {
    const Tensors t = tensors(call, at::kFloat),
                  same = tensors(call, at::kFloat);
    outcome(call, t,
            [](const Call& c, const Tensors& x) { return apply(c, x); });
    for (auto [a, b] : {std::pair<Tensor, Tensor>{t.q, same.q},
                        {t.k, same.k},
                        {t.v, same.v},
                        {t.u, same.u},
                        {t.w, same.w},
                        {t.mask, same.mask}}) {
      if (!a.defined()) continue;
      EXPECT_TRUE(at::equal(a, b));
    }
  }
}

// No batch, no positions, no channels, no keys.
TEST(Layout, EmptyTensors) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (bool causal : {false, true}) {
      struct Shape {
        int64_t B, Tq, Tk, D;
      };
      for (const Shape& s :
           {Shape{0, 5, 5, 4}, Shape{2, 0, 0, 4}, Shape{2, 5, 5, 0},
            Shape{2, 5, 0, 4}, Shape{2, 0, 5, 4}}) {
        SCOPED_TRACE(::testing::Message()
                     << s.B << " " << s.Tq << " " << s.Tk << " " << s.D
                     << ", composite " << composite << ", causal " << causal);
        Common common;
        common.causal = causal;
        const auto fresh = [](at::IntArrayRef shape) {
          return at::rand(shape).requires_grad_(true);
        };
        for (int op = 0; op < 4; ++op) {
          const Tensor q = fresh({s.B, s.Tq, s.D}), k = fresh({s.B, s.Tk, s.D}),
                       v = fresh({s.B, s.Tk, s.D}), u = fresh({s.Tq, 2}),
                       v_pos = fresh({s.Tk, 2}), w = fresh({s.Tq, s.Tk});
          const Tensor y =
              op == 0   ? simple(q, k, v, common)
              : op == 1 ? full(q, k, v, {u, v_pos, {}}, common)
                        : local(q, k, v, 2, {{}, {}, w}, op == 3, common);
          EXPECT_EQ(y.sizes(), q.sizes());
          EXPECT_TRUE(at::equal(y, at::zeros_like(y)));
          y.sum().backward();
          for (const Tensor& x : {q, k, v}) {
            ASSERT_TRUE(x.grad().defined());
            EXPECT_TRUE(at::equal(x.grad(), at::zeros_like(x)));
          }
        }
      }
      // conv: no batch.
      const Tensor v = at::rand({0, 6, 4}).requires_grad_(true);
      const Tensor k = at::rand({0, 6, 2}).requires_grad_(true);
      const Tensor w = at::rand({2, 3}).requires_grad_(true);
      Common common;
      common.causal = causal;
      const Tensor y = conv(v, k, v, w, {6}, false, common);
      EXPECT_EQ(y.sizes(), v.sizes());
      y.sum().backward();
      EXPECT_TRUE(at::equal(w.grad(), at::zeros_like(w)));
    }
  }
}

}  // namespace
}  // namespace aft::ops
