// Gradients: finite differences in double, every gate against ATen, any subset
// of the inputs, without computing the others, and no second derivatives.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/ops/calls.h"

namespace aft::ops {
namespace {

const char* const kGates[] = {"sigmoid", "relu",     "tanh",     "gelu",
                              "silu",    "softplus", "identity", "none"};

double loss(const Call& call, const Tensors& t, const std::string& gate) {
  const at::NoGradGuard no_grad;
  return (apply(call, t, gate) * t.dy).sum().item<double>();
}

/// Central differences in every element of every differentiable tensor.
void check_differences(const Call& call, const std::string& gate) {
  SCOPED_TRACE(::testing::Message() << call.name << ", gate " << gate);
  Tensors t = tensors(call, at::kDouble);
  t.requires_grad();
  apply(call, t, gate).backward(t.dy);
  constexpr double kStep = 1e-5;
  for (Tensor* x : t.differentiable()) {
    if (gate == "none" && x == &t.q) {
      EXPECT_FALSE(x->grad().defined());
      continue;
    }
    const Tensor flat = x->detach().view({-1}), got = x->grad().view({-1});
    double* at = flat.data_ptr<double>();
    Numbers want(flat.numel());
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const double before = at[i];
      at[i] = before + kStep;
      const double up = loss(call, t, gate);
      at[i] = before - kStep;
      want[i] = (up - loss(call, t, gate)) / (2 * kStep);
      at[i] = before;
    }
    EXPECT_LE(relative_error(numbers(got), want, 1), 1e-8)
        << "argument " << (x - &t.q);
  }
}

/// Few elements, so that each can be varied.
Call shrunk(const Operator& op, int64_t T, int64_t D, int64_t H, bool causal,
            int64_t rank) {
  Call call{"", op, Data({2, T, T, D, H}, {"", causal, true, true}, 1)};
  if (rank > 0) factorise(&call, rank, 2);
  return call;
}

std::vector<Call> small_calls(bool causal) {
  const int64_t T = 7;
  const Numbers w = Random(3).normals(T * T), taps = Random(4).normals(2 * 9);
  const auto cut = [&](int64_t n) {
    return Numbers(taps.begin(), taps.begin() + 2 * n);
  };
  std::vector<Call> all = {
      shrunk(kernels::simple(), T, 3, 3, causal, 0),
      shrunk(kernels::full(w), T, 3, 3, causal, 0),
      shrunk(kernels::full(w), T, 3, 3, causal, 2),
      shrunk(kernels::local(w, 3), T, 3, 3, causal, 0),
      shrunk(kernels::local(w, 3), T, 3, 3, causal, 2),
      shrunk(kernels::local(w, 2, true), T, 3, 3, causal, 2),
      shrunk(kernels::conv(cut(3), {T}, {3}), T, 4, 2, causal, 0),
      shrunk(kernels::conv(cut(3), {T}, {3}, true), T, 4, 2, causal, 0)};
  if (!causal) {
    all.push_back(
        shrunk(kernels::conv(cut(9), {2, 3}, {3, 3}), 6, 4, 2, false, 0));
    all.push_back(
        shrunk(kernels::conv(cut(3), {1, 3, 2}, {1, 3, 1}), 6, 4, 2, false, 0));
  }
  const char* const names[] = {"simple",  "full dense", "full", "local dense",
                               "local",   "local only", "conv", "conv only",
                               "conv 2d", "conv 3d"};
  for (size_t i = 0; i < all.size(); ++i) all[i].name = names[i];
  return all;
}

TEST(Gradient, FiniteDifferences) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (bool causal : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << "composite " << composite << ", causal " << causal);
      for (const Call& call : small_calls(causal)) {
        check_differences(call, "sigmoid");
      }
    }
  }
}

TEST(Gradient, FiniteDifferencesOfEveryGate) {
  const auto some = small_calls(true);
  for (const char* gate : kGates) {
    check_differences(some[0], gate);
    check_differences(some[4], gate);
    check_differences(some[6], gate);
  }
}

double gate_of(const std::string& gate, double x) {
  if (gate == "sigmoid") return 1 / (1 + std::exp(-x));
  if (gate == "relu") return std::max(x, 0.0);
  if (gate == "tanh") return std::tanh(x);
  if (gate == "gelu") return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
  if (gate == "silu") return x / (1 + std::exp(-x));
  if (gate == "softplus") return std::log1p(std::exp(x));
  return gate == "none" ? 1 : x;
}

// gate(q) times the operator without q, forward and backward, computed by ATen.
TEST(Gradient, GatesAgainstATen) {
  using Function = std::function<Tensor(const Tensor&)>;
  const std::pair<const char*, Function> all[] = {
      {"sigmoid", [](const Tensor& x) { return at::sigmoid(x); }},
      {"relu", [](const Tensor& x) { return at::relu(x); }},
      {"tanh", [](const Tensor& x) { return at::tanh(x); }},
      {"gelu", [](const Tensor& x) { return at::gelu(x); }},
      {"silu", [](const Tensor& x) { return at::silu(x); }},
      {"softplus", [](const Tensor& x) { return at::softplus(x); }},
      {"identity", [](const Tensor& x) { return x * 1; }},
      {"none", [](const Tensor& x) { return at::ones_like(x); }}};
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (const Call& call : calls(false)) {
      for (const auto& [gate, function] : all) {
        SCOPED_TRACE(::testing::Message() << call.name << ", " << gate);
        Tensors t = tensors(call, at::kDouble),
                same = tensors(call, at::kDouble);
        t.requires_grad(), same.requires_grad();
        const Tensor y = apply(call, t, gate);
        y.backward(t.dy);
        const Tensor q = same.q;
        same.q = Tensor();
        const Tensor r = apply(call, same);
        const Tensor want = function(q) * r;
        want.backward(same.dy);
        EXPECT_LE(relative_error(numbers(y), numbers(want)), 1e-14);
        Numbers direct = numbers(r);
        for (size_t i = 0; i < direct.size(); ++i) {
          direct[i] *= gate_of(gate, call.data.q[i]);
        }
        EXPECT_LE(relative_error(numbers(y), direct), 1e-12);
        if (std::string(gate) == "none") {
          EXPECT_FALSE(t.q.grad().defined());
        } else {
          EXPECT_LE(relative_error(numbers(t.q.grad()), numbers(q.grad())),
                    1e-13);
        }
        EXPECT_LE(
            relative_error(numbers(t.k.grad()), numbers(same.k.grad()), 1),
            1e-13);
        EXPECT_LE(relative_error(numbers(t.v.grad()), numbers(same.v.grad())),
                  1e-13);
      }
    }
  }
}

// Any subset of the inputs may require gradients. These do not depend on the
// subset, and the other inputs get none.
TEST(Gradient, SomeInputsOnly) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (const char* gate : {"sigmoid", "tanh"}) {
      for (const Call& call : calls(true)) {
        SCOPED_TRACE(::testing::Message() << call.name << ", " << gate
                                          << ", composite " << composite);
        Tensors all = tensors(call, at::kFloat);
        all.requires_grad();
        apply(call, all, gate).backward(all.dy);
        const size_t n = all.differentiable().size();
        for (unsigned subset = 1; subset < 1u << n; ++subset) {
          Tensors t = tensors(call, at::kFloat);
          for (size_t i = 0; i < n; ++i) {
            t.differentiable()[i]->requires_grad_((subset >> i & 1) != 0);
          }
          apply(call, t, gate).backward(t.dy);
          for (size_t i = 0; i < n; ++i) {
            const Tensor got = t.differentiable()[i]->grad();
            ASSERT_EQ(got.defined(), (subset >> i & 1) != 0) << subset;
            if (!got.defined()) continue;
            EXPECT_TRUE(at::equal(got, all.differentiable()[i]->grad()))
                << "subset " << subset << ", argument " << i;
          }
        }
      }
    }
  }
}

TEST(Gradient, NoneRequired) {
  for (const Call& call : calls(false)) {
    SCOPED_TRACE(call.name);
    Tensors t = tensors(call, at::kFloat);
    const Tensor plain = apply(call, t);
    EXPECT_FALSE(plain.requires_grad());
    t.requires_grad();
    {
      const at::NoGradGuard no_grad;
      const Tensor y = apply(call, t);
      EXPECT_FALSE(y.requires_grad());
      EXPECT_TRUE(at::allclose(y, plain, 1e-6, 1e-6));
    }
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(at::allclose(apply(call, t), plain, 1e-6, 1e-6));
    }
    const Tensor recorded = apply(call, t);
    EXPECT_TRUE(recorded.requires_grad());
    EXPECT_TRUE(at::allclose(recorded, plain, 1e-6, 1e-6));
  }
}

// A retained graph can be used twice, and gradients accumulate.
TEST(Gradient, RetainedGraphs) {
  for (const Call& call : calls(true)) {
    SCOPED_TRACE(call.name);
    Tensors t = tensors(call, at::kFloat);
    t.requires_grad();
    const Tensor y = apply(call, t);
    y.backward(t.dy, /*retain_graph=*/true);
    const Tensor once = t.k.grad().clone();
    y.backward(t.dy);
    EXPECT_TRUE(at::equal(t.k.grad(), once * 2));
    EXPECT_THROW(y.backward(t.dy), c10::Error);
  }
}

// With create_graph, the gradients are the same; only their own derivatives are
// an error, whether or not the gradient of the result is a constant.
TEST(Gradient, OnlySecondDerivativesAreRejected) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (const Call& call : calls(true)) {
      SCOPED_TRACE(call.name);
      Tensors t = tensors(call, at::kFloat);
      t.requires_grad();
      std::vector<Tensor> inputs;
      for (Tensor* x : t.differentiable()) inputs.push_back(*x);
      const auto gradients = [&](const Tensor& dy, bool create_graph) {
        return torch::autograd::grad({apply(call, t)}, inputs, {dy},
                                     /*retain_graph=*/true, create_graph);
      };
      const auto plain = gradients(t.dy, false);
      for (const bool constant : {true, false}) {
        const Tensor dy = t.dy.clone().requires_grad_(!constant);
        const auto recorded = gradients(dy, true);
        ASSERT_EQ(recorded.size(), plain.size());
        for (size_t i = 0; i < plain.size(); ++i) {
          EXPECT_TRUE(at::equal(recorded[i], plain[i])) << i;
          EXPECT_TRUE(recorded[i].requires_grad()) << i;
        }
        // The gradient of the gate, which ATen computes on the composite path,
        // needs the operator's result, but not its gradients.
        for (size_t i = composite ? 1 : 0; i < plain.size(); ++i) {
          try {
            torch::autograd::grad({recorded[i].sum()}, {inputs[1]}, {},
                                  /*retain_graph=*/true);
            ADD_FAILURE() << "no error, argument " << i;
          } catch (const c10::Error& error) {
            const std::string message = error.what_without_backtrace();
            EXPECT_NE(message.find("aft::"), std::string::npos) << message;
            EXPECT_NE(message.find("second derivatives are not implemented"),
                      std::string::npos)
                << message;
          }
        }
      }
    }
  }
}

/// Counts the calls of ATen operators in all threads.
class Counter {
 public:
  Counter() {
    counts().clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f)
                                       -> std::unique_ptr<at::ObserverContext> {
          const std::lock_guard<std::mutex> lock(mutex());
          ++counts()[f.name()];
          return nullptr;
        }));
  }
  ~Counter() { at::removeCallback(handle_); }
  int64_t operator[](const std::string& name) const {
    const std::lock_guard<std::mutex> lock(mutex());
    return counts()[name];
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<std::string, int64_t>& counts() {
    static std::map<std::string, int64_t> all;
    return all;
  }
  at::CallbackHandle handle_;
};

// Nothing is returned for inputs that are frozen.
TEST(Gradient, FrozenInputsGetNone) {
  for (const Call& call : calls(true)) {
    SCOPED_TRACE(call.name);
    const size_t n = tensors(call, at::kFloat).differentiable().size();
    for (size_t only = 0; only < n; ++only) {
      Tensors t = tensors(call, at::kFloat);
      t.differentiable()[only]->requires_grad_(true);
      const Tensor y = apply(call, t);
      const auto all = (*y.grad_fn())({t.dy});
      ASSERT_GE(all.size(), n);
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_EQ(all[i].defined(), i == only) << i << ", only " << only;
    }
  }
}

// Gradients of biases are computed only if this backward pass needs them, and
// on the composite path also those of k and v. (The kernels always compute dq,
// dk and dv.)
TEST(Gradient, ComputesOnlyWhatIsNeeded) {
  for (bool composite : {false, true}) {
    std::optional<CompositeGuard> guard;
    if (composite) guard.emplace();
    for (const Call& call : calls(true)) {
      SCOPED_TRACE(call.name + (composite ? " composite" : ""));
      Tensors t = tensors(call, at::kFloat);
      t.requires_grad();
      const Tensor y = apply(call, t);
      // Calls of ATen for all gradients, and for that of one input.
      const auto count = [&](const std::vector<Tensor>& inputs,
                             std::initializer_list<const char*> names) {
        const Counter counter;
        torch::autograd::grad({y}, inputs, {t.dy}, /*retain_graph=*/true);
        int64_t sum = 0;
        for (const char* name : names) sum += counter[name];
        return sum;
      };
      std::vector<Tensor> all;
      for (Tensor* x : t.differentiable()) all.push_back(*x);
      const bool factors = t.u.defined(),
                 conv = call.op.kind == Operator::kConv,
                 biased = factors || t.w.defined();
      if (composite) {
        const auto products = [&](const std::vector<Tensor>& inputs) {
          return count(inputs, {"aten::bmm", "aten::baddbmm_"});
        };
        // dv takes one product per block, dk another, dw two more.
        EXPECT_EQ(2 * products({t.v}), products({t.k}));
        if (biased) {
          EXPECT_EQ(count({t.k, t.v}, {"aten::baddbmm_"}), 0);
          EXPECT_EQ(2 * products({t.k}), products(all));
          EXPECT_EQ(2 * products({all.back()}), products(all));
        }
      } else if (conv) {
        EXPECT_EQ(count(all, {"aten::empty_like"}), 4);
        EXPECT_EQ(count({t.q, t.k, t.v}, {"aten::empty_like"}), 3);
      } else if (biased) {
        const std::initializer_list<const char*> dw = {"aten::addmm_",
                                                       "aten::add_"};
        EXPECT_EQ(count({t.q, t.k, t.v}, dw), 0);
        EXPECT_GT(count({all.back()}, dw), 0);
        if (factors) {
          EXPECT_EQ(count({t.u}, dw) + count({t.v_pos}, dw), count(all, dw));
        }
      }
    }
  }
}

}  // namespace
}  // namespace aft::ops
