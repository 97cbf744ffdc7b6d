// Whole operators: sequences that need several chunks of w and several blocks
// per sum, any split of the work, and bit-identical results in every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/cases.h"
#include "tests/kernels/operators.h"

namespace aft::kernels {
namespace {

// Chunks of w have 5 * 2^18 elements: 1008 rows of 1300 keys.
TEST(Run, FullInChunks) {
  for (bool causal : {false, true}) {
    for (auto [Tq, Tk] : {std::pair<int64_t, int64_t>{1300, 1300},
                          {700, 700},
                          {900, 513},
                          {517, 800}}) {
      SCOPED_TRACE(::testing::Message()
                   << "causal " << causal << ", " << Tq << " x " << Tk);
      const Data data({1, Tq, Tk, 3, 3}, {"", causal, true, true}, 1);
      check(full(Random(2).normals(Tq * Tk)), data, {1e-5, 1e-12});
    }
  }
}

TEST(Run, LocalInChunks) {
  for (bool causal : {false, true}) {
    for (int64_t window : {40, 300, 600}) {
      for (bool only : {false, true}) {
        if (only && window != 300) continue;
        SCOPED_TRACE(::testing::Message() << "causal " << causal << ", window "
                                          << window << ", only " << only);
        const Data data({1, 800, 800, 2, 2}, {"", causal, true, true}, 3);
        check(local(Random(4).normals(800 * 800), window, only), data,
              {1e-5, 1e-12});
      }
    }
  }
}

// Several tiles and strips, so that panels of one chunk are reused by the next.
TEST(Run, ChunksOfManyChannels) {
  for (bool causal : {false, true}) {
    const Data data({1, 560, 560, 9, 9}, {"", causal, false, true}, 5);
    const Numbers w = Random(6).normals(560 * 560);
    check(full(w), data, {1e-5, 1e-12});
    check(local(w, 270), data, {1e-5, 1e-12});
  }
}

// Two strips of channels, of which a few are compared with the oracle.
TEST(Run, ChunksOfTwoStrips) {
  const int64_t T = 520, D = 75;
  const Data all({1, T, T, D, D}, {"", true, false, true}, 7);
  const Operator op = full(Random(8).normals(T * T));
  Data few = all;
  few.shape.D = few.shape.H = 3;
  const auto channels = [&](const Numbers& x) {
    Numbers some;
    for (int64_t i = 0; i < T; ++i) {
      for (int64_t c : {7, 63, 70}) some.push_back(x[i * D + c]);
    }
    return some;
  };
  few.q = channels(all.q), few.k = channels(all.k), few.v = channels(all.v);
  few.dy = channels(all.dy);
  Result want = expected(op, few);
  want.dw.clear();
  for_each_target([&] {
    const Result got = run<float>(op, all);
    expect_close({channels(got.y),
                  channels(got.dq),
                  channels(got.dk),
                  channels(got.dv),
                  {},
                  1,
                  1},
                 want, 1e-5);
  });
}

// Spikes, so that rows of some chunks take the log-space path.
TEST(Run, HostileChunks) {
  for (bool causal : {false, true}) {
    Data data({1, 600, 600, 2, 2}, {"", causal, false, true}, 9);
    data.k[550 * 2 + 1] = 120, data.k[20 * 2] = -1e4;
    Numbers w = Random(10).normals(600 * 600);
    w[400 * 600 + 390] = 1e3, w[5 * 600 + 4] = -1e3;
    check(full(w), data, {1e-5, 1e-12});
    check(local(w, 280), data, {1e-5, 1e-12});
    check(local(w, 280, true), data, {1e-5, 1e-12});
  }
}

struct Named {
  const char* name;
  Operator op;
  Data data;
};

/// Each operator with ordinary and hostile inputs, large enough for several
/// threads.
std::vector<Named> problems() {
  std::vector<Named> all;
  for (bool hostile : {false, true}) {
    for (bool causal : {false, true}) {
      const int64_t T = 66, D = hostile ? 18 : 70, H = D / 2;
      Data data({2, T, T, D, D}, {"", causal, true, true}, 11);
      Data heads({2, T, T, D, H}, {"", causal, true, true}, 12);
      Random random(13);
      Numbers w = random.normals(T * T), taps = random.normals(H * 15);
      if (hostile) {
        data.k = testing::hostile_keys(random, 2 * T * D);
        heads.k = testing::hostile_keys(random, 2 * T * H);
        w = testing::hostile_biases(random, T * T);
        taps = testing::hostile_biases(random, H * 15);
      }
      all.push_back({"simple", simple(), data});
      all.push_back({"full", full(w), data});
      all.push_back({"local", local(w, 9), data});
      all.push_back({"local only", local(w, 9, true), data});
      all.push_back({"conv", conv(taps, {T}, {15}), heads});
      if (causal) continue;
      all.push_back({"conv 2d", conv(taps, {6, 11}, {5, 3}, true), heads});
    }
  }
  return all;
}

TEST(Run, RepeatedRunsAreBitIdentical) {
  for_each_target([] {
    for (const Named& p : problems()) {
      SCOPED_TRACE(p.name);
      const Result first = run<float>(p.op, p.data);
      expect_identical(run<float>(p.op, p.data), first);
      // New memory may contain anything: zeros, NaN, old values.
      expect_identical(run<float>(p.op, p.data, Exec::serial()), first);
      Exec zeros = poisoned();
      zeros.allocate = [](size_t bytes) {
        auto memory = poisoned().allocate(bytes);
        std::memset(memory.get(), 0, bytes);
        return memory;
      };
      expect_identical(run<float>(p.op, p.data, zeros), first);
      expect_identical(run<double>(p.op, p.data, zeros),
                       run<double>(p.op, p.data));
    }
  });
}

/// Pieces of one item in reverse order: no piece may depend on another.
Exec backwards(int threads) {
  Exec exec = poisoned();
  exec.threads = threads;
  exec.parallel = [](int64_t n,
                     const std::function<void(int64_t, int64_t)>& f) {
    for (int64_t i = n - 1; i >= 0; --i) f(i, i + 1);
  };
  return exec;
}

/// Real threads, pieces of equal size.
Exec threaded(int threads) {
  Exec exec = poisoned();
  exec.threads = threads;
  exec.parallel = [=](int64_t n,
                      const std::function<void(int64_t, int64_t)>& f) {
    std::vector<std::thread> pool;
    for (int i = 0; i < threads; ++i) {
      const int64_t begin = n * i / threads, end = n * (i + 1) / threads;
      if (begin < end) pool.emplace_back([=, &f] { f(begin, end); });
    }
    for (std::thread& thread : pool) thread.join();
  };
  return exec;
}

// The order in which gradients of w are summed may depend on the split.
TEST(Run, AnySplitOfTheWorkGivesTheSameOutputs) {
  for (const Named& p : problems()) {
    SCOPED_TRACE(p.name);
    const Result serial = run<float>(p.op, p.data);
    const Result want = expected(p.op, p.data);
    for (int threads : {1, 2, 3, 16}) {
      SCOPED_TRACE(threads);
      const Result split = run<float>(p.op, p.data, backwards(threads));
      EXPECT_EQ(first_difference(split.y, serial.y), -1);
      expect_close(split, want, 4e-6);
    }
  }
}

TEST(Run, RepeatedRunsOnThreadsAreBitIdentical) {
  for (const Named& p : problems()) {
    SCOPED_TRACE(p.name);
    const Result serial = run<float>(p.op, p.data);
    for (int threads : {2, 3}) {
      SCOPED_TRACE(threads);
      const Result first = run<float>(p.op, p.data, threaded(threads));
      EXPECT_EQ(first_difference(first.y, serial.y), -1);
      for (int again = 0; again < 3; ++again) {
        expect_identical(run<float>(p.op, p.data, threaded(threads)), first);
      }
    }
  }
}

// Forward without saved outputs, and backward without dw.
TEST(Run, NothingSaved) {
  for (const Named& p : problems()) {
    SCOPED_TRACE(p.name);
    const oracle::Shape& s = p.data.shape;
    const auto q = as<float>(p.data.q), k = as<float>(p.data.k),
               v = as<float>(p.data.v), dy = as<float>(p.data.dy),
               w = as<float>(p.op.w);
    auto y = nans<float>(dy.size()), r = y, den = nans<float>(s.B * s.Tq * s.H),
         dq = nans<float>(q.size()), dk = nans<float>(k.size()),
         dv = nans<float>(v.size());
    std::vector<uint8_t> unsafe(s.Tq);
    const Problem<float> problem{
        s.B,      s.Tq,     s.Tk,     s.D,      s.H,
        s.causal, q.data(), k.data(), v.data(), p.data.padded.data()};
    const Gradients<float> g{dq.data(), dk.data(), dv.data()};
    const Result want = run<float>(p.op, p.data);
    const Exec exec = poisoned();
    if (p.op.kind == Operator::kBand) {
      BandBias<float> bias = band_bias<float>(p.op, s, nullptr);
      bias.take = nullptr;
      run_band(exec, problem, bias, y.data(), {nullptr, nullptr, nullptr});
      EXPECT_LE(testing::relative_error(y, want.y), 1e-6);
      const Saved<float> saved{r.data(), den.data(), unsafe.data()};
      run_band(exec, problem, bias, y.data(), saved);
      run_band_backward(exec, problem, bias, dy.data(), saved, g);
    } else if (p.op.kind == Operator::kConv) {
      const ConvBias<float> bias = conv_bias<float>(p.op, w.data(), nullptr);
      run_conv(exec, problem, bias, y.data(), {nullptr, nullptr, nullptr});
      EXPECT_LE(testing::relative_error(y, want.y), 1e-6);
      const Saved<float> saved{r.data(), den.data(), nullptr};
      run_conv(exec, problem, bias, y.data(), saved);
      run_conv_backward(exec, problem, bias, dy.data(), saved, g);
    } else {
      continue;
    }
    EXPECT_EQ(first_difference(Numbers(dq.begin(), dq.end()), want.dq), -1);
    EXPECT_EQ(first_difference(Numbers(dk.begin(), dk.end()), want.dk), -1);
    EXPECT_EQ(first_difference(Numbers(dv.begin(), dv.end()), want.dv), -1);
  }
}

// No batch, no queries, no keys: no write out of bounds.
TEST(Run, EmptyProblems) {
  for_each_target([] {
    for (const oracle::Shape& s :
         {oracle::Shape{0, 5, 5, 9, 9}, oracle::Shape{2, 0, 5, 9, 9},
          oracle::Shape{2, 5, 0, 9, 9}, oracle::Shape{2, 0, 0, 9, 9}}) {
      for (bool causal : {false, true}) {
        const Data data(s, {"", causal, false, true}, 14);
        const Numbers w(s.Tq * s.Tk, 0.5);
        for (const Operator& op :
             {simple(), full(w), local(w, 2), local(w, 2, true)}) {
          const Result out = run<float>(op, data);
          for (double y : out.y) EXPECT_EQ(y, 0.0);
          for (double x : out.dq) EXPECT_EQ(x, 0.0);
          for (double x : out.dk) EXPECT_EQ(x, 0.0);
          for (double x : out.dv) EXPECT_EQ(x, 0.0);
        }
      }
    }
  });
}

}  // namespace
}  // namespace aft::kernels
