// The composite path against the oracle: every variant, forward and backward;
// hostile inputs, bit-exact causality, memory.
#include "aft/ops/composite.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "aft/kernels/reference.h"
#include "tests/cases.h"

namespace aft::ops::composite {
namespace {

namespace oracle = aft::reference;
using at::Tensor;
using testing::Case;
using testing::ConvCase;
using testing::hostile_keys;
using testing::Random;
using Numbers = std::vector<double>;

enum class Kind { kSimple, kDense, kFactors, kConv };

struct CompositeProblem {
  std::string name;
  Kind kind = Kind::kSimple;
  oracle::Shape shape;
  int64_t window = 0, rank = 1;
  oracle::Grid grid;
  bool window_only = false;
  std::vector<uint8_t> padded;  // empty: none
  std::vector<int64_t> w_shape;
  Numbers k, v, w, u, v_pos, dr;
};

/// window: -1 is full, 0 simple.
CompositeProblem band_problem(const Case& c, Kind kind, int64_t window,
                              bool causal, bool window_only = false) {
  CompositeProblem p;
  const char* names[] = {" simple", " dense", " factors"};
  p.name = c.name + std::string(names[static_cast<int>(kind)]) + " window " +
           std::to_string(window) + (causal ? " causal" : "");
  p.kind = kind;
  p.shape = {c.B, c.Tq, c.Tk, c.D, c.D, causal, oracle::Gate::kNone};
  p.w_shape = {c.Tq, c.Tk};
  p.window = window;
  p.rank = c.rank;
  p.window_only = window_only;
  return p;
}

CompositeProblem conv_problem(const ConvCase& c, bool window_only) {
  CompositeProblem p;
  p.name = std::string("conv ") + c.name;
  p.kind = Kind::kConv;
  p.shape = {c.B, c.T(), c.T(), c.D, c.H, c.causal, oracle::Gate::kNone};
  p.grid = {c.grid, c.kernel, c.causal, window_only};
  p.w_shape = c.kernel;
  p.w_shape.insert(p.w_shape.begin(), c.H);
  p.window_only = window_only;
  return p;
}

CompositeProblem filled(CompositeProblem p, Random& random, bool hostile,
                        bool padded) {
  const auto [B, Tq, Tk, D, H, causal, gate] = p.shape;
  const auto draw = [&random, hostile](int64_t n) {
    return hostile ? testing::hostile_biases(random, n) : random.normals(n);
  };
  p.k = hostile ? hostile_keys(random, B * Tk * H)
                : random.normals(B * Tk * H, 2);
  p.v = random.normals(B * Tk * D);
  p.dr = random.normals(B * Tq * D);
  if (p.kind == Kind::kDense) p.w = draw(Tq * Tk);
  if (p.kind == Kind::kConv) p.w = draw(H * oracle::conv_taps(p.grid));
  if (p.kind == Kind::kFactors) {
    p.u = draw(Tq * p.rank);  // products of up to 1e3
    p.v_pos = random.normals(Tk * p.rank);
  }
  if (padded) p.padded = testing::padding_mask(random, B, Tk);
  p.name += std::string(padded ? " padded" : "") +
            (p.window_only ? " window_only" : "");
  return p;
}

/// Calls visit for all variants of all shapes, every other one with padding.
/// In addition to the shared table: several blocks of keys and of rows, with
/// tails.
void for_each_problem(
    bool hostile, const std::function<void(const CompositeProblem&)>& visit) {
  std::vector<Case> cases = testing::cases();
  cases.push_back({"blocks_300x2", 2, 300, 300, 2, 40, 5});
  cases.push_back({"blocks_150_400x1", 2, 150, 400, 1, 9, 3});
  cases.push_back({"blocks_400_150x2", 1, 400, 150, 2, 130, 3});
  std::vector<ConvCase> conv_cases = testing::conv_cases();
  conv_cases.push_back({"1d_300_k9", 2, {300}, {9}, 4, 2, false});
  conv_cases.push_back({"1d_causal_300_k200", 1, {300}, {200}, 2, 2, true});
  conv_cases.push_back({"2d_18x17_k5x3", 2, {18, 17}, {5, 3}, 4, 2, false});
  conv_cases.push_back(
      {"3d_5x9x8_k3x1x5", 1, {5, 9, 8}, {3, 1, 5}, 2, 1, false});
  Random random(hostile ? 2 : 1);
  bool padded = false;
  const auto add = [&](const CompositeProblem& p) {
    padded = !padded;
    visit(filled(p, random, hostile, padded));
  };
  for (const Case& c : cases) {
    for (const bool causal : {false, true}) {
      add(band_problem(c, Kind::kSimple, 0, causal));
      for (const Kind kind : {Kind::kDense, Kind::kFactors}) {
        add(band_problem(c, kind, -1, causal));
        add(band_problem(c, kind, c.window, causal));
        if (c.window == 0) continue;
        add(band_problem(c, kind, c.window, causal, true));
      }
    }
  }
  for (const ConvCase& c : conv_cases) {
    for (const int i : {0, 1, 2, 3}) add(conv_problem(c, i / 2 == 1));
  }
}

struct Result {
  Numbers r, lse, dk, dv, du, dv_pos, dw;
};

Numbers numbers(const Tensor& x) {
  if (!x.defined()) return {};
  const Tensor y = x.to(at::kDouble).contiguous();
  return {y.data_ptr<double>(), y.data_ptr<double>() + y.numel()};
}

/// The composite path. Without `gradients`, forward only.
Result run(const CompositeProblem& p, at::ScalarType type,
           bool gradients = true) {
  const auto [B, Tq, Tk, D, H, causal, gate] = p.shape;
  const auto tensor = [type](const Numbers& x, at::IntArrayRef shape) {
    if (x.empty()) return Tensor();
    return at::tensor(x, at::kDouble).view(shape).to(type);
  };
  const Tensor k = tensor(p.k, {B, Tk, H}), v = tensor(p.v, {B, Tk, D});
  const Tensor u = tensor(p.u, {Tq, p.rank}), w = tensor(p.w, p.w_shape);
  const Tensor v_pos = tensor(p.v_pos, {Tk, p.rank});
  const Bias bias{u, v_pos, w, p.window, p.window_only, p.grid.size};
  Tensor padded;
  if (!p.padded.empty()) {
    padded = at::empty({B, Tk}, at::kBool);
    std::copy(p.padded.begin(), p.padded.end(), padded.data_ptr<bool>());
  }
  const Reduced y = forward(k, v, padded, bias, Tq, causal);
  if (!gradients) return {numbers(y.r), numbers(y.lse), {}, {}, {}, {}, {}};
  const Gradients g = backward(tensor(p.dr, {B, Tq, D}), k, v, padded, bias,
                               causal, y.r, y.lse);
  return {numbers(y.r),  numbers(y.lse),    numbers(g.dk), numbers(g.dv),
          numbers(g.du), numbers(g.dv_pos), numbers(g.dw)};
}

Result expected(const CompositeProblem& p) {
  const auto [B, Tq, Tk, D, H, causal, gate] = p.shape;
  const oracle::Inputs in{nullptr, p.k.data(), p.v.data(),
                          p.padded.empty() ? nullptr : p.padded.data()};
  Numbers w = p.w;
  if (p.kind == Kind::kFactors) {
    w = oracle::factorised(p.u.data(), p.v_pos.data(), Tq, Tk, p.rank);
  }
  Result out;
  out.dw.assign(w.size(), 0.0);
  oracle::Bias bias = oracle::simple_bias();
  oracle::BiasGradient gradient;
  if (p.kind == Kind::kConv) {
    bias = oracle::conv_bias(w.data(), p.grid);
    gradient = oracle::conv_gradient(out.dw.data(), p.grid);
  } else if (p.kind != Kind::kSimple) {
    const int64_t window = p.window < 0 ? Tq + Tk : p.window;
    bias = oracle::local_bias(w.data(), Tk, window, p.window_only);
    gradient = oracle::local_gradient(out.dw.data(), Tk, window);
  }
  out.r.resize(B * Tq * D);
  out.dk.resize(p.k.size());
  out.dv.resize(p.v.size());
  oracle::forward(p.shape, in, bias, out.r.data());
  oracle::backward(p.shape, in, bias, p.dr.data(),
                   {nullptr, out.dk.data(), out.dv.data(), gradient});
  if (p.kind == Kind::kFactors) {
    out.du.assign(p.u.size(), 0.0);
    out.dv_pos.assign(p.v_pos.size(), 0.0);
    oracle::factorised_backward(out.dw.data(), p.u.data(), p.v_pos.data(), Tq,
                                Tk, p.rank, out.du.data(), out.dv_pos.data());
    out.dw.clear();
  }
  return out;
}

/// If the summands of a gradient cancel, as in a row with one key, the result
/// is only rounding. Errors are therefore relative to 1, or to a larger factor.
void expect_near(const CompositeProblem& p, at::ScalarType type,
                 const Result& want, double tolerance) {
  const Result got = run(p, type);
  const auto check = [&](const char* name, const Numbers& x, const Numbers& y,
                         const Numbers& factor) {
    double size = 1;
    for (double f : factor) size = std::max(size, std::abs(f));
    EXPECT_LE(testing::relative_error(x, y, size), tolerance)
        << p.name << " " << type << ": " << name;
  };
  check("r", got.r, want.r, {});
  check("dk", got.dk, want.dk, {});
  check("dv", got.dv, want.dv, {});
  check("dw", got.dw, want.dw, {});
  check("du", got.du, want.du, p.v_pos);
  check("dv_pos", got.dv_pos, want.dv_pos, p.u);
}

TEST(Composite, MatchesTheOracle) {
  for_each_problem(false, [](const CompositeProblem& p) {
    const Result want = expected(p);
    expect_near(p, at::kFloat, want, 1e-5);
    expect_near(p, at::kDouble, want, 1e-13);
  });
}

TEST(Composite, LseIsLogDen) {
  const Tensor k = at::randn({2, 150, 3}), w = at::randn({140, 150});
  const Bias bias{{}, {}, w, -1, false, {}};
  const Tensor want = (k.unsqueeze(1) + w.unsqueeze(-1)).logsumexp(2);
  EXPECT_TRUE(forward(k, k, {}, bias, 140, false).lse.allclose(want, 1e-5));
}

TEST(Composite, HostileKeysAndBiases) {
  for_each_problem(true, [](const CompositeProblem& p) {
    const Result want = expected(p);
    // A bias of 1e3 has a rounding error of 3e-5 in float, u v_pos several of
    // them, and its exp has that relative error.
    const double rounding = p.kind == Kind::kFactors ? 10 : 1;
    expect_near(p, at::kFloat, want, 1e-4 * rounding);
    expect_near(p, at::kDouble, want, 1e-12 * rounding);
  });
}

/// Keys around 1e4 have a spacing of 1e-3 in float. Only their differences
/// matter, so results must be as accurate as for keys around 0.
TEST(Composite, LargeKeysCostNoAccuracy) {
  Random random(3);
  for (const Kind kind : {Kind::kSimple, Kind::kDense}) {
    for (const int i : {0, 1, 2, 3}) {
      CompositeProblem p =
          filled(band_problem({"large", 2, 200, 200, 3, 0, 1}, kind,
                              kind == Kind::kSimple ? 0 : 20, i < 2),
                 random, false, true);
      const double offset = i % 2 == 0 ? 1e4 : -1e4;
      for (double& x : p.k) x = offset + std::round(1024 * x) / 1024;
      expect_near(p, at::kFloat, expected(p), 1e-5);
    }
  }
}

/// Batch row 0 has no keys, batch row 1 none before 140; rows from 159 on have
/// no key in the window.
TEST(Composite, RowsWithoutKeysAreZero) {
  Random random(4);
  CompositeProblem p = filled(band_problem({"no_keys", 2, 200, 150, 3, 0, 1},
                                           Kind::kDense, 10, true, true),
                              random, true, true);
  std::fill(p.padded.begin(), p.padded.begin() + 150 + 140, 1);
  std::fill(p.padded.begin() + 150 + 140, p.padded.end(), 0);
  expect_near(p, at::kFloat, expected(p), 1e-4);
  const Result got = run(p, at::kFloat);
  for (int64_t i = 0; i < 2 * 200 * 3; ++i) {
    const bool none = i < 200 * 3 + 140 * 3 || i >= 200 * 3 + 159 * 3;
    EXPECT_EQ(got.lse[i] == oracle::kMinusInfinity, none) << i;
    EXPECT_TRUE(got.r[i] == 0 || !none) << i;
  }
}

TEST(Composite, PaddedKeysAreNotRead) {
  Random random(5);
  CompositeProblem p = filled(
      band_problem({"padded", 3, 150, 150, 2, 0, 1}, Kind::kDense, 10, true),
      random, false, true);
  const Result want = run(p, at::kFloat);
  for (size_t i = 0; i < p.k.size(); ++i) {
    if (p.padded[i / 2] != 0) p.k[i] = p.v[i] = std::nan("");
  }
  const Result got = run(p, at::kFloat);
  EXPECT_EQ(got.r, want.r);
  EXPECT_EQ(got.dk, want.dk);
  EXPECT_EQ(got.dw, want.dw);
}

/// The position t of element i of n, in a tensor [batch, T, ...].
int64_t position(size_t i, size_t n, int64_t batch, int64_t T) {
  return static_cast<int64_t>(i / (n / batch / T)) % T;
}

/// Replaces everything after position t with hostile values.
CompositeProblem other_future(CompositeProblem p, int64_t t, Random& random) {
  const auto replace = [&](Numbers& x, int64_t batch, int64_t T) {
    const Numbers other = hostile_keys(random, static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      if (position(i, x.size(), batch, T) > t) x[i] = other[i];
    }
  };
  const oracle::Shape& s = p.shape;
  replace(p.k, s.B, s.Tk);
  replace(p.v, s.B, s.Tk);
  replace(p.u, 1, s.Tq);
  replace(p.v_pos, 1, s.Tk);
  if (p.kind == Kind::kDense) replace(p.w, 1, s.Tq), replace(p.w, s.Tq, s.Tk);
  for (size_t i = 0; i < p.padded.size(); ++i) {
    p.padded[i] ^= position(i, p.padded.size(), s.B, s.Tk) > t;
  }
  return p;
}

TEST(Composite, CausalityIsBitExact) {
  Random random(6);
  const Case shape{"future", 2, 400, 300, 3, 0, 4};
  const ConvCase conv{"future", 2, {300}, {7}, 4, 2, true};
  for (const int i : {0, 1, 2, 3}) {
    const bool hostile = i / 2 == 1, padded = i % 2 == 1;
    for (const CompositeProblem& empty :
         {band_problem(shape, Kind::kSimple, 0, true),
          band_problem(shape, Kind::kDense, -1, true),
          band_problem(shape, Kind::kDense, 40, true, true),
          band_problem(shape, Kind::kFactors, -1, true),
          band_problem(shape, Kind::kFactors, 40, true),
          conv_problem(conv, false), conv_problem(conv, true)}) {
      const CompositeProblem p = filled(empty, random, hostile, padded);
      const Result want = run(p, at::kFloat, false);
      for (const int64_t t : {0, 5, 126, 127, 128, 200}) {
        const Result got = run(other_future(p, t, random), at::kFloat, false);
        const auto changes = [&](const Numbers& x, const Numbers& y) {
          int64_t n = 0;
          for (size_t j = 0; j < x.size(); ++j) {
            if (position(j, x.size(), p.shape.B, p.shape.Tq) > t) continue;
            n += x[j] != y[j];
          }
          return n;
        };
        EXPECT_EQ(changes(got.r, want.r), 0) << p.name << ": r up to " << t;
        EXPECT_EQ(changes(got.lse, want.lse), 0) << p.name << " up to " << t;
        EXPECT_NE(got.r, want.r) << p.name << ": nothing was replaced";
      }
    }
  }
}

/// In bytes; key is "VmRSS:", or "VmHWM:" for the peak.
double memory(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word && word != key) continue;
  double kib = 0;
  file >> kib;
  return 1024 * kib;
}

/// Exits with 0 if both passes raise the peak by 1 to 30 tensors of [T, D].
void measure(const std::function<Bias(int64_t T)>& make_bias, int64_t H,
             bool causal) {
  const int64_t D = 64;
  double before = 0, tensor = 0;
  for (const int64_t T : {256, 8192}) {  // first small: loads all code
    const Bias bias = make_bias(T);
    const Tensor k = at::randn({1, T, H}), v = at::randn({1, T, D});
    tensor = static_cast<double>(v.nbytes());
    before = memory("VmRSS:");
    const Reduced y = forward(k, v, {}, bias, T, causal);
    backward(v, k, v, {}, bias, causal, y.r, y.lse);
  }
  const double tensors = (memory("VmHWM:") - before) / tensor;
  std::cerr << "the peak rose by " << tensors << " tensors\n";
  std::exit(tensors > 1 && tensors < 30 ? 0 : 1);
}

TEST(CompositeDeathTest, MemoryIsLinearInT) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a separate process
  const auto exits = ::testing::ExitedWithCode(0);
  const auto bias = [](int64_t window) {
    return [window](int64_t T) {
      const Tensor u = at::randn({T, 16}), v_pos = at::randn({T, 16});
      return Bias{u, v_pos, {}, window, false, {}};
    };
  };
  const auto conv = [](int64_t T) {
    return Bias{{}, {}, at::randn({8, 3, 5}), -1, false, {16, T / 16}};
  };
  EXPECT_EXIT(measure(bias(0), 64, true), exits, "");
  EXPECT_EXIT(measure(bias(-1), 64, false), exits, "");
  EXPECT_EXIT(measure(bias(32), 64, true), exits, "");
  EXPECT_EXIT(measure(conv, 8, false), exits, "");
}

}  // namespace
}  // namespace aft::ops::composite
