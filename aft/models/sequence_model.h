// An autoregressive model of symbol sequences, such as the bytes of a text or
// the sub-pixels of an image: embedding, pre-norm blocks with any mixer, final
// norm, head. Maps symbols to the logits of the next symbol.
#pragma once

#include <torch/nn/modules/embedding.h>

#include <vector>

#include "aft/models/block_stack.h"

namespace aft::models {

struct SequenceModelConfig {
  nn::MixerConfig mixer{"aft-local",
                        /*causal=*/true,
                        {{"window", 32}, {"rank", 256}, {"heads", 8}}};
  int64_t layers = 24;
  int64_t width = 256;    ///< channels of x
  int64_t length = 1024;  ///< T: positions of a training window
  int64_t columns = 0;    ///< of an image: positions per row
  int64_t mlp = 4;        ///< hidden width of the MLP as a multiple of `width`
  double dropout = 0.1;
  bool positions = true;  ///< learned position embeddings
  int64_t vocabulary = 256;
  bool start = false;  ///< add a symbol that is read but never predicted

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    nn::MixerConfig::fields(s.mixer, f);
    f("layers", s.layers), f("width", s.width), f("length", s.length);
    f("columns", s.columns), f("mlp", s.mlp);
    f("dropout", s.dropout), f("positions", s.positions);
    f("vocabulary", s.vocabulary), f("start", s.start);
  }
  /// Whether streams are limited to `length` positions.
  bool has_end() const;
  /// Number of symbols that the model reads. The last one is the start symbol,
  /// if enabled.
  int64_t inputs() const { return vocabulary + (start ? 1 : 0); }
};

/// The state of a model for B streams. Copies share memory; clone() does not.
struct SequenceModelState {
  std::vector<ops::Stream> layers;
  int64_t position = 0;

  SequenceModelState clone() const;
  int64_t bytes() const;
};

class SequenceModelImpl : public torch::nn::Cloneable<SequenceModelImpl> {
 public:
  /// Initialises weights like GPT, from torch's generator: N(0, 0.02^2),
  /// divided by sqrt(2 layers) for layers that add to the residual stream;
  /// biases 0. Throws c10::Error if the configuration is inconsistent.
  explicit SequenceModelImpl(const SequenceModelConfig& config);
  void reset() override;

  /// tokens int64 [B, T] in [0, inputs()), to logits [B, T, vocabulary]. T must
  /// be at most `length` if has_end(). In training, seed determines what
  /// dropout drops.
  torch::Tensor forward(const torch::Tensor& tokens, uint64_t seed = 0);

  /// Returns the state of B empty streams.
  SequenceModelState start(int64_t B) const;
  /// Processes the next symbol of each stream, int64 [B], to logits [B,
  /// vocabulary]. Repeated steps give the result of forward. The cost of a step
  /// is constant, except for mixers whose state grows (nn::MixerKind). Throws
  /// c10::Error past `length` if has_end(). Not recorded by autograd.
  torch::Tensor step(const torch::Tensor& tokens, SequenceModelState& state);

  /// If on, backward recomputes the activations of blocks instead of keeping
  /// them.
  void recompute(bool on) { recompute_ = on; }

  SequenceModelConfig config;
  torch::nn::Embedding embedding{nullptr};
  torch::Tensor positions;  ///< [length, width]; undefined if off
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  bool recompute_ = false;
};
TORCH_MODULE(SequenceModel);

}  // namespace aft::models
