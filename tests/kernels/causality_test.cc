// Bit-exact causality: the outputs up to position t do not depend on anything
// after t.
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
};

/// Every causal operator over T positions.
std::vector<Named> operators(int64_t T, int64_t window, int64_t heads) {
  const Numbers w = Random(1).normals(T * T);
  const Numbers taps = Random(2).normals(heads * window);
  return {{"simple", simple()},
          {"full", full(w)},
          {"local", local(w, window)},
          {"local only", local(w, window, true)},
          {"conv", conv(taps, {T}, {window})},
          {"conv only", conv(taps, {T}, {window}, true)}};
}

enum Change {
  kOrdinary,
  kSpikes,
  kDeepKeys,
  kLargeValues,
  kLargest,
  kPadding,
  kNonFinite
};
using Changes = std::vector<Change>;
const Changes kMost = {kOrdinary,    kSpikes,  kDeepKeys,
                       kLargeValues, kPadding, kNonFinite};

/// Replaces everything after t with values of the kind `how`.
template <class T>
void change_after(int64_t t, Change how, Data* data, Operator* op) {
  const oracle::Shape& s = data->shape;
  Random random(3);
  const auto later = [&](Numbers& x, int64_t width, auto&& value) {
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) / width % s.Tk;
      if (at > t) x[i] = static_cast<T>(value());
    }
  };
  const auto non_finite = [&]() -> double {
    const double inf = std::numeric_limits<double>::infinity();
    const double values[] = {NAN, inf, -inf, random.normal()};
    return values[random.below(4)];
  };
  later(data->q, s.D,
        [&] { return how == kNonFinite ? non_finite() : random.normal(); });
  later(data->v, s.D, [&] {
    if (how == kNonFinite) return non_finite();
    if (how == kLargeValues) return 1e30 * random.normal();
    if (how == kLargest) {
      const double most = std::numeric_limits<T>::max();
      return random.below(2) == 0 ? most : -most;
    }
    return random.normal();
  });
  later(data->k, s.H, [&]() -> double {
    if (how == kSpikes) return 1e4 * random.below(2) + random.normal();
    if (how == kNonFinite) return non_finite();
    if (how == kDeepKeys) return -1e4 * random.below(2) + random.normal();
    if (how == kLargest) return FastPathLimits<T>::key * random.uniform();
    return random.normal();
  });
  if (how == kPadding) {
    for (int64_t i = 0; i < s.B * s.Tk; ++i) {
      if (i % s.Tk > t) data->padded[i] ^= 1;
    }
  }
  if (op->kind != Operator::kBand) return;
  // The biases of later rows, and of later keys.
  for (int64_t i = 0; i < s.Tq * s.Tk; ++i) {
    if (i / s.Tk <= t && i % s.Tk <= t) continue;
    const bool spike = how == kSpikes && random.below(4) == 0;
    op->w[i] = static_cast<float>(spike ? 1e3 : random.normal());
    if (how == kNonFinite && random.below(4) == 0) op->w[i] = non_finite();
  }
}

template <class T>
void check_causality(const Named& named, const Data& data, int64_t t,
                     const Changes& changes) {
  const oracle::Shape& s = data.shape;
  const Result before = run<T>(named.op, data);
  for (Change how : changes) {
    SCOPED_TRACE(::testing::Message()
                 << named.name << ", t " << t << ", change " << how);
    Data changed = data;
    Operator op = named.op;
    change_after<T>(t, how, &changed, &op);
    const Result after = run<T>(op, changed);
    for (int64_t b = 0; b < s.B; ++b) {
      const size_t at = b * s.Tq * s.D, n = (t + 1) * s.D;
      EXPECT_EQ(first_difference(before.y, after.y, at, n), -1);
    }
    // The change has an effect at all.
    EXPECT_NE(first_difference(before.y, after.y), -1);
  }
}

template <class T>
void check_all(const oracle::Shape& s, int64_t window,
               const std::vector<int64_t>& places, bool hostile,
               const Changes& changes = kMost) {
  Data data(s, {"", true, true, true}, 4), heads = data;
  // conv with half as many heads as channels
  heads.shape.H = s.D / 2;
  heads.k.resize(s.B * s.Tk * heads.shape.H);
  if (hostile) {
    Random random(5);
    data.k = testing::hostile_keys(random, s.B * s.Tk * s.D);
    heads.k = testing::hostile_keys(random, s.B * s.Tk * heads.shape.H);
  }
  for (const Named& named : operators(s.Tk, window, heads.shape.H)) {
    const bool conv = named.op.kind == Operator::kConv;
    for (int64_t t : places) {
      check_causality<T>(named, conv ? heads : data, t, changes);
    }
  }
}

TEST(Causality, Float) {
  for_each_target([] {
    check_all<float>({2, 25, 25, 10, 10}, 4, {0, 4, 11, 12, 23}, false);
    check_all<float>({2, 25, 25, 10, 10}, 4, {2, 17}, true);
    check_all<float>({1, 25, 25, 70, 70}, 40, {5, 16}, false);
  });
}

TEST(Causality, Double) {
  for_each_target([] {
    check_all<double>({2, 25, 25, 10, 10}, 4, {0, 4, 11, 12, 23}, false);
    check_all<double>({2, 25, 25, 10, 10}, 4, {2, 17}, true);
  });
}

// The largest finite values, with keys just within the limits of the fast path:
// their product overflows.
TEST(Causality, LargestValues) {
  for_each_target([] {
    check_all<float>({2, 25, 25, 10, 10}, 4, {0, 7, 14}, false, {kLargest});
    check_all<double>({2, 25, 25, 10, 10}, 4, {0, 7, 14}, false, {kLargest});
  });
}

// Long enough for several chunks of w and several blocks per sum.
TEST(Causality, LongSequences) {
  check_all<float>({1, 700, 700, 10, 10}, 530, {299, 511}, false);
}

// The outputs of a prefix of the sequence are those of the whole.
TEST(Causality, PrefixEqualsWholeSequence) {
  const int64_t T = 40;
  const Data data({1, T, T, 9, 9}, {"", true, false, true}, 6);
  const Numbers w = Random(7).normals(T * T);
  for_each_target([&] {
    for (int64_t window : {0, 1, 7, 100, -1}) {
      const auto op = [&](int64_t n) {
        if (window == 0) return simple();
        Numbers part(n * n);
        for (int64_t i = 0; i < n * n; ++i) part[i] = w[i / n * T + i % n];
        return local(part, window);
      };
      const Numbers whole = run<float>(op(T), data).y;
      for (int64_t n : {1, 2, 6, 7, 13, 39}) {
        Data prefix = data;
        prefix.shape.Tq = prefix.shape.Tk = n;
        for (Numbers* x : {&prefix.q, &prefix.k, &prefix.v, &prefix.dy}) {
          x->resize(n * 9);
        }
        EXPECT_EQ(
            first_difference(run<float>(op(n), prefix).y, whole, 0, n * 9), -1)
            << "window " << window << ", n " << n;
      }
    }
  });
}

}  // namespace
}  // namespace aft::kernels
