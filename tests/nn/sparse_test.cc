// The Sparse Transformer's patterns against plain double loops over all pairs
// of positions: forward, gradients, causality, streaming, errors.
#include "aft/nn/sparse.h"

#include <cmath>
#include <string>

#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"

namespace aft::nn {
namespace {

Sees sees(const SparseOptions& o) {
  const int64_t s = o.stride();
  const bool local = o.pattern() == "local", causal = o.causal();
  return [=](int64_t t, int64_t j) {
    if (causal && j > t) return false;
    return local ? std::abs(t - j) < s : std::abs(t - j) % s == 0;
  };
}

/// All patterns, causal and not, of `stride`.
template <class F>
void for_each_kind(int64_t dim, int64_t heads, int64_t stride, const F& f) {
  for (const char* pattern : {"local", "strided"}) {
    for (bool causal : {true, false}) {
      SCOPED_TRACE(std::string(pattern) + (causal ? " causal " : " ") +
                   std::to_string(stride));
      f(SparseOptions(dim, heads, stride).pattern(pattern).causal(causal));
    }
  }
}

TEST(Sparse, MatchesItsDefinition) {
  torch::manual_seed(1);
  for (int64_t T : {1, 2, 5, 17, 64, 65, 150}) {
    for (int64_t stride : {1, 2, 3, 7, 16, 33, 64, 70, 1000}) {
      for (int64_t heads : {1, 3}) {
        if (T == 150 && heads == 1) continue;
        for_each_kind(6, heads, stride, [&](const SparseOptions& o) {
          SCOPED_TRACE("T " + std::to_string(T));
          Sparse m = shaken(Sparse(o));
          const Tensor x = torch::randn({2, T, 6}, torch::kDouble);
          expect_result(*m, x, {}, plain_attention(m, x, sees(o)));
        });
      }
    }
  }
}

TEST(Sparse, PaddedKeysAreIgnored) {
  torch::manual_seed(2);
  for (int64_t T : {1, 9, 70, 140}) {
    for (int64_t stride : {3, 20, 67}) {
      for_each_kind(4, 2, stride, [&](const SparseOptions& o) {
        Sparse m = shaken(Sparse(o));
        const Tensor x = torch::randn({2, T, 4}, torch::kDouble);
        const Tensor mask = some_padded(2, T), y = m(x, mask);
        EXPECT_LE(distance(y, plain_attention(m, x, sees(o), mask)), 1e-12);
        if (o.causal()) {
          EXPECT_LE(distance(y[0][0], m->out->bias), 0);
        }
        expect_mask(*m, x, mask, m->out->bias);
        if (T > 1) expect_absent(*m, x, all_but(T, T - T / 3, T / 3));
      });
    }
  }
}

TEST(Sparse, GradientsAreFiniteDifferences) {
  torch::manual_seed(3);
  for (int64_t stride : {2, 3}) {
    for_each_kind(4, 2, stride, [&](const SparseOptions& o) {
      for (bool padded : {false, true}) {
        Sparse m = shaken(Sparse(o));
        const Tensor x = torch::randn({2, 7, 4}, torch::kDouble);
        const Tensor mask = padded ? some_padded(2, 7) : Tensor();
        expect_gradients(*m, x, [&] { return m(x, mask); });
      }
    });
  }
}

TEST(Sparse, GradientsMatchDenseAttention) {
  torch::manual_seed(4);
  for (int64_t T : {1, 30, 65, 200}) {
    for (int64_t stride : {1, 5, 33, 70, 500}) {
      for_each_kind(6, 3, stride, [&](const SparseOptions& o) {
        SCOPED_TRACE("T " + std::to_string(T));
        Sparse m = shaken(Sparse(o));
        const Tensor mask = T == 65 ? some_padded(2, T) : Tensor();
        expect_same_gradients(
            *m, torch::randn({2, T, 6}, torch::kDouble), 1e-10,
            [&](const Tensor& x) { return m(x, mask); },
            [&](const Tensor& x) {
              return dense_attention(m, x, sees(o), mask);
            });
      });
    }
  }
}

TEST(Sparse, BitExactlyCausal) {
  torch::manual_seed(5);
  for (int64_t stride : {1, 4, 50, 90, 300}) {
    for_each_kind(8, 2, stride, [&](const SparseOptions& o) {
      if (o.causal())
        expect_causal(*shaken(Sparse(o), torch::kFloat),
                      torch::randn({2, 200, 8}), {0, 15, 64, 100, 198});
    });
  }
}

TEST(Sparse, StepEqualsForward) {
  torch::manual_seed(6);
  for (int64_t stride : {1, 4, 30, 100}) {
    for_each_kind(6, 3, stride, [&](const SparseOptions& o) {
      if (o.causal())
        expect_step_is_forward(
            *shaken(Sparse(o)), torch::randn({2, 70, 6}),
            o.pattern() == "local" ? 2 * 2 * stride * 6 : -1);
    });
  }
}

TEST(Sparse, AStridedStepReadsEveryStrideth) {
  torch::manual_seed(7);
  Sparse m =
      shaken(Sparse(SparseOptions(4, 2, 5).pattern("strided").causal(true)));
  const Tensor x = torch::randn({1, 23, 4}, torch::kDouble), want = m(x);
  ops::Stream stream = m->start(1);
  for (int64_t t = 0; t < 22; ++t) m->step(x.select(1, t), stream);
  for (int64_t j = 0; j < 22; ++j) {
    if (j % 5 != 22 % 5) stream.ring_k.select(1, j).fill_(NAN);
    if (j % 5 != 22 % 5) stream.ring_v.select(1, j).fill_(NAN);
  }
  EXPECT_LE(distance(m->step(x.select(1, 22), stream), want.select(1, 22)),
            1e-12);
}

TEST(Sparse, ExtremesStayFinite) {
  torch::manual_seed(8);
  for (double scale : {1e3, 1e4}) {
    for_each_kind(8, 2, 9, [&](const SparseOptions& o) {
      Sparse m = shaken(Sparse(o), torch::kFloat);
      const Tensor x = torch::randn({2, 80, 8}) * scale;
      expect_finite(*m, x);
      expect_finite(*m, x, some_padded(2, 80));
    });
  }
}

TEST(Sparse, IndependentOfTheNumberOfThreads) {
  torch::manual_seed(9);
  for_each_kind(12, 3, 20, [&](const SparseOptions& o) {
    expect_same_on_threads(*shaken(Sparse(o)),
                           torch::randn({1, 150, 12}, torch::kDouble), 1e-12);
  });
}

TEST(Sparse, EveryParameterMovesWithinTwoSteps) {
  torch::manual_seed(10);
  for_each_kind(8, 2, 3, [](const SparseOptions& o) {
    expect_parameters_move(*Sparse(o), torch::randn({2, 11, 8}));
  });
}

TEST(Sparse, PrintsCountsResetsAndPacks) {
  Sparse m(SparseOptions(6, 2, 5).causal(true));
  EXPECT_EQ(printed(*m),
            "Sparse(dim=6, heads=2, stride=5, pattern=local, causal=true)");
  EXPECT_EQ(count(*m), 4 * 6 * 6 + 4 * 6);
  EXPECT_EQ(m->parameters().size(), 4u);
  EXPECT_EQ(m->last_weight().sizes(), (at::IntArrayRef{6, 6}));
  const Tensor x = torch::randn({1, 8, 6});
  expect_resets(m, x);
  expect_in_sequential(m, 6);
  expect_clones_and_saves(*m, x);
  expect_packs(*m, x);
}

TEST(Sparse, InvalidArguments) {
  expect_usual_errors("Sparse", [](int64_t heads, bool c) {
    return Sparse(SparseOptions(12, heads, 3).causal(c)).ptr();
  });
  expect_error([] { Sparse(SparseOptions(6, 2, 0)); },
               {"Sparse", "stride", "0"});
  expect_error([] { Sparse(SparseOptions(6, 2, 3).pattern("fixed")); },
               {"Sparse", "local or strided", "fixed"});
}

}  // namespace
}  // namespace aft::nn
