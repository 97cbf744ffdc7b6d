// Checks of the mixers that use prefix sums (aft/nn/prefix_sum_attention.h).
#pragma once

#include "tests/nn/mixer_checks.h"

namespace aft::nn {

template <class M>
class PrefixMixer : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(2); }

  static M make(int64_t dim, int64_t heads, bool causal,
                torch::Dtype type = torch::kDouble) {
    using Options = decltype(M(nullptr)->options);
    M m(Options(dim, heads).causal(causal));
    m->to(type);
    return m;
  }
};
TYPED_TEST_SUITE_P(PrefixMixer);

TYPED_TEST_P(PrefixMixer, Gradients) {
  for (bool causal : {true, false})
    for (bool masked : {true, false}) {
      TypeParam m = this->make(4, 2, causal);
      const Tensor x = torch::randn({1, 150, 4}, torch::kDouble),
                   mask = masked ? some_padded(1, 150) : Tensor();
      expect_gradients(
          *m, x, [&] { return m(x, mask); }, 7);
    }
}

TYPED_TEST_P(PrefixMixer, BitExactlyCausal) {
  expect_causal(*this->make(12, 2, true, torch::kFloat),
                torch::randn({2, 200, 12}), {0, 1, 30, 63, 64, 127, 128, 198});
}

TYPED_TEST_P(PrefixMixer, PaddingIsIgnored) {
  for (bool causal : {true, false}) {
    TypeParam m = this->make(6, 2, causal);
    const Tensor x = torch::randn({2, 90, 6}, torch::kDouble);
    for (const Tensor& kept :
         {all_but(90, 70, 20), all_but(90, 0, 31), torch::rand({90}) < 0.6}) {
      expect_mask(*m, x, kept.logical_not().expand({2, 90}), m->out->bias);
      expect_absent(*m, x, kept);
    }
  }
}

TYPED_TEST_P(PrefixMixer, LargeInputs) {
  for (bool causal : {true, false})
    for (double scale : {1e-6, 1e2, 1e3, 1e4}) {
      SCOPED_TRACE(scale);
      expect_finite(*this->make(16, 2, causal, torch::kFloat),
                    torch::randn({2, 140, 16}) * scale);
    }
}

TYPED_TEST_P(PrefixMixer, MovesClonesSavesAndPacks) {
  TypeParam m = this->make(12, 3, true, torch::kFloat);
  const Tensor x = torch::randn({2, 11, 12});
  expect_parameters_move(*m, x);
  expect_clones_and_saves(*m, x);
  expect_packs(*m, x);
}

TYPED_TEST_P(PrefixMixer, InvalidArguments) {
  TypeParam m = this->make(12, 3, true, torch::kFloat);
  const std::string name = printed(*m).substr(0, printed(*m).find('('));
  expect_usual_errors(name, [&](int64_t heads, bool causal) {
    return this->make(12, heads, causal, torch::kFloat).ptr();
  });
  ops::Stream stream = m->start(2);
  EXPECT_EQ(message([&] {
              m->step(torch::randn({3, 12}), stream);
            }),
            name + ": the stream has B = 2, got 3");
}

REGISTER_TYPED_TEST_SUITE_P(PrefixMixer, Gradients, BitExactlyCausal,
                            PaddingIsIgnored, LargeInputs,
                            MovesClonesSavesAndPacks, InvalidArguments);

}  // namespace aft::nn
