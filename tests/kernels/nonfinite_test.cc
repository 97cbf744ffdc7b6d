// Non-finite inputs: NaN and infinities in every input of every operator give
// what the oracle gives, and change nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

struct Named {
  std::string name;
  Operator op;
  int64_t heads;
};

constexpr int64_t kT = 30, kD = 10, kHeads = 5;
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<Named> operators(bool causal) {
  const Numbers u = Random(1).normals(kT * 3),
                v_pos = Random(2).normals(kT * 3);
  const Numbers w = Random(3).normals(kT * kT);
  const Numbers taps = Random(4).normals(kD * 15);
  const Numbers some(taps.begin(), taps.begin() + kHeads * 15);
  std::vector<Named> all = {
      {"simple", simple(), kD},
      {"full", full(w), kD},
      {"factorised",
       full(oracle::factorised(u.data(), v_pos.data(), kT, kT, 3)), kD},
      {"local", local(w, 4), kD},
      {"local only", local(w, 4, true), kD},
      {"conv", conv(taps, {kT}, {15}), kD},
      {"conv of heads", conv(some, {kT}, {15}), kHeads},
      {"conv only", conv(some, {kT}, {15}, true), kHeads}};
  if (causal) return all;
  for (bool only : {false, true}) {
    all.push_back({only ? "conv 2d only" : "conv 2d",
                   conv(some, {5, 6}, {3, 5}, only), kHeads});
  }
  return all;
}

Data make(const Named& named, const Mode& mode) {
  return {{2, kT, kT, kD, named.heads}, mode, 5};
}

enum Input { kQ, kK, kV, kW, kDy };
const char* const kNames[] = {"q", "k", "v", "w", "dy"};

Numbers& of(Input input, Operator* op, Data* data) {
  Numbers* const all[] = {&data->q, &data->k, &data->v, &op->w, &data->dy};
  return *all[input];
}

/// Elements of an input: the first, the last, and one in the middle of the
/// second batch row, or of the biases.
std::vector<size_t> places(const Numbers& x, int64_t width) {
  if (x.empty()) return {};
  const size_t middle = x.size() / 2 + 17 * width + width / 2;
  return {0, middle % x.size(), x.size() - 1};
}

void expect_like(const Result& got, const Result& want, double tolerance) {
  expect_class("y", got.y, want.y, tolerance);
  expect_class("dq", got.dq, want.dq, tolerance, true, 0);
  expect_class("dk", got.dk, want.dk, tolerance, true, want.k_scale);
  expect_class("dv", got.dv, want.dv, tolerance, true, 0);
  expect_class("dw", got.dw, want.dw, tolerance, true, want.w_scale);
}

/// What does not depend on the change from `before` to `after` (of the oracle)
/// is bit-identical, except for the sign of the zeros of masked keys.
void expect_unchanged(const char* name, const Numbers& a, const Numbers& b,
                      const Numbers& before, const Numbers& after) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (before[i] != after[i]) continue;
    ASSERT_EQ(a[i], b[i]) << name << "[" << i << "]";
  }
}

template <class T>
void check_bad(const Operator& clean_op, const Data& clean,
               const Result& before, const Operator& op, const Data& data,
               const Result& want, bool bits) {
  const Result got = run<T>(op, data);
  expect_like(got, want, sizeof(T) == 4 ? 4e-6 : 1e-13);
  if (!bits) return;
  const Result base = run<T>(clean_op, clean);
  expect_unchanged("y", base.y, got.y, before.y, want.y);
  expect_unchanged("dq", base.dq, got.dq, before.dq, want.dq);
  expect_unchanged("dk", base.dk, got.dk, before.dk, want.dk);
  expect_unchanged("dv", base.dv, got.dv, before.dv, want.dv);
  expect_unchanged("dw", base.dw, got.dw, before.dw, want.dw);
}

TEST(NonFinite, OneElement) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      const Data clean = make(named, mode);
      const Result before = expected(named.op, clean);
      for (const Input input : {kQ, kK, kV, kW, kDy}) {
        Operator op = named.op;
        Data data = clean;
        Numbers& x = of(input, &op, &data);
        const int64_t width = input == kW ? static_cast<int64_t>(x.size()) / kT
                              : input == kK ? named.heads
                                            : kD;
        for (const size_t at : places(x, width)) {
          for (const double value : {static_cast<double>(NAN), kInf, -kInf}) {
            SCOPED_TRACE(::testing::Message()
                         << named.name << ", " << mode << ", " << kNames[input]
                         << "[" << at << "] = " << value);
            const double old = x[at];
            x[at] = value;
            const Result want = expected(op, data);
            // Masks and infinite queries have finite effects, some of which
            // round to nothing.
            const bool bits =
                !(value == -kInf && (input == kK || input == kW)) &&
                !(std::isinf(value) && input == kQ);
            for_each_target([&] {
              check_bad<float>(named.op, clean, before, op, data, want, bits);
              if (at == 0) return;
              check_bad<double>(named.op, clean, before, op, data, want, bits);
            });
            x[at] = old;
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// Several at once, in any inputs, also with exponents that are far apart.
TEST(NonFinite, SeveralElements) {
  Random random(6);
  for (int round = 0; round < 20; ++round) {
    for (const Mode& mode : testing::modes()) {
      for (const Named& named : operators(mode.causal)) {
        Operator op = named.op;
        Data data = make(named, mode);
        if (round % 2 == 1) testing::put_spikes(random, data.k, -400, 8);
        std::string what;
        for (int64_t i = random.below(4); i >= 0; --i) {
          const Input input = static_cast<Input>(random.below(5));
          Numbers& x = of(input, &op, &data);
          if (x.empty()) continue;
          const double values[] = {NAN, kInf, -kInf, -kInf};
          const int64_t at = random.below(static_cast<int64_t>(x.size()));
          x[at] = values[random.below(4)];
          what += std::string(" ") + kNames[input] + "[" + std::to_string(at) +
                  "]=" + std::to_string(x[at]);
        }
        SCOPED_TRACE(named.name + ", " + mode.name + what);
        const Result want = expected(op, data);
        for_each_target([&] {
          expect_like(run<float>(op, data), want, 4e-6);
          expect_like(run<double>(op, data), want, 2e-11);
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

/// One NaN or infinity in any input.
void check_any(Random& random, Operator op, Data data) {
  const double values[] = {NAN, kInf, -kInf};
  for (const Input input : {kQ, kK, kV, kW, kDy}) {
    Numbers& x = of(input, &op, &data);
    if (x.empty()) continue;
    const int64_t at = random.below(static_cast<int64_t>(x.size()));
    const double old = x[at];
    x[at] = values[random.below(3)];
    SCOPED_TRACE(::testing::Message()
                 << kNames[input] << "[" << at << "] = " << x[at]);
    const Result want = expected(op, data);
    for_each_target([&] { expect_like(run<float>(op, data), want, 4e-6); });
    x[at] = old;
  }
}

TEST(NonFinite, Shapes) {
  Random random(7);
  for (const Mode& mode : testing::modes()) {
    for (const testing::Case& c : testing::cases()) {
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      const Data data(shape_of(c), mode, 8);
      const Numbers w = random.normals(c.Tq * c.Tk);
      check_any(random, simple(), data);
      check_any(random, full(w), data);
      if (c.window == 0) continue;
      for (bool only : {false, true})
        check_any(random, local(w, c.window, only), data);
    }
    for (const testing::ConvCase& c : testing::conv_cases()) {
      if (c.causal != mode.causal) continue;
      SCOPED_TRACE(::testing::Message() << c << ", " << mode);
      const Data data(shape_of(c), mode, 9);
      const Numbers w = random.normals(c.H * c.taps());
      for (bool only : {false, true})
        check_any(random, conv(w, c.grid, c.kernel, only), data);
    }
  }
}

}  // namespace
}  // namespace aft::kernels
