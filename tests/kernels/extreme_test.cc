// Full, local and conv with values and gradients of any finite magnitude.
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
  const char* name;
  Operator op;
};

constexpr int64_t kT = 60, kD = 10;

/// conv has kD heads here, so that all operators take the same data.
std::vector<Named> operators(bool causal) {
  const Numbers w = Random(1).normals(kT * kT);
  const Numbers taps = Random(2).normals(kD * 15);
  std::vector<Named> all = {{"full", full(w)},
                            {"local", local(w, 7)},
                            {"local only", local(w, 7, true)},
                            {"conv", conv(taps, {kT}, {15})},
                            {"conv only", conv(taps, {kT}, {15}, true)}};
  if (!causal) all.push_back({"conv 2d", conv(taps, {6, 10}, {3, 5})});
  return all;
}

Data make(const Mode& mode) { return {{2, kT, kT, kD, kD}, mode, 3}; }

void scale(Numbers* x, double by) {
  for (double& value : *x) value = static_cast<float>(value * by);
}

TEST(Extreme, LargeValues) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      for (double size : {1e4, 1e7, 1e20, 1e30}) {
        SCOPED_TRACE(::testing::Message()
                     << named.name << ", " << mode << ", size " << size);
        Data data = make(mode);
        scale(&data.v, size);
        check(named.op, data);
      }
    }
  }
}

TEST(Extreme, AFewLargeValues) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      SCOPED_TRACE(::testing::Message() << named.name << ", " << mode);
      Data data = make(mode);
      for (size_t i = 5; i < data.v.size(); i += 97) {
        data.v[i] = static_cast<float>(data.v[i] * 1e30);
      }
      check(named.op, data);
    }
  }
}

TEST(Extreme, LargeGradients) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      SCOPED_TRACE(::testing::Message() << named.name << ", " << mode);
      Data data = make(mode);
      scale(&data.dy, 1e8);
      check(named.op, data);
      scale(&data.v, 1e20);  // and products of 1e28
      check(named.op, data);
    }
  }
}

TEST(Extreme, AFewLargeGradients) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      SCOPED_TRACE(::testing::Message() << named.name << ", " << mode);
      Data data = make(mode);
      for (size_t i = 3; i < data.dy.size(); i += 101) {
        data.dy[i] = static_cast<float>(data.dy[i] * 1e8);
      }
      check(named.op, data);
    }
  }
}

TEST(Extreme, SmallValuesAreNotLost) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      SCOPED_TRACE(::testing::Message() << named.name << ", " << mode);
      Data data = make(mode);
      scale(&data.v, 1e-20);
      scale(&data.dy, 1e-10);
      const Result want = expected(named.op, data);
      for_each_target([&] {
        const Result got = run<float>(named.op, data);
        EXPECT_LE(testing::relative_error(got.y, want.y), 4e-6);
        EXPECT_LE(testing::relative_error(got.dv, want.dv), 4e-6);
        EXPECT_LE(testing::relative_error(got.dk, want.dk), 2e-5);
        EXPECT_LE(testing::relative_error(got.dw, want.dw), 2e-5);
      });
    }
  }
}

// The largest float values, times exponentials at the limit of the fast path.
// Forward only: summands of the gradients overflow.
TEST(Extreme, LargestValuesForward) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      SCOPED_TRACE(::testing::Message() << named.name << ", " << mode);
      Data data = make(mode);
      for (double& x : data.v) x = x < 0 ? -3e38f : 3e38f;
      for (double& x : data.k) x = static_cast<float>(7 * x);
      const Result want = expected(named.op, data);
      for_each_target([&] {
        EXPECT_LE(testing::relative_error(run<float>(named.op, data).y, want.y),
                  4e-6);
      });
    }
  }
}

// One key with a huge value and everything else ordinary, so that gradients do
// not overflow.
TEST(Extreme, OneHugeValueBehindALargeKey) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      SCOPED_TRACE(::testing::Message() << named.name << ", " << mode);
      Data data = make(mode);
      scale(&data.dy, 1e-3);
      for (int64_t j : {9, 10, 27}) {
        data.v[j * kD + 1] = 1e36f;
        data.k[j * kD + 1] = 14;
      }
      check(named.op, data);
    }
  }
}

TEST(Extreme, HugeQueries) {
  for (const Mode& mode : testing::modes()) {
    for (const Named& named : operators(mode.causal)) {
      SCOPED_TRACE(::testing::Message() << named.name << ", " << mode);
      Data data = make(mode);
      for (size_t i = 0; i < data.q.size(); ++i) {
        const double factor = i % 3 == 0 ? 1e4 : i % 3 == 1 ? 30 : 1;
        data.q[i] = static_cast<float>(data.q[i] * factor);
      }
      check(named.op, data);
      Random random(4);
      data.k = testing::hostile_keys(random, 2 * kT * kD);
      check(named.op, data, kHostile);
    }
  }
}

}  // namespace
}  // namespace aft::kernels
