// Repeated steps equal forward: streams of simple, of local and conv (a ring of
// the last keys, and sums over those removed from it), and of full (a ring of
// all keys).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

Mode causal(bool gated = true) { return {"", true, false, gated}; }

/// y of one batch row of D channels, position by position.
template <class T>
Numbers stream_simple(const Data& data) {
  const int64_t n = data.shape.D;
  const auto q = as<T>(data.q), k = as<T>(data.k), v = as<T>(data.v);
  auto state = nans<T>(3 * n), y = nans<T>(data.dy.size());
  for (int64_t t = 0; t < data.shape.Tq; ++t) {
    simple_kernels<T>().step(n, t == 0, q.empty() ? nullptr : &q[t * n],
                             &k[t * n], &v[t * n], state.data(), &y[t * n]);
  }
  return Numbers(y.begin(), y.end());
}

/// The same with the last `window` keys in a ring of `capacity`, and biases
/// bias(t, j, c), equal in all channels unless per_channel.
struct RingWindow {
  int64_t window, capacity;
  bool window_only, per_channel;
  oracle::Bias bias;
};

template <class T>
Numbers stream_window(const Data& data, const RingWindow& a) {
  const int64_t n = data.shape.D;
  const auto q = as<T>(data.q), k = as<T>(data.k), v = as<T>(data.v);
  auto state = nans<T>(3 * n), y = nans<T>(data.dy.size());
  auto ring_k = nans<T>(a.capacity * n), ring_v = nans<T>(a.capacity * n);
  int64_t first = 0, count = 0;
  bool has_past = false;
  for (int64_t t = 0; t < data.shape.Tq; ++t) {
    if (count == a.window) {  // removes the oldest
      if (!a.window_only) {
        simple_kernels<T>().step(n, !has_past, nullptr, &ring_k[first * n],
                                 &ring_v[first * n], state.data(), nullptr);
        has_past = true;
      }
      first = (first + 1) % a.capacity, --count;
    }
    const int64_t slot = (first + count++) % a.capacity;
    std::copy_n(&k[t * n], n, &ring_k[slot * n]);
    std::copy_n(&v[t * n], n, &ring_v[slot * n]);
    std::vector<T> w;
    for (int64_t j = t - count + 1; a.bias && j <= t; ++j) {
      for (int64_t c = 0; c < (a.per_channel ? n : 1); ++c) {
        w.push_back(static_cast<T>(a.bias(t, j, c)));
      }
    }
    simple_kernels<T>().window_step(
        {n, count, first, a.capacity, has_past, q.empty() ? nullptr : &q[t * n],
         ring_k.data(), ring_v.data(), state.data(),
         a.bias ? w.data() : nullptr, a.per_channel, &y[t * n]});
  }
  return Numbers(y.begin(), y.end());
}

template <class T>
double tolerance(bool hostile) {
  return sizeof(T) == 4 ? 4e-6 : hostile ? 2e-11 : 1e-13;
}

/// Against the oracle, and against forward.
template <class T>
void expect_forward(const Numbers& y, const Operator& op, const Data& data,
                    bool hostile) {
  EXPECT_LE(testing::relative_error(y, expected(op, data).y),
            tolerance<T>(hostile));
  EXPECT_LE(testing::relative_error(y, run<T>(op, data).y),
            tolerance<T>(hostile));
}

Data make(int64_t T, int64_t D, bool gated, bool hostile) {
  Data data({1, T, T, D, D}, causal(gated), 1);
  Random random(2);
  if (hostile) data.k = testing::hostile_keys(random, T * D);
  return data;
}

template <class T>
void check_simple() {
  for (int64_t D : {1, 3, 8, 17, 64, 130}) {
    for (bool gated : {true, false}) {
      for (bool hostile : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "D " << D << ", " << hostile);
        const Data data = make(50, D, gated, hostile);
        expect_forward<T>(stream_simple<T>(data), simple(), data, hostile);
        // Only the state is kept, so the results are bit-identical.
        EXPECT_EQ(
            first_difference(stream_simple<T>(data), run<T>(simple(), data).y),
            -1);
      }
    }
  }
}

TEST(Step, SimpleIsForward) {
  for_each_target([] {
    check_simple<float>();
    check_simple<double>();
  });
}

// One step with y, many without: the state is the same.
TEST(Step, WithoutAnOutput) {
  for_each_target([] {
    const int64_t n = 70;
    Random random(3);
    const auto k = as<float>(random.normals(n)),
               v = as<float>(random.normals(n));
    auto with = nans<float>(3 * n), without = with, y = nans<float>(n);
    const auto& kernels = simple_kernels<float>();
    for (int i = 0; i < 3; ++i) {
      kernels.step(n, i == 0, nullptr, k.data(), v.data(), with.data(),
                   y.data());
      kernels.step(n, i == 0, nullptr, k.data(), v.data(), without.data(),
                   nullptr);
      EXPECT_EQ(with, without);
    }
    // Three equal values: their average is the value.
    EXPECT_LE(testing::relative_error(y, Numbers(v.begin(), v.end())), 4e-7);
  });
}

template <class T>
void check_local() {
  const int64_t T_ = 50;
  for (int64_t D : {1, 5, 8, 20}) {
    for (int64_t window : {1, 2, 7, 49, 50, 64}) {
      for (bool hostile : {false, true}) {
        for (bool only : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << "D " << D << ", window " << window << ", hostile "
                       << hostile << ", only " << only);
          const Data data = make(T_, D, window != 2, hostile);
          Random random(4);
          const Numbers w = hostile ? testing::hostile_biases(random, T_ * T_)
                                    : random.normals(T_ * T_);
          const Operator op = local(w, window, only);
          for (int64_t capacity : {window, window + 3}) {
            const Numbers y = stream_window<T>(
                data, {window, capacity, only, false,
                       oracle::local_bias(w.data(), T_, window, only)});
            expect_forward<T>(y, op, data, hostile);
          }
        }
      }
    }
  }
}

TEST(Step, LocalIsForward) {
  for_each_target([] {
    check_local<float>();
    check_local<double>();
  });
}

TEST(Step, FullIsForward) {
  for_each_target([] {
    for (bool hostile : {false, true}) {
      const Data data = make(50, 9, true, hostile);
      const Numbers w = Random(5).normals(50 * 50);
      const Numbers y = stream_window<float>(
          data, {50, 50, false, false, oracle::full_bias(w.data(), 50)});
      expect_forward<float>(y, full(w), data, hostile);
    }
  });
}

// Spikes of keys that are cancelled by the biases. A float of 1000 has a
// resolution of 6e-5, which limits the accuracy of the exponents.
TEST(Step, KeysAndBiasesThatCancel) {
  for_each_target([] {
    Data data = make(50, 9, true, false);
    Numbers w = Random(8).normals(50 * 50);
    for (int64_t j = 3; j < 50; j += 5) {
      for (int64_t t = 0; t < 50; ++t) {
        w[t * 50 + j] = static_cast<float>(w[t * 50 + j] - 1000);
      }
      for (int64_t c = 0; c < 9; ++c) {
        data.k[j * 9 + c] = static_cast<float>(data.k[j * 9 + c] + 1000);
      }
    }
    const RingWindow ring{50, 50, false, false,
                          oracle::full_bias(w.data(), 50)};
    const Numbers want = expected(full(w), data).y;
    EXPECT_LE(testing::relative_error(stream_window<float>(data, ring), want),
              1e-4);
    EXPECT_LE(testing::relative_error(stream_window<double>(data, ring), want),
              1e-12);
  });
}

TEST(Step, WithoutBiasesIsSimple) {
  for_each_target([] {
    const Data data = make(50, 9, true, true);
    const Numbers y = stream_window<float>(data, {6, 6, false, false, {}});
    expect_forward<float>(y, simple(), data, true);
  });
}

// Causal conv: biases per channel.
TEST(Step, ConvIsForward) {
  for_each_target([] {
    for (int64_t taps : {1, 4, 60}) {
      for (bool only : {false, true}) {
        for (bool hostile : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "taps " << taps);
          const Data data = make(50, 11, true, hostile);
          const Numbers w = Random(6).normals(11 * taps);
          const oracle::Grid grid{{50}, {taps}, true, only};
          const RingWindow window{taps, taps, only, true,
                                  oracle::conv_bias(w.data(), grid)};
          const Operator op = conv(w, {50}, {taps}, only);
          expect_forward<float>(stream_window<float>(data, window), op, data,
                                hostile);
          expect_forward<double>(stream_window<double>(data, window), op, data,
                                 hostile);
        }
      }
    }
  });
}

// No drift: the average is still correct after 1e5 steps.
TEST(Step, LongStreams) {
  for_each_target([] {
    const int64_t n = 3, steps = 100000;
    Random random(7);
    auto state = nans<float>(3 * n), y = nans<float>(n);
    double num[3] = {}, den[3] = {};
    for (int64_t t = 0; t < steps; ++t) {
      float k[3], v[3];
      for (int c = 0; c < n; ++c) {
        k[c] = static_cast<float>(random.normal());
        v[c] = static_cast<float>(1 + random.normal());
        num[c] += std::exp(static_cast<double>(k[c])) * v[c];
        den[c] += std::exp(static_cast<double>(k[c]));
      }
      simple_kernels<float>().step(n, t == 0, nullptr, k, v, state.data(),
                                   y.data());
    }
    for (int c = 0; c < n; ++c) EXPECT_NEAR(y[c], num[c] / den[c], 1e-3);
  });
}

// Streams give what the oracle gives for the whole sequence, also if an element
// is not finite: a NaN stays in the sums over the past.
template <class T>
void check_non_finite() {
  const int64_t T_ = 24, D = 11, window = 5;
  const double inf = std::numeric_limits<double>::infinity();
  for (int input = 0; input < 4; ++input) {
    for (double value : {static_cast<double>(NAN), inf, -inf}) {
      for (bool deep : {false, true}) {  // exponents that are far apart
        Data data = make(T_, D, true, false);
        Numbers w = Random(9).normals(T_ * T_);
        if (deep) {
          Random random(10);
          testing::put_spikes(random, data.k, 300, 8);
        }
        Numbers* const inputs[] = {&data.q, &data.k, &data.v, &w};
        (*inputs[input])[input == 3 ? 9 * T_ + 7 : 7 * D + 9] = value;
        if (value == -inf) data.v[7 * D + 9] = input == 1 ? NAN : value;
        SCOPED_TRACE(::testing::Message() << "input " << input << ", " << value
                                          << ", deep " << deep);
        const double tolerance = sizeof(T) == 4 ? 4e-6 : 1e-11;
        if (input != 3) {
          expect_class("simple", stream_simple<T>(data),
                       expected(simple(), data).y, tolerance);
        }
        for (bool only : {false, true}) {
          const Operator op = local(w, window, only);
          const RingWindow ring{window, window + 2, only, false,
                                oracle::local_bias(w.data(), T_, window, only)};
          expect_class("local", stream_window<T>(data, ring),
                       expected(op, data).y, tolerance);
        }
        const RingWindow all{T_, T_, false, false,
                             oracle::full_bias(w.data(), T_)};
        expect_class("full", stream_window<T>(data, all),
                     expected(full(w), data).y, tolerance);
      }
    }
  }
}

TEST(Step, NonFinite) {
  for_each_target([] {
    check_non_finite<float>();
    check_non_finite<double>();
  });
}

}  // namespace
}  // namespace aft::kernels
