// The MLP, dropout with the residual and single rows against plain ATen calls:
// values, gradients, and invalid arguments.
#include "aft/ops/pointwise.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace aft::ops {
namespace {

using torch::Tensor;

/// n tensors that require gradients.
std::vector<Tensor> leaves(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> out;
  for (const Tensor& x : tensors)
    out.push_back(x.detach().clone().requires_grad_(true));
  return out;
}

template <class F>
std::vector<Tensor> result_and_gradients(const std::vector<Tensor>& arguments,
                                         const Tensor& dy, const F& f) {
  const std::vector<Tensor> x = leaves(arguments);
  const Tensor y = f(x);
  std::vector<Tensor> out = torch::autograd::grad({y}, x, {dy});
  out.insert(out.begin(), y.detach());
  return out;
}

void expect_close(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                  double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].sizes(), b[i].sizes()) << i;
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), tolerance) << i;
  }
}

TEST(Mlp, IsItsFormula) {
  torch::manual_seed(1);
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const auto& shape :
         {std::vector<int64_t>{1, 5}, {7, 5}, {2, 300, 5}, {5}}) {
      const auto random = [&](const std::vector<int64_t>& s) {
        return torch::randn(s, type);
      };
      std::vector<int64_t> result = shape;
      result.back() = 3;
      const std::vector<Tensor> x = {random(shape), random({33, 5}),
                                     random({33}), random({3, 33}),
                                     random({3})};
      const Tensor dy = random(result);
      expect_close(
          result_and_gradients(x, dy,
                               [](const std::vector<Tensor>& a) {
                                 return mlp(a[0], a[1], a[2], a[3], a[4]);
                               }),
          result_and_gradients(
              x, dy,
              [](const std::vector<Tensor>& a) {
                return torch::linear(
                    torch::gelu(torch::linear(a[0], a[1], a[2])), a[3], a[4]);
              }),
          type == torch::kFloat ? 1e-3 : 1e-11);
    }
  }
  const Tensor x = torch::randn({0, 5});  // empty
  EXPECT_EQ(mlp(x, torch::randn({4, 5}), torch::randn({4}),
                torch::randn({2, 4}), torch::randn({2}))
                .sizes(),
            (std::vector<int64_t>{0, 2}));
}

TEST(Mlp, RejectsInvalidArguments) {
  const auto x = torch::randn({2, 5}), w1 = torch::randn({4, 5}),
             b1 = torch::randn({4}), w2 = torch::randn({3, 4}),
             b2 = torch::randn({3});
  EXPECT_THROW(mlp(torch::randn({2, 6}), w1, b1, w2, b2), c10::Error);
  EXPECT_THROW(mlp(x, w1, torch::randn({5}), w2, b2), c10::Error);
  EXPECT_THROW(mlp(x, w1, b1, torch::randn({3, 5}), b2), c10::Error);
  EXPECT_THROW(mlp(x, w1, b1, w2, torch::randn({4})), c10::Error);
  EXPECT_THROW(mlp(x, w1, b1.to(torch::kDouble), w2, b2), c10::Error);
  try {
    mlp(torch::randn({2, 6}), w1, b1, w2, b2);
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("aft::mlp: expected x"),
              std::string::npos);
    EXPECT_NE(std::string(e.what()).find("[2, 6]"), std::string::npos);
  }
}

TEST(Affine, OneRowIsTheSame) {
  torch::manual_seed(2);
  const auto w = torch::randn({9, 7}), b = torch::randn({9});
  for (const auto& shape : {std::vector<int64_t>{1, 7}, {4, 7}, {1, 2, 7}}) {
    const auto x = torch::randn(shape);
    EXPECT_TRUE(
        torch::allclose(affine(x, w, b), torch::linear(x, w, b), 1e-5, 1e-6));
    EXPECT_TRUE(torch::allclose(affine(x, w), torch::linear(x, w), 1e-5, 1e-6));
  }
  EXPECT_THROW(affine(torch::randn({1, 6}), w, b), c10::Error);
}

TEST(DropoutAdd, DropsTheSameInBackward) {
  torch::manual_seed(3);
  const Tensor r = torch::randn({50, 40}), x = torch::randn({50, 40}),
               dy = torch::ones({50, 40});
  const auto out =
      result_and_gradients({r, x}, dy, [](const std::vector<Tensor>& a) {
        return dropout_add(a[0], a[1], 0.25, 11);
      });
  const Tensor kept = out[2];  // 0 or 1 / (1 - p)
  EXPECT_TRUE(torch::equal(out[1], dy));
  EXPECT_TRUE(torch::allclose(out[0], r + kept * x));
  const double share = (kept > 0).to(torch::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 0.75, 0.05);
  EXPECT_TRUE(
      torch::equal(dropout_add({}, x, 0.25, 11), dropout_add({}, x, 0.25, 11)));
  EXPECT_FALSE(
      torch::equal(dropout_add({}, x, 0.25, 11), dropout_add({}, x, 0.25, 12)));
  EXPECT_TRUE(torch::equal(dropout_add(r, x, 0, 11), r + x));
}

TEST(DropoutAdd, RejectsInvalidArguments) {
  const Tensor x = torch::randn({2, 3});
  EXPECT_THROW(dropout_add({}, x, 1, 0), c10::Error);
  EXPECT_THROW(dropout_add({}, x, -0.1, 0), c10::Error);
  EXPECT_THROW(dropout_add(torch::randn({3, 2}), x, 0.1, 0), c10::Error);
  EXPECT_THROW(dropout_add(x.to(torch::kDouble), x, 0.1, 0), c10::Error);
}

}  // namespace
}  // namespace aft::ops
