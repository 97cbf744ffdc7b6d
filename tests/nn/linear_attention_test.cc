// The Linear Transformer's attention against plain double loops: gradients,
// causality, streaming and memory; and the prefix sums that it shares with the
// Performer.
#include "aft/nn/linear_attention.h"

#include <array>
#include <cmath>
#include <vector>

#include "aft/nn/prefix_sum_attention.h"
#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"
#include "tests/nn/prefix_checks.h"

namespace aft::nn {
namespace {

LinearAttention make(int64_t dim, int64_t heads, bool causal) {
  LinearAttention m(LinearAttentionOptions(dim, heads).causal(causal));
  m->to(torch::kDouble);
  return m;
}

double phi(double x) { return x > 0 ? x + 1 : std::exp(x); }

/// The equation, per row and head.
Tensor oracle(const LinearAttention& m, const Tensor& x, const Tensor& mask) {
  const int64_t heads = m->options.heads(), dim = m->options.dim();
  return PlainMixer{heads,
                    m->out,
                    sees_all(m->options.causal()),
                    [&](const Matrix& in) {
                      Matrix rows = affine(m->qkv, in);
                      for (Numbers& row : rows)
                        for (int64_t i = 0; i < 2 * dim; ++i)
                          row[i] = phi(row[i]);
                      return rows;
                    },
                    dot(heads, dim / heads),
                    [](Numbers& weights) {
                      double sum = 1e-6;
                      for (double w : weights) sum += w;
                      for (double& w : weights) w /= sum;
                    }}(x, mask);
}

TEST(LinearAttention, MatchesItsDefinition) {
  torch::manual_seed(1);
  using Four = std::array<int64_t, 4>;
  for (bool causal : {true, false})
    for (bool masked : {false, true})
      for (const auto& [B, T, dim, heads] :
           {Four{2, 1, 4, 2}, Four{1, 2, 3, 3}, Four{2, 13, 6, 1},
            Four{1, 32, 8, 2}, Four{2, 131, 12, 3}, Four{1, 257, 4, 1}}) {
        SCOPED_TRACE(::testing::Message()
                     << T << " of " << dim << (causal ? " causal" : "")
                     << (masked ? " mask" : ""));
        LinearAttention m = make(dim, heads, causal);
        const Tensor x = 2 * torch::randn({B, T, dim}, torch::kDouble),
                     mask = masked ? some_padded(B, T) : Tensor();
        expect_result(*m, x, mask, oracle(m, x, mask));
      }
}

TEST(LinearAttention, IndependentOfTheChunkLength) {
  torch::manual_seed(3);
  const int64_t T = 23;
  for (double size : {0., 1., 100.}) {  // of c; 0: none
    std::vector<Tensor> leaves;
    for (int64_t n : {6, 6, 4, 2})
      leaves.push_back(torch::rand({2, T, n}, torch::kDouble));
    leaves[2] -= 0.5, leaves[3] = size * (2 * leaves[3] - 1);
    const Tensor r = torch::randn({2, T, 4}, torch::kDouble);
    const auto run = [&](int64_t C) {
      for (Tensor& x : leaves) x = x.detach().clone().requires_grad_(true);
      const Tensor c =
          size == 0 ? Tensor() : chunks(leaves[3], 2, C).squeeze(4);
      const Tensor y = unchunk(
          prefix_attend(chunks(leaves[0], 2, C), chunks(leaves[1], 2, C),
                        chunks(leaves[2], 2, C), c, 0, true),
          T);
      (y * r).sum().backward();
      std::vector<Tensor> all{y};
      for (const Tensor& x : leaves)
        if (x.grad().defined()) all.push_back(x.grad());
      return all;
    };
    const auto want = run(T);
    EXPECT_EQ(want.size(), size == 0 ? 4 : 5);
    for (int64_t C : {1, 2, 3, 5, 8, 11, 12, 22}) {
      const auto got = run(C);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(torch::allclose(got[i], want[i], 1e-10, 1e-10))
            << C << " " << i << " " << size;
    }
  }
}

INSTANTIATE_TYPED_TEST_SUITE_P(LinearAttention, PrefixMixer, LinearAttention);

TEST(LinearAttention, StepEqualsForward) {
  torch::manual_seed(5);
  // (S, z) of three heads with 4 channels.
  expect_step_is_forward(
      *LinearAttention(LinearAttentionOptions(12, 3).causal(true)),
      torch::randn({2, 150, 12}), 2 * 3 * 4 * 5);
}

TEST(LinearAttention, Prints) {
  EXPECT_EQ(
      printed(*LinearAttention(LinearAttentionOptions(12, 3).causal(true))),
      "LinearAttention(dim=12, heads=3, causal=true)");
}

}  // namespace
}  // namespace aft::nn
