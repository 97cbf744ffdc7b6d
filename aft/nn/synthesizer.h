// The dense Synthesizer: the attention weights of a position depend on that
// position alone. Per head,
//   y_t = sum_j softmax_j(l_t)_j v_j, l_t = W2 relu(W1 x_t + b1) + b2,
// with W1 [dim / heads, dim] and W2 [max_len, dim / heads], cut to T. Uses T x
// T elements per head. Streaming keeps all values.
#pragma once

#include "aft/nn/heads.h"

namespace aft::nn {

struct SynthesizerOptions {
  SynthesizerOptions(int64_t dim, int64_t heads, int64_t max_len)
      : dim_(dim), heads_(heads), max_len_(max_len) {}
  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("heads", s.heads());
  }
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(int64_t, max_len);
  TORCH_ARG(bool, causal) = false;
};

/// T > max_len is an error. The logits have biases and are not scaled. Each
/// head takes a slice of `hidden` and applies the resulting weights to its
/// slice of the values. (The Long Range Arena's code mixes heads and positions
/// in a reshape.)
///
/// Parameters: Linear hidden [dim, dim]: W1 of all heads, stacked; logits
/// [max_len, dim / heads]: W2, shared by the heads; value and out [dim, dim].
class SynthesizerImpl : public torch::nn::Cloneable<SynthesizerImpl>,
                        public MixerBase {
 public:
  explicit SynthesizerImpl(const SynthesizerOptions& o) : options(o) {
    reset();
  }
  void reset() override;
  torch::Tensor forward(const torch::Tensor& x,
                        const torch::Tensor& key_padding_mask = {}) override;
  ops::Stream start(int64_t B) const override;
  torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) override;
  void pack_for_inference() override;

  SynthesizerOptions options;
  PackedLinear hidden{nullptr}, value{nullptr};
  torch::nn::Linear logits{nullptr};

 private:
  std::string details() const override;
  /// Returns the first n logits for rows [m, dim / heads]: [m, n].
  torch::Tensor first_logits(const torch::Tensor& rows, int64_t n) const;
};
TORCH_MODULE(Synthesizer);

MixerKind synthesizer_kind();

}  // namespace aft::nn
