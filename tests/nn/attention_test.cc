// Multi-head attention against plain double loops over all pairs of positions:
// forward, gradients, masks, causality, streaming, errors.
#include "aft/nn/attention.h"

#include <string>

#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"

namespace aft::nn {
namespace {

Attention make(int64_t dim, int64_t heads, bool causal,
               torch::Dtype type = torch::kDouble) {
  return shaken(Attention(AttentionOptions(dim, heads).causal(causal)), type);
}

/// Lengths of one tile, and those around which their number changes: multiples
/// of 64 if causal, of 256 if not.
constexpr int64_t kLengths[] = {1,   2,   3,   17,  63,  64, 65,
                                127, 128, 129, 255, 256, 257};

TEST(Attention, MatchesItsDefinition) {
  torch::manual_seed(1);
  for (const bool causal : {true, false}) {
    for (const int64_t T : kLengths) {
      SCOPED_TRACE("T " + std::to_string(T));
      Attention m = make(6, T % 2 ? 3 : 1, causal);
      const Tensor x = torch::randn({2, T, 6}, torch::kDouble);
      expect_result(*m, x, {}, plain_attention(m, x, sees_all(causal)));
    }
  }
}

TEST(Attention, PaddedKeysAreIgnored) {
  torch::manual_seed(2);
  for (const bool causal : {true, false}) {
    for (const int64_t T : {1, 9, 65, 140, 257}) {
      SCOPED_TRACE("T " + std::to_string(T));
      Attention m = make(4, 2, causal);
      const Tensor x = torch::randn({2, T, 4}, torch::kDouble);
      const Tensor mask = some_padded(2, T), y = m(x, mask);
      EXPECT_LE(distance(y, plain_attention(m, x, sees_all(causal), mask)),
                1e-12);
      if (causal) {
        EXPECT_LE(distance(y[0][0], m->out->bias), 0);  // sees no key
      }
      expect_mask(*m, x, mask, m->out->bias);
      if (T > 1) expect_absent(*m, x, all_but(T, T - T / 3, T / 3));
    }
  }
}

TEST(Attention, GradientsAreFiniteDifferences) {
  torch::manual_seed(3);
  for (const bool causal : {true, false}) {
    for (const bool padded : {false, true}) {
      Attention m = make(4, 2, causal);
      const Tensor x = torch::randn({2, 7, 4}, torch::kDouble);
      const Tensor mask = padded ? some_padded(2, 7) : Tensor();
      expect_gradients(*m, x, [&] { return m(x, mask); });
    }
  }
}

TEST(Attention, GradientsMatchDenseAttention) {
  torch::manual_seed(4);
  for (const bool causal : {true, false}) {
    for (const int64_t T : {1, 2, 64, 65, 129, 256, 257, 511, 513, 1025}) {
      SCOPED_TRACE("T " + std::to_string(T));
      Attention m = make(6, 3, causal);
      const Tensor mask = T % 2 ? some_padded(2, T) : Tensor();
      expect_same_gradients(
          *m, torch::randn({2, T, 6}, torch::kDouble), 1e-10,
          [&](const Tensor& x) { return m(x, mask); },
          [&](const Tensor& x) {
            return dense_attention(m, x, sees_all(causal), mask);
          });
    }
  }
}

TEST(Attention, BitExactlyCausal) {
  torch::manual_seed(5);
  for (const int64_t T : {20, 200, 1100})
    expect_causal(*make(8, 2, true, torch::kFloat), torch::randn({2, T, 8}),
                  {0, 15, T / 2, T - 2});
}

TEST(Attention, StepEqualsForward) {
  torch::manual_seed(6);
  for (const int64_t T : {1, 70})
    expect_step_is_forward(*make(6, 3, true), torch::randn({2, T, 6}));
}

TEST(Attention, ExtremesStayFinite) {
  torch::manual_seed(7);
  for (const bool causal : {true, false}) {
    for (const double scale : {1e3, 1e4}) {
      Attention m = make(8, 2, causal, torch::kFloat);
      const Tensor x = torch::randn({2, 80, 8}) * scale;
      expect_finite(*m, x);
      expect_finite(*m, x, some_padded(2, 80));
    }
  }
}

TEST(Attention, NaNReachesEveryPositionThatSeesIt) {
  torch::manual_seed(8);
  const Tensor x = torch::randn({2, 300, 8});
  x[1][150][0] = NAN;
  const Tensor wrong = make(8, 2, true, torch::kFloat)(x).isnan().any(2);
  EXPECT_FALSE(wrong[0].any().item<bool>());
  EXPECT_TRUE(wrong[1].slice(0, 150).all().item<bool>());
}

TEST(Attention, IndependentOfTheNumberOfThreads) {
  torch::manual_seed(9);
  for (const bool causal : {true, false})
    expect_same_on_threads(*make(12, 3, causal),
                           torch::randn({1, 150, 12}, torch::kDouble), 1e-12);
}

TEST(Attention, EveryParameterMovesWithinTwoSteps) {
  torch::manual_seed(10);
  for (const bool causal : {true, false})
    expect_parameters_move(*Attention(AttentionOptions(8, 2).causal(causal)),
                           torch::randn({2, 11, 8}));
}

TEST(Attention, PrintsCountsResetsAndPacks) {
  Attention m(AttentionOptions(6, 2).causal(true));
  EXPECT_EQ(printed(*m), "Attention(dim=6, heads=2, causal=true)");
  EXPECT_EQ(count(*m), 4 * 6 * 6 + 4 * 6);
  const Tensor x = torch::randn({1, 8, 6});
  expect_resets(m, x);
  expect_in_sequential(m, 6);
  expect_clones_and_saves(*m, x);
  expect_packs(*m, x);
}

TEST(Attention, InvalidArguments) {
  expect_usual_errors("Attention", [](int64_t heads, bool causal) {
    return Attention(AttentionOptions(12, heads).causal(causal)).ptr();
  });
}

}  // namespace
}  // namespace aft::nn
