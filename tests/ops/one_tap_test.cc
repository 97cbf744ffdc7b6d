// aft::one_tap equals aft::conv with the one-hot w, both with its own kernels
// (if autograd does not record) and through conv; and invalid arguments.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "aft/ops/ops.h"

namespace aft::ops {
namespace {

using at::Tensor;

/// The one-hot kernel of `reach` on each axis (causal: up to the last tap);
/// heads whose offset is beyond it have no tap.
Tensor one_hot(const Tensor& w, const Tensor& offsets,
               const std::vector<int64_t>& reach, bool causal = false) {
  std::vector<int64_t> shape = {w.size(0)};
  for (int64_t r : reach) shape.push_back(causal ? r + 1 : 2 * r + 1);
  const Tensor hot = at::zeros(shape, at::kBool);
  for (int64_t h = 0; h < w.size(0); ++h) {
    Tensor place = hot[h];
    bool inside = true;
    for (size_t i = 0; i < reach.size() && inside; ++i) {
      const int64_t tap = offsets[h][i].item<int64_t>() + reach[i];
      inside = tap >= 0 && tap < shape[i + 1];
      if (inside) place = place[tap];
    }
    if (inside) place.fill_(true);
  }
  std::vector<int64_t> column(shape.size(), 1);
  column[0] = w.size(0);
  return hot.to(w.scalar_type()) * w.view(column);
}

struct Inputs {
  std::vector<int64_t> grid, reach;
  Tensor q, k, v, w, offsets;
  Common common;

  Inputs(std::vector<int64_t> sizes, int64_t D, int64_t H,
         at::ScalarType type = at::kFloat, int64_t B = 2)
      : grid(std::move(sizes)) {
    at::manual_seed(1);
    int64_t T = 1;
    for (int64_t n : grid) T *= n;
    const auto options = at::TensorOptions(type);
    q = at::randn({B, T, D}, options), v = at::randn({B, T, D}, options);
    k = at::randn({B, T, H}, options), w = at::randn({H}, options);
    std::vector<Tensor> columns;
    for (int64_t n : grid) {
      columns.push_back(at::randint(1 - n, n, {H}, at::kLong));
      reach.push_back(n - 1);
    }
    offsets = at::stack(columns, 1);
  }
  Tensor apply() const {
    return one_tap(q.defined() ? OptionalTensor(q) : OptionalTensor(), k, v, w,
                   offsets, grid, common);
  }
  Tensor by_conv() const {
    return conv(q.defined() ? OptionalTensor(q) : OptionalTensor(), k, v,
                one_hot(w, offsets, reach, common.causal), grid, false, common);
  }
};

void expect_close(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.sizes(), want.sizes());
  ASSERT_EQ(got.scalar_type(), want.scalar_type());
  const Tensor a = got.detach().to(at::kDouble),
               b = want.detach().to(at::kDouble);
  ASSERT_TRUE(a.isfinite().all().item<bool>());
  EXPECT_LE((a - b).abs().max().item<double>(),
            tolerance * (1e-3 + b.abs().max().item<double>()));
}

TEST(OneTap, IsConvWithTheOneHotKernel) {
  for (auto type : {at::kFloat, at::kDouble}) {
    const double tolerance = type == at::kFloat ? 4e-6 : 1e-13;
    for (const std::vector<int64_t>& grid :
         std::vector<std::vector<int64_t>>{{1}, {13}, {5, 7}, {3, 2, 4}}) {
      for (auto [D, H] :
           {std::pair<int64_t, int64_t>{5, 5}, {18, 6}, {40, 40}}) {
        SCOPED_TRACE(::testing::Message() << grid << ", " << D << ", " << H);
        Inputs in(grid, D, H, type);
        expect_close(in.apply(), in.by_conv(), tolerance);
        in.common.key_padding_mask = at::rand({2, in.k.size(1)}) < 0.4;
        expect_close(in.apply(), in.by_conv(), tolerance);
        in.common.key_padding_mask = at::ones({2, in.k.size(1)}, at::kBool);
        EXPECT_TRUE(at::equal(in.apply(), at::zeros_like(in.v)));
        in.common.key_padding_mask = {};
        for (const char* gate : {"relu", "tanh", "identity", "none"}) {
          in.common.gate = gate;
          expect_close(in.apply(), in.by_conv(), tolerance);
        }
        in.q = Tensor();
        expect_close(in.apply(), in.by_conv(), tolerance);
      }
    }
  }
}

TEST(OneTap, OffsetsBeyondTheGrid) {
  Inputs in({5, 7}, 8, 4);
  in.offsets =
      at::tensor({5, 0, 0, -7, -1000, 3, 4, 6}, at::kLong).view({4, 2});
  expect_close(in.apply(), in.by_conv(), 4e-6);
  // With autograd it runs conv, whose kernel has no tap for these.
  in.w.requires_grad_(true);
  const Tensor y = in.apply();
  expect_close(y, in.by_conv(), 4e-6);
  y.sum().backward();
  for (int64_t h : {0, 1, 2}) EXPECT_EQ(in.w.grad()[h].item<float>(), 0) << h;
  EXPECT_NE(in.w.grad()[3].item<float>(), 0);
}

TEST(OneTap, NoOffsetMeetsTheGrid) {
  Inputs in({6}, 4, 4);
  in.offsets.fill_(6);
  expect_close(in.apply(), simple(in.q, in.k, in.v), 4e-6);
  in.w.requires_grad_(true);
  in.apply().sum().backward();
  EXPECT_TRUE(at::equal(in.w.grad(), at::zeros_like(in.w)));
}

TEST(OneTap, LargeBiases) {
  for (double w : {20., -20., 21., -21., 1000., -1000.}) {
    SCOPED_TRACE(w);
    Inputs in({4, 5}, 12, 6);
    in.w.fill_(w), in.w[2] = 1;
    expect_close(in.apply(), in.by_conv(), 4e-6);
  }
}

TEST(OneTap, HalfPrecisions) {
  for (auto [type, precision] :
       {std::pair<at::ScalarType, double>{at::kHalf, 0x1p-10},
        {at::kBFloat16, 0x1p-7}}) {
    Inputs in({4, 5}, 12, 6, type);
    const Tensor y = in.apply();
    EXPECT_EQ(y.scalar_type(), type);
    expect_close(y, in.by_conv(), precision);
    in.w = in.w.to(at::kDouble);  // parameters may have any type
    expect_close(in.apply(), y, 0);
  }
}

TEST(OneTap, Causal) {
  Inputs in({17}, 12, 6);
  in.offsets = -in.offsets.abs();
  in.common.causal = true;
  expect_close(in.apply(), in.by_conv(), 4e-6);
  const Tensor before = in.apply();
  in.k.slice(1, 9).mul_(30), in.v.slice(1, 9).mul_(30);
  EXPECT_TRUE(at::equal(in.apply().slice(1, 0, 9), before.slice(1, 0, 9)));
}

TEST(OneTap, Gradients) {
  for (bool causal : {false, true}) {
    for (const char* gate : {"sigmoid", "silu"}) {
      Inputs in(causal ? std::vector<int64_t>{12} : std::vector<int64_t>{3, 4},
                10, 5, at::kDouble);
      if (causal) in.offsets = -in.offsets.abs();
      in.common = {at::rand({2, 12}) < 0.3, causal, gate};
      const std::vector<Tensor*> leaves = {&in.q, &in.k, &in.v, &in.w};
      const Tensor dy = at::randn_like(in.v);
      std::vector<Tensor> want;
      for (Tensor* x : leaves) x->requires_grad_(true);
      const Tensor quiet = [&] {
        const at::NoGradGuard guard;
        return in.apply();
      }();
      EXPECT_FALSE(quiet.requires_grad());
      const Tensor other = in.by_conv();
      other.backward(dy);
      for (Tensor* x : leaves) {
        want.push_back(x->grad().clone());
        x->mutable_grad() = Tensor();
      }
      const Tensor y = in.apply();
      expect_close(y, other, 1e-13);
      expect_close(quiet, other, 1e-13);
      y.backward(dy);
      for (size_t i = 0; i < leaves.size(); ++i) {
        SCOPED_TRACE(i);
        expect_close(leaves[i]->grad(), want[i], 1e-12);
      }
    }
  }
}

// A gate that is not fused is differentiated also if k, v and w are not.
TEST(OneTap, GradientOfTheGateAlone) {
  Inputs in({12}, 6, 6);
  in.common.gate = "tanh";
  in.q.requires_grad_(true);
  in.apply().sum().backward();
  const Tensor got = in.q.grad().clone();
  in.q.mutable_grad() = Tensor();
  in.by_conv().sum().backward();
  expect_close(got, in.q.grad(), 4e-6);
}

TEST(OneTap, OnAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const Inputs in({9, 11}, 72, 24);
  at::set_num_threads(1);
  const Tensor one = in.apply();
  for (int n : {1, 2, 5}) {
    at::set_num_threads(n);
    for (int again = 0; again < 3; ++again)
      EXPECT_TRUE(at::equal(in.apply(), one)) << n;
  }
  at::set_num_threads(before);
}

TEST(OneTap, Layouts) {
  Inputs in({4, 5}, 12, 6);
  const Tensor y = in.apply();
  for (Tensor* x : {&in.q, &in.k, &in.v})
    *x = x->transpose(0, 2).contiguous().transpose(0, 2);
  in.w = at::stack({in.w, in.w}, 1).select(1, 0);
  in.offsets = in.offsets.t().contiguous().t();
  EXPECT_TRUE(at::equal(in.apply(), y));
  const CompositeGuard composite;
  expect_close(in.apply(), y, 4e-6);
}

TEST(OneTap, EmptyBatch) {
  Inputs in({4, 5}, 12, 6, at::kFloat, 0);
  EXPECT_EQ(in.apply().sizes(), in.v.sizes());
}

TEST(OneTap, ThroughTheDispatcher) {
  const Inputs in({4, 5}, 12, 6);
  std::vector<c10::IValue> stack = {in.q,          in.k,       in.v,
                                    in.w,          in.offsets, in.grid,
                                    c10::IValue(), false,      "sigmoid"};
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("aft::one_tap", "")
      .callBoxed(&stack);
  EXPECT_TRUE(at::equal(stack.at(0).toTensor(), in.apply()));
}

void expect_error(const std::function<void(Inputs&)>& change,
                  const std::vector<std::string>& words) {
  Inputs in({2, 3}, 4, 2);
  change(in);
  try {
    in.apply();
    ADD_FAILURE() << "no error: " << words[0];
  } catch (const c10::Error& e) {
    const std::string message = e.what_without_backtrace();
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos)
          << "'" << word << "' is not in: " << message;
    EXPECT_EQ(message.rfind("aft::one_tap: ", 0), 0u) << message;
  }
}

TEST(OneTap, Errors) {
  expect_error([](Inputs& in) { in.grid = {}; }, {"grid", "1, 2 or 3", "0"});
  expect_error([](Inputs& in) { in.grid = {1, 1, 2, 3}; }, {"grid", "got 4"});
  expect_error([](Inputs& in) { in.grid = {2, 0}; }, {"grid", "[2, 0]"});
  expect_error(
      [](Inputs& in) {
        in.grid = {2, 2};
      },
      {"grid", "6 positions", "[2, 2]", "holds 4"});
  expect_error(
      [](Inputs& in) {
        in.q = at::ones({2, 5, 4});
      },
      {"q must have the T of k", "6", "5"});
  expect_error(
      [](Inputs& in) {
        in.k = at::ones({2, 6, 3});
      },
      {"heads", "3 does not divide 4"});
  expect_error([](Inputs& in) { in.w = at::ones({3}); },
               {"w must be [H] = [2]", "[3]"});
  expect_error(
      [](Inputs& in) {
        in.w = at::ones({2, 1});
      },
      {"w must be [H] = [2]", "[2, 1]"});
  expect_error([](Inputs& in) { in.w = Tensor(); }, {"w must be", "nothing"});
  expect_error([](Inputs& in) { in.w = at::ones({2}, at::kInt); },
               {"w must be a floating type", "Int"});
  expect_error([](Inputs& in) { in.offsets = at::zeros({2}, at::kLong); },
               {"offsets must be", "[2, 2]", "got [2]"});
  expect_error(
      [](Inputs& in) {
        in.offsets = at::zeros({2, 1}, at::kLong);
      },
      {"offsets must be", "[2, 2]", "[2, 1]"});
  expect_error([](Inputs& in) { in.offsets = Tensor(); },
               {"offsets must be", "nothing"});
  expect_error(
      [](Inputs& in) {
        in.offsets = at::zeros({2, 2}, at::kInt);
      },
      {"offsets must be int64", "Int"});
  expect_error([](Inputs& in) { in.common.causal = true; },
               {"causal needs a grid of 1 size", "got 2"});
  expect_error(
      [](Inputs& in) {
        in.grid = {6}, in.common.causal = true;
        in.offsets = at::tensor({-1, 3}, at::kLong).view({2, 1});
      },
      {"causal needs offsets of 0 or less", "got 3"});
  expect_error([](Inputs& in) { in.common.gate = "max"; },
               {"gate must be one of", "'max'"});
}

}  // namespace
}  // namespace aft::ops
