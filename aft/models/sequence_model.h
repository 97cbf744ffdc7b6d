// A model of sequences of symbols, bytes of a text or sub-pixels of a picture:
// embedding, pre-norm blocks with any mixer, final norm, head. Symbols in,
// logits of the next symbol out.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "aft/nn/block.h"

namespace aft::models {

struct SequenceModelConfig {
  std::string mixer = "aft-local";  ///< one of nn::mixer_kinds(true)
  int64_t layers = 24;
  int64_t width = 256;    ///< channels of x
  int64_t length = 1024;  ///< T: positions of a training window
  int64_t window = 32;    ///< as nn::MixerOptions has it
  int64_t rank = 256;     ///< aft-full, aft-local: of the factorised biases
  bool dense = false;     ///< aft-full, aft-local: biases not factorised
  int64_t heads = 8;      ///< all but the other AFT
  double gumbel = 0;      ///< aft-conv: one position a head
  int64_t rounds = 4;     ///< reformer: of hashing
  int64_t features = 0;   ///< performer; 0: floor(d ln d), d of a head
  int64_t columns = 0;    ///< image-local2d: positions of a row
  bool out = true;        ///< the mixer's output projection
  int64_t mlp = 4;        ///< width of the MLP over `width`
  double dropout = 0.1;
  bool positions = true;  ///< learned position embeddings
  int64_t vocabulary = 256;
  bool start = false;  ///< one more symbol that is read but never predicted

  template <class Self, class F>
  static void fields(Self& s, const F& f) {
    f("mixer", s.mixer), f("layers", s.layers), f("width", s.width);
    f("length", s.length), f("window", s.window), f("rank", s.rank);
    f("dense", s.dense), f("heads", s.heads), f("gumbel", s.gumbel);
    f("rounds", s.rounds);
    f("features", s.features), f("columns", s.columns), f("out", s.out);
    f("mlp", s.mlp);
    f("dropout", s.dropout), f("positions", s.positions);
    f("vocabulary", s.vocabulary), f("start", s.start);
  }
  /// Whether streams end at `length`.
  bool has_end() const;
  /// Symbols that the model reads; the last is the start symbol where it has
  /// one.
  int64_t inputs() const { return vocabulary + (start ? 1 : 0); }
};

/// What a model remembers of B streams. Copies share memory; clone() does not.
struct SequenceModelState {
  std::vector<ops::Stream> layers;
  int64_t position = 0;

  SequenceModelState clone() const;
  int64_t bytes() const;
};

class SequenceModelImpl : public torch::nn::Cloneable<SequenceModelImpl> {
 public:
  /// First weights as GPT's, from torch's generator: N(0, 0.02^2), those that
  /// join the residual stream smaller by sqrt(2 layers), biases 0. Throws
  /// c10::Error for a configuration that does not fit itself.
  explicit SequenceModelImpl(const SequenceModelConfig& config);
  void reset() override;

  /// tokens int64 [B, T] in [0, inputs()), T <= length where the model has
  /// positions, to logits [B, T, vocabulary]. In training, seed chooses what
  /// dropout drops.
  torch::Tensor forward(const torch::Tensor& tokens, uint64_t seed = 0);

  /// B empty streams.
  SequenceModelState start(int64_t B) const;
  /// The next symbol of each stream, int64 [B], to logits [B, vocabulary]:
  /// forward repeated, at a price that does not grow (aft-full and attention:
  /// that grows with the position). Throws c10::Error past `length` where the
  /// model has an end. Not recorded by autograd.
  torch::Tensor step(const torch::Tensor& tokens, SequenceModelState& state);

  /// Compute activations of blocks again in backward instead of keeping them.
  void recompute(bool on) { recompute_ = on; }

  SequenceModelConfig config;
  torch::nn::Embedding embedding{nullptr};
  torch::Tensor positions;  ///< [length, width], undefined where off
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  bool recompute_ = false;
};
TORCH_MODULE(SequenceModel);

}  // namespace aft::models
