// A mixer is what stands where attention stood: [B, T, dim] to [B, T, dim].
// Each is one word; make_mixer finds it by that word.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "aft/ops/stream.h"

namespace aft::nn {

class Mixer : public virtual torch::nn::Module {
 public:
  /// x [B, T, dim] to [B, T, dim]; mask bool [B, T], true: padded.
  virtual torch::Tensor forward(const torch::Tensor& x,
                                const torch::Tensor& key_padding_mask = {}) = 0;
  /// The same for the positions of a grid in row-major order, T = the product
  /// of its sizes. Mixers that know no grid take them as a sequence.
  virtual torch::Tensor forward_grid(
      const torch::Tensor& x, const std::vector<int64_t>& /*grid*/,
      const torch::Tensor& key_padding_mask = {}) {
    return forward(x, key_padding_mask);
  }
  /// For inference only from then on: weights are packed, what depends on
  /// nothing else is computed once, and the memory of the weights themselves is
  /// given back. Gradients are then an error.
  virtual void fold() {}
  /// Draws anew what is random. Called with another seed at each training step,
  /// and with the same when a block is computed again.
  virtual void redraw(uint64_t /*seed*/) {}
  /// An empty stream for B sequences. Throws c10::Error where the mixer is not
  /// causal.
  virtual ops::Stream start(int64_t B) const = 0;
  /// One position x [B, dim] to [B, dim]: forward repeated, without its cost.
  /// Not recorded by autograd.
  virtual torch::Tensor step(const torch::Tensor& x, ops::Stream& stream) = 0;
  /// The linear layer whose result joins the residual: its first weights are
  /// smaller the deeper the network. Null where there is none.
  virtual torch::Tensor last_weight() const = 0;
};

/// What a mixer may be told; each reads what concerns it.
struct MixerOptions {
  std::string kind;     ///< one of mixer_kinds(causal)
  int64_t dim = 0;      ///< channels
  int64_t max_len = 0;  ///< greatest length, of those with a bias a position
  /// aft-local: |t - j| < window; aft-conv: taps; sparse: the stride; reformer:
  /// positions of a chunk; image-local1d: of a block.
  int64_t window = 32;
  int64_t grid = 1;    ///< aft-conv: dimensions, with `window` taps in each
  int64_t rank = 128;  ///< aft-full, aft-local: of w = u v^T
  bool dense = false;  ///< aft-full, aft-local: w itself is the parameter
  int64_t heads = 8;   ///< all but the other AFT: attention heads, aft-conv's
  bool causal = true;
  bool out = true;  ///< AFT, lambda: an output projection (others have one)
  // The paper's ablations.
  std::string gate =
      "sigmoid";             ///< AFT: the query's activation; none: no query
  bool window_only = false;  ///< aft-local, aft-conv: -inf outside, not 0
  bool naive = false;        ///< aft-conv: w itself is the parameter
  double gumbel = 0;         ///< aft-conv: one position a head, by sampling
  // The systems to compare with.
  int64_t layer = 0;     ///< sparse: local in even layers, strided in odd ones
  int64_t rounds = 4;    ///< reformer: of hashing
  int64_t features = 0;  ///< performer; 0: floor(d ln d), d of a head
  int64_t rows = 0;      ///< lambda: of the greatest grid
  /// lambda: of the greatest grid; image-local2d: positions of a row.
  int64_t columns = 0;
};

/// A new mixer with torch's own first weights. Throws c10::Error for a kind
/// that is not known, or options that do not fit it.
std::shared_ptr<Mixer> make_mixer(const MixerOptions& options);
/// Those that can be causal, or those that need not be.
const std::vector<std::string>& mixer_kinds(bool causal);
/// Whether forward and step end at max_len.
bool has_max_len(const std::string& kind);
/// Whether a stream keeps all that came before, so that its state and the price
/// of a step grow with the position.
bool keeps_all(const std::string& kind);

}  // namespace aft::nn
