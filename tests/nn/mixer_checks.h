// Tools for the tests of mixers, and the checks that each mixer must pass.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "aft/nn/mixer.h"
#include "tests/nn/plain_mixer.h"

namespace aft::nn {

// ---- Tools ------------------------------------------------------------------

/// The largest difference; infinite if the sizes differ or one has a NaN.
inline double distance(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  const double x =
      (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
  return std::isnan(x) ? INFINITY : x;
}

inline bool is_finite(const Tensor& x) {
  return x.isfinite().all().item<bool>();
}

inline double largest(const Tensor& x) { return x.abs().max().item<double>(); }

/// Sets weights and biases far from their initial values.
inline void shake(torch::nn::Module& m) {
  torch::NoGradGuard no_grad;
  for (auto& p : m.parameters()) p.normal_(0, 0.5);
}

template <class M>
M shaken(M m, torch::Dtype type = torch::kDouble) {
  m->to(type);
  shake(*m);
  return m;
}

inline int64_t count(const torch::nn::Module& m) {
  int64_t n = 0;
  for (const auto& p : m.parameters()) n += p.numel();
  return n;
}

inline std::string printed(const torch::nn::Module& m) {
  std::ostringstream text;
  m.pretty_print(text);
  return text.str();
}

/// The message of the error that f throws.
inline std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "no error";
}

inline void expect_error(const std::function<void()>& f,
                         std::initializer_list<const char*> words) {
  const std::string text = message(f);
  for (const char* w : words)
    EXPECT_NE(text.find(w), std::string::npos) << "'" << w << "' in: " << text;
}

/// A mask with which some rows see no key.
inline Tensor some_padded(int64_t B, int64_t T) {
  Tensor mask = torch::rand({B, T}) < 0.3;
  mask[0].slice(0, 0, (T + 1) / 2).fill_(true);
  return mask;
}

/// bool [T], false for n positions from `first` on.
inline Tensor all_but(int64_t T, int64_t first, int64_t n) {
  Tensor kept = torch::ones({T}, torch::kBool);
  kept.narrow(0, first, n).fill_(false);
  return kept;
}

inline std::shared_ptr<Mixer> clone_of(const Mixer& m) {
  auto copy = std::dynamic_pointer_cast<Mixer>(m.clone());
  TORCH_CHECK(copy, "the clone is not a mixer");
  copy->train(m.is_training());
  return copy;
}

// ---- Checks -----------------------------------------------------------------

/// m(x, mask) equals `want` in double and in single precision. m remains in
/// single precision.
inline void expect_result(Mixer& m, const Tensor& x, const Tensor& mask,
                          const Tensor& want, double most = 1e-12,
                          double single = 1e-5) {
  m.to(torch::kDouble);
  EXPECT_LE(distance(m.forward(x.to(torch::kDouble), mask), want), most);
  m.to(torch::kFloat);
  EXPECT_LE(distance(m.forward(x.to(torch::kFloat), mask), want), single);
}

/// The gradients of y() in x and all parameters, in double, equal central
/// differences of plain() (default: y()), for every `every`-th element of x.
inline void expect_gradients(torch::nn::Module& m, Tensor x,
                             const std::function<Tensor()>& y,
                             int64_t every = 1,
                             std::function<Tensor()> plain = nullptr) {
  if (!plain) plain = y;
  m.zero_grad();
  x.requires_grad_(true);
  const Tensor g = torch::randn_like(x);
  (y() * g).sum().backward();
  const auto check = [&](const std::string& name, Tensor p, int64_t stride) {
    ASSERT_TRUE(p.grad().defined()) << name;
    const Numbers got = numbers(p.grad());
    const double h = 3e-6, scale = largest(p.grad());
    EXPECT_GT(scale, 1e-6) << name << " has no effect";
    torch::NoGradGuard no_grad;
    double* at = p.data_ptr<double>();
    for (int64_t i = 0; i < p.numel(); i += stride) {
      const double was = at[i];
      at[i] = was + h;
      const double more = (plain() * g).sum().item<double>();
      at[i] = was - h;
      const double less = (plain() * g).sum().item<double>();
      at[i] = was;
      EXPECT_NEAR(got[i], (more - less) / (2 * h),
                  std::min(1e-7, 1e-6 * scale + 1e-9))
          << name << " " << i;
    }
  };
  check("x", x, every);
  for (const auto& p : m.named_parameters()) check(p.key(), p.value(), 1);
}

/// Two functions that give the same result have the same gradients.
inline void expect_same_gradients(
    torch::nn::Module& m, const Tensor& x, double most,
    const std::function<Tensor(const Tensor&)>& one,
    const std::function<Tensor(const Tensor&)>& other) {
  const Tensor g = torch::randn_like(x);
  const auto gradients = [&](const auto& way) {
    m.zero_grad();
    const Tensor leaf = x.detach().clone().requires_grad_(true);
    way(leaf).backward(g);
    std::vector<Tensor> all{leaf.grad()};
    for (const auto& p : m.parameters()) all.push_back(p.grad().clone());
    return all;
  };
  const auto a = gradients(one), b = gradients(other);
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_LE(distance(a[i], b[i]), most) << i;
}

/// Changing x after t leaves y up to t bit-identical, and changes y after t.
inline void expect_causal(Mixer& m, const Tensor& x,
                          const std::vector<int64_t>& positions) {
  const Tensor y = m.forward(x);
  for (int64_t t : positions) {
    Tensor other = x.clone();
    other.slice(1, t + 1).normal_(3, 100);
    const Tensor z = m.forward(other);
    EXPECT_TRUE(torch::equal(y.slice(1, 0, t + 1), z.slice(1, 0, t + 1))) << t;
    EXPECT_FALSE(torch::equal(y.select(1, t + 1), z.select(1, t + 1))) << t;
  }
}

/// Repeated steps equal forward, in double and then in single precision. m and
/// a clone alternate; the second half is repeated with a copy of the stream. m
/// remains in single precision. elements: the number of elements that a stream
/// holds, initially and at its end; -1: any.
inline void expect_step_is_forward(Mixer& m, const Tensor& any,
                                   int64_t elements = -1) {
  for (const auto type : {torch::kDouble, torch::kFloat}) {
    m.to(type);
    const double most = type == torch::kDouble ? 1e-12 : 1e-5;
    const Tensor x = any.to(type), want = m.forward(x);
    const int64_t T = x.size(1);
    const auto twin = clone_of(m);
    EXPECT_TRUE(torch::equal(twin->forward(x), want));
    ops::Stream stream = m.start(x.size(0)), half;
    const int64_t bytes = stream.bytes();
    const auto step = [&](Mixer& mixer, int64_t t, ops::Stream& s) {
      const Tensor y = mixer.step(x.select(1, t), s);
      EXPECT_TRUE(torch::allclose(y, want.select(1, t), most, most))
          << type << ", T = " << T << " at " << t;
      EXPECT_FALSE(y.requires_grad());
    };
    for (int64_t t = 0; t < T; ++t) {
      if (t == T / 2) {
        half = stream;
        for (Tensor* s : {&half.sums, &half.ring_k, &half.ring_v})
          if (s->defined()) *s = s->clone();
      }
      step(t % 2 ? *twin : m, t, stream);
    }
    for (int64_t t = T / 2; t < T; ++t) step(t % 2 ? m : *twin, t, half);
    EXPECT_EQ(stream.position, T);
    EXPECT_EQ(half.position, T);
    if (elements < 0) continue;
    EXPECT_EQ(bytes, elements * static_cast<int64_t>(x.element_size()));
    EXPECT_EQ(stream.bytes(), bytes);
  }
}

/// forward and step of a packed clone give the same results.
inline void expect_packs(Mixer& m, const Tensor& x) {
  torch::NoGradGuard no_grad;
  const Tensor want = m.forward(x);
  const auto packed = clone_of(m);
  packed->pack_for_inference();
  EXPECT_LE(distance(packed->forward(x), want), 1e-5);
  ops::Stream stream = packed->start(x.size(0));
  for (int64_t t = 0; t < x.size(1); ++t)
    EXPECT_LE(distance(packed->step(x.select(1, t), stream), want.select(1, t)),
              1e-5)
        << t;
}

/// The contents of padded positions affect no others; a fully padded sequence
/// gives `bias` and has no gradient.
inline void expect_mask(Mixer& m, const Tensor& x, const Tensor& mask,
                        const Tensor& bias) {
  const Tensor other =
      torch::where(mask.unsqueeze(2), torch::randn_like(x) * 100, x);
  const Tensor kept = mask.logical_not();
  EXPECT_TRUE(torch::equal(m.forward(x, mask).index({kept}),
                           m.forward(other, mask).index({kept})));
  for (int64_t first : {int64_t{0}, x.size(0) - 1}) {
    Tensor none = torch::zeros(mask.sizes(), torch::kBool);
    none.slice(0, first).fill_(true);
    m.zero_grad();
    const Tensor in = x.detach().clone().requires_grad_(true);
    const Tensor y = m.forward(in, none), empty = y.slice(0, first);
    EXPECT_TRUE(torch::equal(empty, bias.expand_as(empty)));
    y.pow(2).sum().backward();
    EXPECT_EQ(largest(in.grad().slice(0, first)), 0);
    EXPECT_TRUE(is_finite(in.grad()));
    if (first > 0) {
      EXPECT_GT(largest(in.grad()[0]), 0);
    }
    for (const auto& p : m.named_parameters())
      EXPECT_TRUE(is_finite(p->grad())) << p.key();
  }
}

/// Masking positions that are not kept (bool [T]) equals removing them.
inline void expect_absent(Mixer& m, const Tensor& x, const Tensor& kept) {
  const Tensor at = kept.nonzero().squeeze(1);
  const Tensor mask = kept.logical_not().expand({x.size(0), x.size(1)});
  EXPECT_TRUE(torch::allclose(m.forward(x, mask).index_select(1, at),
                              m.forward(x.index_select(1, at)), 1e-12, 1e-12));
}

/// The result and all gradients are finite. Returns the result.
inline Tensor expect_finite(Mixer& m, Tensor x, const Tensor& mask = {}) {
  m.zero_grad();
  x.requires_grad_(true).mutable_grad() = Tensor();
  const Tensor y = m.forward(x, mask);
  y.sum().backward();
  EXPECT_TRUE(is_finite(y));
  EXPECT_TRUE(is_finite(x.grad()));
  for (const auto& p : m.named_parameters())
    EXPECT_TRUE(is_finite(p->grad())) << p.key();
  return y;
}

/// The result and gradient do not depend on the number of threads.
inline void expect_same_on_threads(Mixer& m, Tensor x, double most) {
  x.requires_grad_(true);
  const auto both = [&](int threads) {
    at::set_num_threads(threads);
    const Tensor y = m.forward(x);
    x.mutable_grad() = Tensor();
    y.pow(2).sum().backward();
    at::set_num_threads(1);
    return torch::cat({y.detach(), x.grad()});
  };
  const Tensor one = both(1);
  EXPECT_LE(distance(one, both(2)), most);
  EXPECT_LE(distance(one, both(5)), most);  // more threads than sequences
  EXPECT_TRUE(torch::equal(both(2), both(2)));
  c10::InferenceMode inference;
  at::set_num_threads(2);
  EXPECT_LE(distance(one.slice(0, 0, x.size(0)), m.forward(x)), most);
  at::set_num_threads(1);
}

/// Two steps of Adam change every parameter that is not among `still`.
inline void expect_parameters_move(Mixer& m, const Tensor& x,
                                   const std::vector<std::string>& still = {}) {
  std::vector<Tensor> before;
  for (const auto& p : m.parameters()) before.push_back(p.detach().clone());
  torch::optim::Adam adam(m.parameters(), 1e-2);
  for (int i = 0; i < 2; ++i) {
    adam.zero_grad();
    m.forward(x).pow(2).sum().backward();
    adam.step();
  }
  const auto now = m.named_parameters();
  for (size_t i = 0; i < before.size(); ++i)
    if (std::find(still.begin(), still.end(), now[i].key()) == still.end()) {
      EXPECT_FALSE(torch::equal(before[i], now[i].value()))
          << m.name() << " " << now[i].key();
    }
}

/// A clone gives the same result, shares no memory, and loads what m saves.
inline void expect_clones_and_saves(Mixer& m, const Tensor& x) {
  const Tensor y = m.forward(x);
  const auto copy = clone_of(m);
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
  {
    torch::NoGradGuard no_grad;
    for (auto& p : copy->parameters()) p.zero_();
    for (auto& p : copy->buffers()) p.zero_();
  }
  EXPECT_TRUE(torch::equal(m.forward(x), y)) << "a clone shares memory";
  EXPECT_FALSE(torch::equal(copy->forward(x), y));
  std::stringstream file;
  torch::serialize::OutputArchive out;
  m.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  copy->load(in);
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
}

/// reset() redraws all parameters and buffers, and adds none.
template <class M>
void expect_resets(M m, const Tensor& x) {
  const Tensor y = m->forward(x);
  const size_t parameters = m->parameters().size(),
               buffers = m->buffers().size();
  m->reset();
  EXPECT_EQ(m->parameters().size(), parameters);
  EXPECT_EQ(m->buffers().size(), buffers);
  EXPECT_FALSE(torch::equal(m->forward(x), y));
}

/// m works in a Sequential, where forward has one argument.
template <class M>
void expect_in_sequential(M m, int64_t dim) {
  torch::nn::Sequential net(torch::nn::Linear(4, dim), m);
  EXPECT_EQ(net->forward(torch::randn({2, 5, 4})).sizes(),
            (at::IntArrayRef{2, 5, dim}));
}

/// The exact error messages that all mixers with heads share.
/// make(heads, causal): a mixer with 12 channels.
inline void expect_usual_errors(
    const std::string& name,
    const std::function<std::shared_ptr<Mixer>(int64_t, bool)>& make,
    bool always_causal = false) {
  const auto expect = [&](const std::string& text,
                          const std::function<void()>& f) {
    EXPECT_EQ(message(f), name + ": " + text);
  };
  const auto m = make(3, always_causal), causal = make(3, true);
  expect("heads must divide dim = 12, got 5", [&] { make(5, true); });
  expect("x must be [B, T, dim] = [B, T, 12], got [2, 7, 5]", [&] {
    m->forward(torch::randn({2, 7, 5}));
  });
  const Tensor x = torch::randn({2, 7, 12});
  const std::string mask =
      "key_padding_mask must be bool [B, T] = [2, 7], got ";
  expect(mask + "Bool [2, 6]", [&] {
    m->forward(x, torch::zeros({2, 6}, torch::kBool));
  });
  expect(mask + "Float [2, 7]", [&] { m->forward(x, torch::zeros({2, 7})); });
  if (!always_causal)
    expect("streaming requires a causal layer", [&] { m->start(1); });
  expect("start: B must be 1 or more, got 0", [&] { causal->start(0); });
  ops::Stream stream = causal->start(2);
  expect("step: x must be [B, dim] = [B, 12], got [2, 5]", [&] {
    causal->step(torch::randn({2, 5}), stream);
  });
}

}  // namespace aft::nn
