// Autocast: operators compute as without it, in their kernels and on the
// composite path, forward and backward; mixed types are promoted.
#include "tests/autocast.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <thread>

#include "aft/ops/pointwise.h"
#include "aft/ops/stream.h"
#include "tests/ops/calls.h"

namespace aft::ops {
namespace {

using testing::Autocast;

/// Rounding to bfloat16, of numbers around 1 and of sums of a few of them.
constexpr double kRounding = 0.02;

/// Calls f for all operators, on the kernels and on the composite path.
template <class F>
void for_each_call(const F& f) {
  for (const bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (const bool causal : {false, true}) {
      for (const Call& call : calls(causal)) {
        SCOPED_TRACE(call.name + (composite ? " composite" : ""));
        f(call);
      }
    }
  }
}

/// y and the gradients, with autocast in forward, in backward, or in both.
std::vector<Tensor> results(const Call& call, Tensors t, bool forward,
                            bool backward, const std::string& gate) {
  std::optional<Autocast> autocast;
  if (forward) autocast.emplace();
  t.requires_grad();
  const Tensor y = apply(call, t, gate);
  if (forward != backward)
    forward ? autocast.reset() : void(autocast.emplace());
  y.backward(t.dy.to(y.scalar_type()));
  std::vector<Tensor> all = {y.detach()};
  for (Tensor* x : t.differentiable()) all.push_back(x->grad());
  return all;
}

TEST(Autocast, OperatorsComputeAsWithoutIt) {
  for_each_call([](const Call& call) {
    for (const char* gate : {"sigmoid", "softplus"}) {
      const auto run = [&](bool forward, bool backward) {
        return results(call, tensors(call, at::kFloat), forward, backward,
                       gate);
      };
      const auto expected = run(false, false);
      for (const auto& [forward, backward] :
           {std::pair{true, false}, {false, true}, {true, true}}) {
        const auto got = run(forward, backward);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
      }
    }
  });
}

// The thread in which backward runs has its own settings.
TEST(Autocast, BackwardInAnotherThread) {
  for_each_call([](const Call& call) {
    const auto expected =
        results(call, tensors(call, at::kFloat), false, false, "sigmoid");
    Tensors t = tensors(call, at::kFloat);
    t.requires_grad();
    const Tensor y = apply(call, t);
    std::thread([&] {
      const Autocast autocast;
      y.backward(t.dy);
    }).join();
    for (size_t i = 1; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(t.differentiable()[i - 1]->grad(), expected[i]));
  });
}

TEST(Autocast, MixedTypesArePromoted) {
  for_each_call([](const Call& call) {
    const auto expected =
        results(call, tensors(call, at::kFloat), false, false, "sigmoid");
    // Which of q, k and v is narrow, as if computed by a linear layer.
    for (int narrow = 1; narrow < 8; ++narrow) {
      Tensors t = tensors(call, at::kFloat);
      if (narrow & 1) t.q = t.q.to(at::kBFloat16);
      if (narrow & 2) t.k = t.k.to(at::kBFloat16);
      if (narrow & 4) t.v = t.v.to(at::kBFloat16);
      if (narrow < 7) {
        EXPECT_THROW(apply(call, t), c10::Error) << "without autocast";
      }
      const auto got = results(call, t, true, true, "sigmoid");
      EXPECT_EQ(got[0].scalar_type(), narrow == 7 ? at::kBFloat16 : at::kFloat);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE(relative_error(numbers(got[i]), numbers(expected[i]), 1),
                  kRounding)
            << narrow << " " << i;
        if (i > 0) {
          EXPECT_EQ(got[i].scalar_type(),
                    t.differentiable()[i - 1]->scalar_type());
        }
      }
    }
  });
}

TEST(Autocast, OneTap) {
  const Tensor q = at::randn({2, 20, 10}), k = at::randn({2, 20, 5}),
               v = at::randn({2, 20, 10}), w = at::randn({5}),
               offsets = at::tensor({-2, 0, 1, 30, 3}, at::kLong).view({5, 1});
  const Tensor expected = one_tap(q, k, v, w, offsets, {20});
  const Autocast autocast;
  EXPECT_TRUE(at::equal(one_tap(q, k, v, w, offsets, {20}), expected));
  const Tensor mixed = one_tap(q.to(at::kBFloat16), k, v, w, offsets, {20});
  EXPECT_EQ(mixed.scalar_type(), at::kFloat);
  EXPECT_LE((mixed - expected).abs().max().item<double>(), kRounding);
}

TEST(Autocast, Steps) {
  Stream plain = start_stream(2, 10, 3, at::TensorOptions(at::kFloat)),
         other = start_stream(2, 10, 3, at::TensorOptions(at::kFloat));
  for (int64_t t = 0; t < 6; ++t) {
    const Tensor q = at::randn({2, 10}), k = at::randn({2, 10}),
                 v = at::randn({2, 10});
    const Tensor expected = step(plain, q, k, v, {});
    const Autocast autocast;
    EXPECT_TRUE(at::equal(step(other, q, k, v, {}), expected));
  }
}

/// f's result and its gradients in x, without and with autocast.
template <class F>
void expect_rounded(const std::vector<Tensor>& x, const F& f) {
  const auto run = [&]() -> std::vector<Tensor> {
    std::vector<Tensor> leaves, all;
    for (const Tensor& a : x) leaves.push_back(a.clone().requires_grad_(true));
    const Tensor y = f(leaves);
    all = torch::autograd::grad({y.to(at::kFloat).square().sum()}, leaves);
    all.push_back(y);
    return all;
  };
  const std::vector<Tensor> expected = run();
  std::vector<Tensor> got;
  {
    const Autocast autocast;
    got = run();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (i < x.size()) {
      EXPECT_EQ(got[i].scalar_type(), x[i].scalar_type());
    }
    const Tensor error = got[i].to(at::kFloat) - expected[i].to(at::kFloat);
    EXPECT_LE(error.norm().item<double>(),
              kRounding * expected[i].norm().item<double>())
        << i;
  }
}

TEST(Autocast, LayersBetweenOperators) {
  torch::manual_seed(1);
  const Tensor w1 = at::randn({33, 8}), b1 = at::randn({33}),
               w2 = at::randn({5, 33}), b2 = at::randn({5});
  for (const int64_t rows : {1, 7}) {
    const Tensor x = at::randn({rows, 8});
    expect_rounded({x, w1, b1, w2, b2}, [](const std::vector<Tensor>& a) {
      return mlp(a[0], a[1], a[2], a[3], a[4]);
    });
    expect_rounded({x, w1, b1}, [](const std::vector<Tensor>& a) {
      return affine(a[0], a[1], a[2]);
    });
    // Autocast only in backward.
    const auto grads = [&](bool autocast_in_backward) {
      std::vector<Tensor> leaves;
      for (const Tensor& a : {x, w1, b1, w2, b2})
        leaves.push_back(a.clone().requires_grad_(true));
      const Tensor y =
          mlp(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]);
      std::optional<Autocast> autocast;
      if (autocast_in_backward) autocast.emplace();
      return torch::autograd::grad({y}, leaves, {at::ones_like(y)});
    };
    const auto expected = grads(false), got = grads(true);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  }
  // Inputs that an autocast layer computed.
  const Tensor narrow = at::randn({7, 8}).to(at::kBFloat16);
  const Autocast autocast;
  EXPECT_EQ(mlp(narrow, w1, b1, w2, b2).scalar_type(), at::kBFloat16);
  const Tensor residual = at::randn({7, 8});
  for (const double p : {0., 0.5}) {
    const Tensor r = residual.clone().requires_grad_(true),
                 x = narrow.clone().requires_grad_(true);
    const Tensor y = dropout_add(r, x, p, 3);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_TRUE(
        at::equal(y, dropout_add(residual, narrow.to(at::kFloat), p, 3)));
    const auto grads = torch::autograd::grad({y.sum()}, {r, x});
    EXPECT_EQ(grads[0].scalar_type(), at::kFloat);
    EXPECT_EQ(grads[1].scalar_type(), at::kBFloat16);
  }
}

}  // namespace
}  // namespace aft::ops
