// Reformer against its definition in plain loops: buckets, ranks, chunks,
// rounds and visible keys; causality, streaming and gradients.
#include "aft/nn/reformer.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"

namespace aft::nn {
namespace {

/// One head of one sequence.
struct Head {
  Matrix q, v;
  std::vector<bool> padded;

  Head(Reformer m, const Matrix& x, const Numbers& mask, int64_t h)
      : padded(mask.begin(), mask.end()) {
    const int64_t d = m->options.dim() / m->options.heads();
    const auto own = [&](const torch::nn::Linear& layer) {
      Matrix rows = affine(layer, x);
      for (Numbers& r : rows)
        r = Numbers(r.begin() + h * d, r.begin() + (h + 1) * d);
      return rows;
    };
    q = own(m->qk), v = own(m->value);
  }

  size_t T() const { return q.size(); }

  /// argmax [q R; -q R], or several such digits.
  std::vector<int> buckets(Reformer m, size_t round) const {
    std::vector<int> out(T(), 0);
    if (m->buckets() == 1) return out;
    const Matrix R = rows_of(m->rotations[static_cast<int64_t>(round)]);
    const auto half = static_cast<size_t>(m->digits().base / 2);
    for (size_t t = 0; t < T(); ++t) {
      for (size_t end = R[0].size(); end > 0; end -= half) {
        Numbers x(2 * half, 0);
        for (size_t b = 0; b < half; ++b) {
          for (size_t i = 0; i < R.size(); ++i)
            x[b] += q[t][i] * R[i][end - half + b];
          x[half + b] = -x[b];
        }
        const auto digit = std::max_element(x.begin(), x.end()) - x.begin();
        out[t] = out[t] * static_cast<int>(2 * half) + static_cast<int>(digit);
      }
    }
    return out;
  }

  /// Whether t sees j in a round, except t itself.
  std::vector<std::vector<bool>> seen(Reformer m, size_t round) const {
    const std::vector<int> bucket = buckets(m, round);
    std::vector<int64_t> chunk(T());
    for (size_t t = 0; t < T(); ++t) {
      int64_t rank = 0;
      for (size_t j = 0; j < t; ++j)
        rank += !padded[j] && bucket[j] == bucket[t];
      chunk[t] = rank / m->options.chunk();
    }
    std::vector<std::vector<bool>> out(T(), std::vector<bool>(T()));
    for (size_t t = 0; t < T(); ++t)
      for (size_t j = 0; j < T(); ++j)
        out[t][j] = !padded[t] && !padded[j] && t != j &&
                    bucket[t] == bucket[j] &&
                    (chunk[j] == chunk[t] || chunk[j] == chunk[t] - 1) &&
                    (j < t || !m->options.causal());
    return out;
  }

  double score(size_t t, size_t j) const {
    double dot = 0, square = 1e-6;
    for (size_t i = 0; i < q[t].size(); ++i)
      dot += q[t][i] * q[j][i], square += q[j][i] * q[j][i];
    return dot / std::sqrt(square) / std::sqrt(double(q[t].size()));
  }

  /// softmax(s) rows, and its logsumexp.
  static double mix(Numbers s, const Matrix& rows, Numbers& y) {
    const double lse = softmax(s);
    y.assign(rows[0].size(), 0);
    for (size_t j = 0; j < s.size(); ++j)
      for (size_t i = 0; i < y.size(); ++i) y[i] += s[j] * rows[j][i];
    return lse;
  }

  /// As published: a softmax per round, and the rounds weighted by the softmax
  /// of their logsumexp.
  Matrix attend(Reformer m) const {
    const auto rounds = static_cast<size_t>(m->options.rounds());
    std::vector<std::vector<std::vector<bool>>> see;
    for (size_t r = 0; r < rounds; ++r) see.push_back(seen(m, r));
    Matrix y(T(), Numbers(v[0].size(), 0));
    for (size_t t = 0; t < T(); ++t) {
      if (padded[t]) continue;
      Matrix results(rounds);
      Numbers lse(rounds);
      for (size_t r = 0; r < rounds; ++r) {
        Numbers s(T(), -HUGE_VAL);
        for (size_t j = 0; j < T(); ++j)
          if (see[r][t][j]) s[j] = score(t, j);
        s[t] = -1e9;
        lse[r] = mix(s, v, results[r]);
      }
      mix(lse, results, y[t]);
    }
    return y;
  }
};

Tensor oracle(Reformer m, const Tensor& x, const Tensor& mask = {}) {
  std::vector<Tensor> all;
  for (int64_t b = 0; b < x.size(0); ++b) {
    const Matrix rows = rows_of(x[b]);
    const Numbers padded =
        mask.defined() ? numbers(mask[b]) : Numbers(rows.size(), 0);
    Matrix y(rows.size());
    for (int64_t h = 0; h < m->options.heads(); ++h) {
      const Matrix own = Head(m, rows, padded, h).attend(m);
      for (size_t t = 0; t < y.size(); ++t)
        y[t].insert(y[t].end(), own[t].begin(), own[t].end());
    }
    all.push_back(tensor_of(affine(m->out, y)));
  }
  return torch::stack(all);
}

struct Case {
  int64_t B, T, dim, heads, chunk, rounds, buckets;
};
const Case kCases[] = {
    {1, 1, 4, 1, 4, 2, 2},     // one position
    {2, 3, 6, 2, 8, 2, 4},     // shorter than a chunk
    {2, 16, 8, 2, 4, 1, 2},    // whole chunks, one round
    {1, 37, 8, 1, 4, 3, 4},    // many chunks, an odd end
    {2, 41, 12, 3, 5, 2, 6},   // odd chunks
    {1, 30, 4, 2, 1, 4, 8},    // chunks of one
    {1, 33, 6, 1, 6, 2, 1},    // one bucket
    {1, 25, 4, 4, 4, 2, 64},   // more buckets than keys
    {1, 90, 4, 2, 4, 2, 100},  // two digits
    {2, 70, 8, 2, 64, 2, 2},   // two chunks or one
};

Reformer make(const Case& c, bool causal, uint64_t seed = 1,
              torch::Dtype type = torch::kFloat) {
  torch::manual_seed(seed);
  return shaken(Reformer(ReformerOptions(c.dim, c.heads)
                             .causal(causal)
                             .chunk(c.chunk)
                             .rounds(c.rounds)
                             .buckets(c.buckets)),
                type);
}

Tensor random_mask(int64_t B, int64_t T) { return torch::rand({B, T}) < 0.3; }

TEST(Reformer, MatchesItsDefinition) {
  for (const Case& c : kCases) {
    for (const bool causal : {true, false}) {
      Reformer m = make(c, causal);
      const Tensor x = torch::randn({c.B, c.T, c.dim});
      SCOPED_TRACE("T = " + std::to_string(c.T) + (causal ? " causal" : ""));
      for (const Tensor& mask : {Tensor(), random_mask(c.B, c.T)})
        expect_result(*m, x, mask, oracle(m, x, mask));
    }
  }
}

// More scores and rows than are processed at once.
TEST(Reformer, LongSequences) {
  const Case c{3, 500, 4, 2, 48, 2, 2};
  Reformer m = make(c, true);
  const Tensor x = torch::randn({c.B, c.T, c.dim});
  EXPECT_LE(distance(m(x), oracle(m, x)), 1e-4);
  const Tensor wide = torch::randn({20, c.T, c.dim}), y = m(wide);
  for (const int64_t b : {0, 15, 16, 17, 19})
    EXPECT_LE(distance(y[b], m(wide.narrow(0, b, 1))[0]), 1e-5) << b;
}

TEST(Reformer, OneBucketAndOneChunkIsSharedQueryAttention) {
  torch::manual_seed(2);
  for (const bool causal : {true, false}) {
    Reformer m = shaken(
        Reformer(ReformerOptions(12, 3).causal(causal).buckets(1).chunk(64)));
    const int64_t T = 20;
    const Tensor x = torch::randn({2, T, 12}, torch::kDouble);
    const auto split = [&](const Tensor& z) {
      return z.view({2, T, 3, 4}).transpose(1, 2);
    };
    const Tensor q = split(m->qk(x)), v = split(m->value(x));
    const Tensor k = q / (q.pow(2).sum(-1, true) + 1e-6).sqrt();
    Tensor scores = torch::matmul(q, k.transpose(2, 3)) / 2;
    if (causal)
      scores = scores.masked_fill(torch::ones({T, T}, torch::kBool).triu(1),
                                  -HUGE_VAL);
    scores = scores.masked_fill(torch::eye(T, torch::kBool), -1e9);
    const Tensor y = torch::matmul(scores.softmax(-1), v);
    EXPECT_LE(distance(m(x), m->out(y.transpose(1, 2).flatten(2))), 1e-12);
  }
}

// Queries a, -a, a: opposite ones are never in the same bucket, equal ones
// always.
TEST(Reformer, SeesItselfOnlyIfAlone) {
  for (const bool causal : {true, false}) {
    Reformer m = make({1, 3, 4, 1, 4, 2, 8}, causal, 1, torch::kDouble);
    torch::NoGradGuard no_grad;
    const auto wide = torch::dtype(torch::kDouble);
    m->qk->weight.copy_(torch::eye(4)).narrow(0, 2, 2).zero_();
    m->qk->bias.zero_();
    Tensor x = torch::randn({1, 3, 4}, wide);  // values differ in the rest
    x.narrow(2, 0, 2).copy_(
        torch::tensor({3., 1., -3., -1., 3., 1.}, wide).view({1, 3, 2}));
    const Tensor sees = torch::tensor({causal ? 0 : 2, 1, 0});
    EXPECT_LE(distance(m(x), m->out(m->value(x).index_select(1, sees))), 1e-12);
  }
}

// Sorting all positions by bucket, as the published code does, fails here.
TEST(Reformer, BitExactlyCausal) {
  std::mt19937 random(5);
  const auto one_of = [&](std::vector<int64_t> choices) {
    return choices[random() % choices.size()];
  };
  int changed = 0;
  for (int i = 0; i < 300; ++i) {
    const int64_t heads = one_of({1, 2, 3});
    const Case c{one_of({1, 2}),
                 2 + static_cast<int64_t>(random() % 150),
                 heads * one_of({1, 3, 4, 8}),
                 heads,
                 one_of({1, 2, 3, 4, 8, 17, 64}),
                 one_of({1, 2, 4}),
                 one_of({1, 2, 4, 8, 32})};
    Reformer m = make(c, true, 100 + static_cast<uint64_t>(i));
    const Tensor x = torch::randn({c.B, c.T, c.dim});
    const Tensor mask = i % 3 == 0 ? random_mask(c.B, c.T) : Tensor();
    const int64_t t = 1 + static_cast<int64_t>(random()) % (c.T - 1);
    Tensor other = x.clone();
    other.slice(1, t).normal_(0, 3);
    const Tensor a = m(x, mask), b = m(other, mask);
    ASSERT_TRUE(torch::equal(a.narrow(1, 0, t), b.narrow(1, 0, t)))
        << i << ": T = " << c.T << ", from " << t << ", chunk = " << c.chunk
        << ", buckets = " << c.buckets;
    changed += !torch::equal(a, b);
  }
  EXPECT_GE(changed, 290);
}

TEST(Reformer, StepEqualsForward) {
  for (const Case& c : kCases)
    expect_step_is_forward(*make(c, true, 3), torch::randn({c.B, c.T, c.dim}));
}

TEST(Reformer, GradientsAreFiniteDifferences) {
  const auto check = [](const Case& c, bool causal, uint64_t seed,
                        bool masked) {
    Reformer m = make(c, causal, seed, torch::kDouble);
    const Tensor x = torch::randn({c.B, c.T, c.dim}, torch::kDouble);
    const Tensor mask = masked ? random_mask(c.B, c.T) : Tensor();
    expect_gradients(*m, x, [&] { return m(x, mask); });
  };
  for (const bool causal : {true, false})
    for (const bool masked : {true, false})
      check({2, 11, 4, 2, 2, 2, 2}, causal, 11, masked);
  check({1, 9, 4, 1, 3, 3, 1}, true, 1, false);
}

TEST(Reformer, IndependentOfTheNumberOfThreads) {
  for (const bool causal : {true, false})
    expect_same_on_threads(*make({2, 900, 8, 2, 16, 2, 8}, causal),
                           torch::randn({2, 900, 8}), 1e-5);
}

TEST(Reformer, EveryParameterMovesWithinTwoSteps) {
  Reformer m = make({2, 20, 8, 2, 4, 2, 2}, true);
  EXPECT_EQ(m->parameters().size(), 6u);
  expect_parameters_move(*m, torch::randn({2, 20, 8}));
}

TEST(Reformer, PaddingIsIgnored) {
  for (const bool causal : {true, false}) {
    Reformer m = make({2, 30, 8, 2, 4, 2, 4}, causal, 1, torch::kDouble);
    const Tensor x = torch::randn({2, 30, 8}, torch::kDouble);
    // Padding at the end, at the beginning and in between.
    for (const Tensor& kept :
         {all_but(30, 22, 8), all_but(30, 0, 9), torch::rand({30}) < 0.6}) {
      expect_mask(*m, x, kept.logical_not().expand({2, 30}), m->out->bias);
      expect_absent(*m, x, kept);
    }
  }
}

TEST(Reformer, ExtremesAreFinite) {
  for (const bool causal : {true, false}) {
    for (const double scale : {0., 1e-10, 1e3, 1e4}) {
      Reformer m = make({1, 40, 8, 2, 4, 2, 4}, causal);
      if (scale == 0) {  // queries of 0
        torch::NoGradGuard no_grad;
        m->qk->bias.zero_();
      }
      const Tensor x = torch::randn({1, 40, 8}) * scale;
      const Tensor y = expect_finite(*m, x);
      EXPECT_LE(distance(y, oracle(m, x)), 1e-3 * (1 + largest(y)));
      EXPECT_LE(largest(x.grad()), 1e7) << scale;
      if (!causal) continue;
      ops::Stream stream = m->start(1);
      for (int64_t t = 0; t < 40; ++t)
        EXPECT_TRUE(is_finite(m->step(x.detach().select(1, t), stream)));
    }
  }
}

TEST(Reformer, RotationsDependOnlyOnTheSeed) {
  Reformer m = make({1, 60, 8, 2, 4, 2, 8}, true);
  const Tensor x = torch::randn({1, 60, 8});
  const Tensor first = m->rotations.clone(), y = m(x);
  EXPECT_TRUE(torch::equal(y, m(x)));
  m->redraw(5);
  const Tensor five = m->rotations.clone();
  EXPECT_FALSE(torch::equal(first, five));
  EXPECT_FALSE(torch::equal(y, m(x)));
  torch::randn({3});
  m->redraw(6);
  EXPECT_FALSE(torch::equal(m->rotations, five));
  m->to(torch::kDouble);
  m->redraw(5);
  EXPECT_TRUE(torch::equal(m->rotations, five.to(torch::kDouble)));
  EXPECT_NEAR(five.mean().item<double>(), 0, 0.5);
  EXPECT_NEAR(five.std().item<double>(), 1, 0.3);
  Reformer one(ReformerOptions(4, 1).buckets(1));
  one->redraw(1);
  EXPECT_EQ(one->buffers().size(), 0u);
}

TEST(Reformer, BucketsByLength) {
  const auto buckets = [](int64_t max_len, int64_t chunk) {
    return Reformer(ReformerOptions(4, 1).max_len(max_len).chunk(chunk))
        ->buckets();
  };
  EXPECT_EQ(buckets(0, 64), 2);
  EXPECT_EQ(buckets(100, 64), 2);
  EXPECT_EQ(buckets(1024, 64), 16);
  EXPECT_EQ(buckets(1025, 64), 18);
  EXPECT_EQ(buckets(3072, 128), 24);
  EXPECT_EQ(buckets(4096, 64), 64);
  EXPECT_EQ(buckets(16384, 64), 256);
  EXPECT_EQ(buckets(65 * 64, 64), 100);
  EXPECT_EQ(buckets(1 << 20, 64), 26 * 26 * 26);
  const Reformer m(ReformerOptions(12, 3).max_len(4096));
  EXPECT_EQ(m->rotations.sizes(), (at::IntArrayRef{4, 4, 32}));
  // The cost of hashing is logarithmic.
  const Reformer huge(ReformerOptions(12, 3).max_len(1 << 20));
  EXPECT_EQ(huge->rotations.sizes(), (at::IntArrayRef{4, 4, 3 * 13}));
  EXPECT_EQ(count(*m), 3 * (12 * 12 + 12));
}

TEST(Reformer, PrintCloneSavePackAndReset) {
  Reformer m = make({1, 30, 8, 2, 4, 2, 4}, true);
  EXPECT_EQ(printed(*m),
            "Reformer(dim=8, heads=2, chunk=4, rounds=2, buckets=4, "
            "causal=true)");
  const Tensor x = torch::randn({2, 30, 8}), y = m(x);
  expect_clones_and_saves(*m, x);
  const auto copy = clone_of(*m);
  copy->redraw(9);
  EXPECT_TRUE(torch::equal(m(x), y)) << "a clone shares rotations";
  EXPECT_FALSE(torch::equal(copy->forward(x), y));
  expect_packs(*m, x);
  const Tensor drawn = m->rotations.clone();
  expect_resets(m, x);
  EXPECT_EQ(m->parameters().size(), 6u);
  EXPECT_FALSE(torch::equal(m->rotations, drawn));
  EXPECT_TRUE(torch::equal(m->rotations, m->named_buffers()["rotations"]));
}

TEST(Reformer, InvalidArguments) {
  expect_usual_errors("Reformer", [](int64_t heads, bool causal) {
    return Reformer(ReformerOptions(12, heads).causal(causal)).ptr();
  });
  const ReformerOptions o(12, 3);
  const auto expect = [](const ReformerOptions& wrong, const char* what,
                         const char* got) {
    expect_error([&] { Reformer m(wrong); }, {"Reformer", what, got});
  };
  expect(ReformerOptions(o).buckets(3), "even", "3");
  expect(ReformerOptions(o).buckets(-2), "even", "-2");
  expect(ReformerOptions(o).chunk(0), "chunk", "0");
  expect(ReformerOptions(o).rounds(0), "rounds", "0");
}

}  // namespace
}  // namespace aft::nn
