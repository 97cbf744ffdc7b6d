// The dense Synthesizer against its definition in plain loops: gradients,
// causality, streaming, padding, extreme inputs, errors.
#include "aft/nn/synthesizer.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/nn/mixer_checks.h"
#include "tests/nn/plain_mixer.h"

namespace aft::nn {
namespace {

Tensor oracle(const Synthesizer& m, const Tensor& x, const Tensor& mask = {}) {
  const int64_t heads = m->options.heads(), d = m->options.dim() / heads,
                L = m->options.max_len();
  // Rows are the logits of all heads, then the values.
  const auto rows = [&](const Matrix& in) {
    const Matrix hidden = affine(m->hidden, in), v = affine(m->value, in);
    Matrix all(in.size());
    for (size_t t = 0; t < in.size(); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        Numbers own(hidden[t].begin() + h * d, hidden[t].begin() + (h + 1) * d);
        for (double& z : own) z = std::max(z, 0.);
        const Numbers l = affine(m->logits, {own})[0];
        all[t].insert(all[t].end(), l.begin(), l.end());
      }
      all[t].insert(all[t].end(), v[t].begin(), v[t].end());
    }
    return all;
  };
  const auto score = [L](const Matrix& all, int64_t h, int64_t t, int64_t j) {
    return all[t][h * L + j];
  };
  return PlainMixer{heads, m->out, sees_all(m->options.causal()),
                    rows,  score,  softmax}(x, mask);
}

struct Case {
  int64_t B, T, dim, heads, max_len;
};
const Case kCases[] = {{1, 1, 4, 1, 1},
                       {2, 1, 6, 3, 9},
                       {2, 7, 8, 2, 7},
                       {3, 5, 6, 1, 8},
                       {1, 21, 12, 4, 32}};

Synthesizer make(const Case& c, bool causal,
                 torch::Dtype type = torch::kFloat) {
  torch::manual_seed(1);
  return shaken(
      Synthesizer(SynthesizerOptions(c.dim, c.heads, c.max_len).causal(causal)),
      type);
}

TEST(Synthesizer, MatchesItsDefinition) {
  for (const Case& c : kCases) {
    for (const bool causal : {true, false}) {
      SCOPED_TRACE("T = " + std::to_string(c.T) + (causal ? " causal" : ""));
      Synthesizer m = make(c, causal);
      const Tensor x = torch::randn({c.B, c.T, c.dim});
      for (const Tensor& mask : {Tensor(), torch::rand({c.B, c.T}) < 0.4})
        expect_result(*m, x, mask, oracle(m, x, mask));
    }
  }
}

TEST(Synthesizer, GradientsAreFiniteDifferences) {
  for (const bool causal : {true, false}) {
    for (const bool masked : {true, false}) {
      Synthesizer m = make({2, 5, 4, 2, 6}, causal, torch::kDouble);
      const Tensor x = torch::randn({2, 5, 4}, torch::kDouble);
      Tensor mask;
      if (masked) {  // a gap, and rows that see no key
        mask = torch::zeros({2, 5}, torch::kBool);
        mask[0][3] = true;
        mask[1].narrow(0, 0, causal ? 3 : 5).fill_(true);
      }
      expect_gradients(*m, x, [&] { return m(x, mask); });
    }
  }
}

TEST(Synthesizer, BitExactlyCausal) {
  for (const Case& c : {Case{2, 20, 12, 3, 20}, Case{1, 67, 16, 2, 100}}) {
    std::vector<int64_t> all(c.T - 1);
    std::iota(all.begin(), all.end(), 0);
    expect_causal(*make(c, true), torch::randn({c.B, c.T, c.dim}), all);
  }
}

TEST(Synthesizer, StepEqualsForward) {
  for (const Case& c : kCases)
    expect_step_is_forward(*make(c, true), torch::randn({c.B, c.T, c.dim}));
}

TEST(Synthesizer, StreamsKeepOnlyValues) {
  Synthesizer m = make({1, 64, 8, 2, 64}, true);
  ops::Stream stream = m->start(3);
  EXPECT_EQ(stream.bytes(), 0);
  for (int i = 0; i < 64; ++i) m->step(torch::randn({3, 8}), stream);
  EXPECT_EQ(stream.bytes(), 3 * 64 * 8 * 4);
}

TEST(Synthesizer, EveryParameterMovesWithinTwoSteps) {
  Synthesizer m = make({2, 9, 8, 2, 9}, true);
  EXPECT_EQ(m->parameters().size(), 8u);
  expect_parameters_move(*m, torch::randn({2, 9, 8}));
}

TEST(Synthesizer, PaddingIsIgnored) {
  for (const bool causal : {true, false}) {
    Synthesizer m = make({2, 9, 8, 2, 12}, causal);
    const Tensor x = torch::randn({2, 9, 8});
    Tensor mask = torch::zeros({2, 9}, torch::kBool);
    mask[0][3] = true;
    mask[1].fill_(true);
    expect_mask(*m, x, mask, m->out->bias);
    EXPECT_TRUE(torch::equal(m(x, mask)[1], m->out->bias.expand({9, 8})));
    // Padding at the end does not affect earlier positions.
    m->to(torch::kDouble);
    expect_absent(*m, x.to(torch::kDouble), all_but(9, 6, 3));
  }
}

TEST(Synthesizer, ExtremesAreFinite) {
  for (const bool causal : {true, false})
    for (const double scale : {0., 1e3, 1e4})
      expect_finite(*make({1, 16, 8, 2, 16}, causal),
                    torch::randn({1, 16, 8}) * scale);
}

TEST(Synthesizer, PrintCloneSaveAndPack) {
  Synthesizer m = make({2, 9, 8, 2, 12}, true);
  EXPECT_EQ(printed(*m),
            "Synthesizer(dim=8, heads=2, max_len=12, causal=true)");
  EXPECT_EQ(count(*m), 3 * (8 * 8 + 8) + 12 * 4 + 12);
  const Tensor x = torch::randn({2, 9, 8});
  expect_clones_and_saves(*m, x);
  expect_packs(*m, x);
}

TEST(Synthesizer, InvalidArguments) {
  expect_usual_errors("Synthesizer", [](int64_t heads, bool causal) {
    return Synthesizer(SynthesizerOptions(12, heads, 7).causal(causal)).ptr();
  });
  expect_error([] { Synthesizer m(SynthesizerOptions(12, 4, 0)); },
               {"Synthesizer", "max_len", "0"});
  Synthesizer m(SynthesizerOptions(12, 3, 2).causal(true));
  expect_error(
      [&] {
        m(torch::randn({2, 5, 12}));
      },
      {"Synthesizer", "5 positions", "max_len = 2"});
  ops::Stream stream = m->start(1);
  for (int i = 0; i < 2; ++i) m->step(torch::randn({1, 12}), stream);
  expect_error(
      [&] {
        m->step(torch::randn({1, 12}), stream);
      },
      {"Synthesizer", "position 2", "max_len = 2"});
}

}  // namespace
}  // namespace aft::nn
