// PackedWeights against at::linear: types, layouts, several layers at once, and
// invalid arguments.
#include "aft/ops/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace aft::ops {
namespace {

using kernels::Then;

void expect_close(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_EQ(got.sizes(), expected.sizes());
  const double bound = expected.scalar_type() == at::kFloat ? 1e-5 : 1e-13;
  EXPECT_LE((got - expected).abs().max().item<double>(),
            bound * (1 + expected.abs().max().item<double>()));
}

template <class F>
void expect_error(const F& f, const std::string& expected) {
  try {
    f();
    ADD_FAILURE() << "no error: " << expected;
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find(expected), std::string::npos)
        << e.what();
  }
}

TEST(PackedWeights, IsALinearLayer) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto options = at::TensorOptions(type);
    const at::Tensor w = at::randn({50, 30}, options),
                     b = at::randn({50}, options);
    for (const bool biased : {false, true}) {
      const at::Tensor bias = biased ? b : at::Tensor();
      const PackedWeights layer(w, bias);
      ASSERT_TRUE(layer.defined());
      for (const std::vector<int64_t>& shape :
           std::vector<std::vector<int64_t>>{
               {30}, {1, 30}, {7, 30}, {3, 211, 30}, {2, 0, 30}}) {
        const at::Tensor x = at::randn(shape, options),
                         y = at::linear(x, w, bias);
        if (y.numel() == 0) {
          EXPECT_EQ(layer(x).sizes(), y.sizes());
          continue;
        }
        expect_close(layer(x), y);
        expect_close(layer(x, Then::kGelu), at::gelu(y));
        at::Tensor sum = at::randn_like(y);
        const at::Tensor before = sum.clone();
        layer.add(x, sum);
        expect_close(sum, before + y);
      }
      // Not contiguous.
      const at::Tensor x = at::randn({30, 9}, options).t();
      expect_close(layer(x), at::linear(x, w, bias));
    }
  }
}

TEST(PackedWeights, CopiesTheWeights) {
  at::Tensor w = at::randn({5, 4}), b = at::randn({5});
  const at::Tensor x = at::randn({3, 4}), y = at::linear(x, w, b);
  const PackedWeights layer(w, b);
  w.zero_(), b.zero_();
  expect_close(layer(x), y);
}

TEST(PackedWeights, SeveralLayersInOnePass) {
  for (const int64_t rows : {1, 95, 96, 97, 500}) {
    const at::Tensor x = at::randn({rows, 24});
    std::vector<at::Tensor> weights, biases;
    std::vector<PackedWeights> layers;
    std::vector<const PackedWeights*> all;
    for (const int64_t outputs : {24, 3, 40}) {
      weights.push_back(at::randn({outputs, 24}));
      biases.push_back(at::randn({outputs}));
      layers.emplace_back(weights.back(), biases.back());
    }
    for (const PackedWeights& layer : layers) all.push_back(&layer);
    const auto y = PackedWeights::together(x, all);
    ASSERT_EQ(y.size(), 3u);
    for (size_t i = 0; i < y.size(); ++i) {
      expect_close(y[i], at::linear(x, weights[i], biases[i]));
      EXPECT_TRUE(at::equal(y[i], layers[i](x)));
    }
  }
  EXPECT_TRUE(PackedWeights::together(at::randn({3, 4}), {}).empty());
}

TEST(PackedWeights, RejectsInvalidArguments) {
  const PackedWeights layer(at::randn({5, 4}), {}),
      other(at::randn({5, 3}), {});
  const char* where = "PackedWeights: x must be";
  expect_error([&] { layer(at::randn({2, 5})); }, where);
  expect_error([&] { layer(at::randn({})); }, where);
  expect_error([&] { layer(at::randn({2, 4}, at::kDouble)); }, where);
  expect_error(
      [&] {
        PackedWeights::together(at::randn({2, 4}), {&layer, &other});
      },
      where);
  at::Tensor narrow = at::zeros({2, 4}), turned = at::zeros({5, 2}).t();
  expect_error(
      [&] {
        layer.add(at::randn({2, 4}), narrow);
      },
      "into must be contiguous");
  expect_error(
      [&] {
        layer.add(at::randn({2, 4}), turned);
      },
      "into must be contiguous");
  const auto far = at::TensorOptions(at::kFloat).device(at::kMeta);
  expect_error([&] { layer(at::empty({2, 4}, far)); }, "on cpu, got Float");
  expect_error([&] { layer(at::Tensor()); }, "got nothing");
  expect_error([&] { PackedWeights()(at::zeros({2, 4})); }, "are not packed");
  at::Tensor wide = at::zeros({2, 5}, at::kDouble),
             away = at::empty({2, 5}, far);
  for (at::Tensor* into : {&wide, &away})
    expect_error(
        [&] {
          layer.add(at::zeros({2, 4}), *into);
        },
        "into must be contiguous Float [2, 5] on cpu");
  const at::Tensor w = at::zeros({5, 4});
  for (const at::Tensor& bias :
       {at::zeros({4}), at::zeros({5}, at::kDouble), at::empty({5}, far)})
    expect_error([&] { PackedWeights(w, bias); },
                 "bias must be Float [5] on cpu like weight");
  expect_error([&] { PackedWeights(at::zeros({5}), {}); },
               "weight must be [outputs, inputs]");
  // Types without a kernel are not packed.
  EXPECT_FALSE(PackedWeights(at::zeros({5, 4}, at::kHalf), {}).defined());
}

}  // namespace
}  // namespace aft::ops
