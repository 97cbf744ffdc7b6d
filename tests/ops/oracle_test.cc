// The operators against the oracle: every shape, forward and every gradient,
// through ops.h and the dispatcher, by the kernels and by the composite path.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/ops/calls.h"

namespace aft::ops {
namespace {

using testing::cases;
using testing::conv_cases;
using testing::modes;

constexpr double kFloat = 5e-6, kDouble = 1e-12;

/// Compares the kernels and the composite path with the oracle, in both types.
void check(const Call& call, double scale = 1) {
  SCOPED_TRACE(call.name);
  const Outcome want = expected(call);
  const auto both = [&](double more) {
    expect_close(outcome(call, at::kFloat), want, more * kFloat);
    expect_close(outcome(call, at::kDouble), want, more * kDouble);
  };
  {
    SCOPED_TRACE("kernels");
    both(scale);
  }
  const CompositeGuard guard;
  SCOPED_TRACE("composite");
  both(2 * scale);
}

TEST(Oracle, Shapes) {
  for (const testing::Case& c : cases()) {
    for (const Mode& mode : modes()) {
      // Without q, there is one row per key.
      if (!mode.gated && c.Tq != c.Tk) continue;
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      const Data data(shape_of(c), mode, 1);
      const Numbers w = Random(2).normals(c.Tq * c.Tk);
      check({"simple", kernels::simple(), data});
      check({"full dense", kernels::full(w), data});
      check({"local dense", kernels::local(w, c.window), data});
      check({"local only dense", kernels::local(w, c.window + 1, true), data});
      Call call{"full", kernels::full({}), data};
      factorise(&call, c.rank, 3);
      check(call, 4);  // w itself is rounded to float
      call.name = "local";
      call.op.window = std::max<int64_t>(c.window, 1);
      check(call, 4);
    }
  }
}

TEST(Oracle, ConvShapes) {
  for (const testing::ConvCase& c : conv_cases()) {
    for (const Mode& mode : modes()) {
      if (c.causal != mode.causal) continue;
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      const Data data(shape_of(c), mode, 4);
      const Numbers w = Random(5).normals(c.H * c.taps());
      for (bool only : {false, true}) {
        check({"conv", kernels::conv(w, c.grid, c.kernel, only), data});
      }
    }
  }
}

TEST(Oracle, HostileKeysAndBiases) {
  for (bool causal : {false, true}) {
    for (Call call : calls(causal)) {
      SCOPED_TRACE(::testing::Message() << call.name << ", " << causal);
      Random random(6);
      call.data.k = testing::hostile_keys(
          random, static_cast<int64_t>(call.data.k.size()));
      if (call.rank == 0) {
        call.op.w = testing::hostile_biases(
            random, static_cast<int64_t>(call.op.w.size()));
      } else {  // u v^T of +-1e3, without rounding
        for (double& x : call.u) x = random.below(8) == 0 ? 32 : 0.5;
        for (double& x : call.v_pos) x = random.below(8) == 0 ? -32 : 0.25;
        call.op.w = reference::factorised(call.u.data(), call.v_pos.data(),
                                          call.Tq(), call.Tk(), call.rank);
      }
      check(call, 40);
    }
  }
}

TEST(Oracle, ThroughTheDispatcher) {
  for (bool causal : {false, true}) {
    for (const Call& call : calls(causal)) {
      SCOPED_TRACE(::testing::Message() << call.name << ", " << causal);
      const Tensors t = tensors(call, at::kFloat);
      const auto one = outcome(
          call, t, [](const Call& c, const Tensors& x) { return apply(c, x); });
      const Tensors other = tensors(call, at::kFloat);
      const auto two = outcome(
          call, other,
          [](const Call& c, const Tensors& x) { return dispatch(c, x); });
      expect_identical(one, two);
      EXPECT_LE(relative_error(two.all.y, expected(call).all.y), 2e-5);
      EXPECT_EQ(dispatch(call, other, "none").sizes(), other.v.sizes());
    }
  }
}

// The guard applies to its thread and lifetime, and the two paths differ.
TEST(Oracle, TheGuardSwitchesPaths) {
  for (const Call& call : calls(true)) {
    SCOPED_TRACE(call.name);
    const Numbers fast = outcome(call, at::kFloat).all.y;
    Numbers composite;
    {
      const CompositeGuard outer;
      { const CompositeGuard inner; }
      composite = outcome(call, at::kFloat).all.y;
    }
    EXPECT_NE(kernels::first_difference(fast, composite), -1);
    EXPECT_EQ(kernels::first_difference(outcome(call, at::kFloat).all.y, fast),
              -1);
  }
}

TEST(Oracle, Identities) {
  for (bool causal : {false, true}) {
    const Data data({2, 19, 19, 6, 6}, {"", causal, true, true}, 7);
    const Numbers w = Random(8).normals(19 * 19);
    const auto y = [&](const Operator& op) {
      return outcome({"", op, data}, at::kDouble).all.y;
    };
    for (bool composite : {false, true}) {
      std::optional<CompositeGuard> guard;
      if (composite) guard.emplace();
      const Numbers simple_y = y(kernels::simple());
      EXPECT_LE(relative_error(y(kernels::local(w, 19)), y(kernels::full(w))),
                1e-14);
      EXPECT_LE(relative_error(y(kernels::local(w, 0)), simple_y), 1e-14);
      EXPECT_LE(relative_error(y(kernels::conv(Numbers(6 * 5, 0.0), {19}, {5})),
                               simple_y),
                1e-14);
    }
  }
}

// Bit-exact causality, on both paths, with gradients recorded or not.
TEST(Oracle, Causality) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (const Call& call : calls(true, false)) {
      for (bool record : {false, true}) {
        SCOPED_TRACE(::testing::Message() << call.name << ", composite "
                                          << composite << ", " << record);
        Tensors t = tensors(call, at::kFloat),
                changed = tensors(call, at::kFloat);
        for (Tensor* x : {&changed.q, &changed.k, &changed.v}) {
          x->narrow(1, 9, 11).normal_();
        }
        changed.k.narrow(1, 12, 3).fill_(1e4);
        changed.v.narrow(1, 13, 3).fill_(1e20);
        if (record) t.requires_grad(), changed.requires_grad();
        const Tensor a = apply(call, t), b = apply(call, changed);
        EXPECT_TRUE(at::equal(a.narrow(1, 0, 9), b.narrow(1, 0, 9)));
        EXPECT_FALSE(at::equal(a, b));
      }
    }
  }
}

TEST(Oracle, FullyMaskedRows) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (bool causal : {false, true}) {
      for (Call call : calls(causal)) {
        SCOPED_TRACE(::testing::Message() << call.name << composite);
        std::fill_n(call.data.padded.begin() + 20, 20, 1);
        Tensors t = tensors(call, at::kFloat);
        t.k[1].fill_(NAN), t.v[1].fill_(NAN);
        t.requires_grad();
        const Tensor y = apply(call, t);
        y.backward(t.dy);
        for (const Tensor& x : {y, t.q.grad(), t.k.grad(), t.v.grad()}) {
          EXPECT_TRUE(at::equal(x[1], at::zeros_like(x[1])));
          EXPECT_TRUE(x.isfinite().all().item<bool>());
        }
        for (const Tensor& x : {t.u, t.v_pos, t.w}) {
          if (!x.defined()) continue;
          EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft::ops
